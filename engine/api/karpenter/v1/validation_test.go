package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

func TestNodePool_RuntimeValidate(t *testing.T) {
	in, gt := corev1.NodeSelectorOpIn, corev1.NodeSelectorOpGt
	require := func(r ...Requirement) NodeClaimTemplate {
		return NodeClaimTemplate{Spec: NodeClaimTemplateSpec{Requirements: r}}
	}
	label := func(key, value string) NodeClaimTemplate {
		return NodeClaimTemplate{ObjectMeta: ObjectMeta{Labels: map[string]string{key: value}}}
	}
	taint := func(t ...corev1.Taint) NodeClaimTemplate {
		return NodeClaimTemplate{Spec: NodeClaimTemplateSpec{Taints: t}}
	}
	tests := map[string]struct {
		template NodeClaimTemplate
		// want are the starts of the faults, in order.
		want []string
	}{
		"an empty template is valid":                 {},
		"a label is valid":                           {template: label("example.com/team", "a")},
		"the NodePool's label cannot be set":         {template: label(NodePoolLabelKey, "a"), want: []string{"spec.template.metadata.labels[karpenter.sh/nodepool]: Forbidden"}},
		"the capacity type can be set":               {template: label(CapacityTypeLabelKey, "spot")},
		"the hostname cannot be set":                 {template: label(corev1.LabelHostname, "a"), want: []string{"spec.template.metadata.labels[kubernetes.io/hostname]: Forbidden"}},
		"the reserved domain cannot be used":         {template: label("karpenter.sh/other", "a"), want: []string{"spec.template.metadata.labels[karpenter.sh/other]: Forbidden"}},
		"nor its subdomains":                         {template: label("a.karpenter.sh/other", "a"), want: []string{"spec.template.metadata.labels[a.karpenter.sh/other]: Forbidden"}},
		"a domain that only ends alike is another":   {template: label("notkarpenter.sh/other", "a")},
		"a label key is a qualified name":            {template: label("my team", "a"), want: []string{"spec.template.metadata.labels[my team]: Invalid"}},
		"a label value has no spaces":                {template: label("team", "a b"), want: []string{"spec.template.metadata.labels[team]: Invalid"}},
		"other labels of Kubernetes can be used":     {template: label("node.kubernetes.io/other", "a")},
		"a taint is valid":                           {template: taint(corev1.Taint{Key: "a", Value: "b", Effect: corev1.TaintEffectNoExecute})},
		"a taint without an effect is valid":         {template: taint(corev1.Taint{Key: "a"})},
		"a taint needs a key":                        {template: taint(corev1.Taint{Effect: corev1.TaintEffectNoExecute}), want: []string{"spec.template.spec.taints[0].key: Required"}},
		"a taint's key is a qualified name":          {template: taint(corev1.Taint{Key: "a b"}), want: []string{"spec.template.spec.taints[0].key: Invalid"}},
		"a taint's value is a qualified name":        {template: taint(corev1.Taint{Key: "a", Value: "b c"}), want: []string{"spec.template.spec.taints[0].value: Invalid"}},
		"a taint's effect is a known one":            {template: taint(corev1.Taint{Key: "a", Effect: "No"}), want: []string{"spec.template.spec.taints[0].effect: Unsupported"}},
		"two taints differ in key or effect":         {template: taint(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}, corev1.Taint{Key: "a", Value: "v", Effect: corev1.TaintEffectNoExecute}), want: []string{"spec.template.spec.taints[1]: Duplicate"}},
		"one taint may have two effects":             {template: taint(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}, corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule})},
		"startup taints count among the taints":      {template: NodeClaimTemplate{Spec: NodeClaimTemplateSpec{Taints: []corev1.Taint{{Key: "a"}}, StartupTaints: []corev1.Taint{{Key: "a"}}}}, want: []string{"spec.template.spec.startupTaints[0]: Duplicate"}},
		"a requirement is valid":                     {template: require(Requirement{Key: "a", Operator: in, Values: []string{"b"}})},
		"a requirement's old key is normalized":      {template: require(Requirement{Key: "beta.kubernetes.io/arch", Operator: in, Values: []string{"amd64"}})},
		"no requirement on the NodePool":             {template: require(Requirement{Key: NodePoolLabelKey, Operator: in, Values: []string{"a"}}), want: []string{"spec.template.spec.requirements[0].key: Forbidden"}},
		"no requirement on the hostname":             {template: require(Requirement{Key: corev1.LabelHostname, Operator: in, Values: []string{"a"}}), want: []string{"spec.template.spec.requirements[0].key: Forbidden"}},
		"an operator is a known one":                 {template: require(Requirement{Key: "a", Operator: "Like"}), want: []string{"spec.template.spec.requirements[0].operator: Unsupported"}},
		"a requirement's key is a qualified name":    {template: require(Requirement{Key: "a b", Operator: corev1.NodeSelectorOpExists}), want: []string{"spec.template.spec.requirements[0].key: Invalid"}},
		"a requirement's values are label values":    {template: require(Requirement{Key: "a", Operator: in, Values: []string{"b", "c d"}}), want: []string{"spec.template.spec.requirements[0].values[1]: Invalid"}},
		"In needs a value":                           {template: require(Requirement{Key: "a", Operator: in}), want: []string{"spec.template.spec.requirements[0].values: Required"}},
		"NotIn needs none":                           {template: require(Requirement{Key: "a", Operator: corev1.NodeSelectorOpNotIn})},
		"In has at least minValues values":           {template: require(Requirement{Key: "a", Operator: in, Values: []string{"b"}, MinValues: new(2)}), want: []string{"spec.template.spec.requirements[0].values: Invalid"}},
		"Exists has any minValues":                   {template: require(Requirement{Key: "a", Operator: corev1.NodeSelectorOpExists, MinValues: new(2)})},
		"Gt has an integer":                          {template: require(Requirement{Key: "a", Operator: gt, Values: []string{"4"}})},
		"Gt has not two":                             {template: require(Requirement{Key: "a", Operator: gt, Values: []string{"4", "5"}}), want: []string{"spec.template.spec.requirements[0].values: Invalid"}},
		"Gt has no word":                             {template: require(Requirement{Key: "a", Operator: gt, Values: []string{"x"}}), want: []string{"spec.template.spec.requirements[0].values[0]: Invalid"}},
		"Lte has no negative integer":                {template: require(Requirement{Key: "a", Operator: NodeSelectorOpLte, Values: []string{"-4"}}), want: []string{"spec.template.spec.requirements[0].values[0]: Invalid", "spec.template.spec.requirements[0].values[0]: Invalid"}},
		"one known capacity type is enough":          {template: require(Requirement{Key: CapacityTypeLabelKey, Operator: in, Values: []string{"spot", "cheap"}})},
		"no known capacity type is a fault":          {template: require(Requirement{Key: CapacityTypeLabelKey, Operator: in, Values: []string{"cheap"}}), want: []string{"spec.template.spec.requirements[0].values: Invalid"}},
		"minValues counts known capacity types only": {template: require(Requirement{Key: CapacityTypeLabelKey, Operator: in, Values: []string{"spot", "cheap"}, MinValues: new(2)}), want: []string{"spec.template.spec.requirements[0].values: Invalid"}},
		"NotIn may name unknown capacity types":      {template: require(Requirement{Key: CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"cheap"}})},
		"all faults are reported at once": {
			template: NodeClaimTemplate{
				ObjectMeta: ObjectMeta{Labels: map[string]string{"z z": "a", "a a": "a"}},
				Spec: NodeClaimTemplateSpec{
					Taints:       []corev1.Taint{{Key: "a", Effect: "No"}},
					Requirements: []Requirement{{Key: "a", Operator: in}, {Key: "b", Operator: "Like"}},
				},
			},
			want: []string{
				"spec.template.metadata.labels[a a]: Invalid", "spec.template.metadata.labels[z z]: Invalid",
				"spec.template.spec.taints[0].effect: Unsupported",
				"spec.template.spec.requirements[0].values: Required", "spec.template.spec.requirements[1].operator: Unsupported",
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pool := &NodePool{Spec: NodePoolSpec{Template: tt.template}}
			errs := pool.ValidateWith(DefaultLabelRules())
			if len(errs) != len(tt.want) {
				t.Fatalf("faults %v, want %v", errs, tt.want)
			}
			for i, err := range errs {
				if !strings.HasPrefix(err.Error(), tt.want[i]) {
					t.Errorf("fault %d is %q, want it to start with %q", i, err, tt.want[i])
				}
			}
			if err := pool.RuntimeValidate(); (err == nil) != (len(tt.want) == 0) {
				t.Errorf("RuntimeValidate() = %v, want faults %v", err, tt.want)
			}
		})
	}
}

func TestLabelRules_of_a_cloud(t *testing.T) {
	rules := DefaultLabelRules()
	rules.RestrictedDomains.Insert("cloud.example")
	rules.WellKnown.Insert("cloud.example/family")
	rules.Aliases["old.example/zone"] = corev1.LabelTopologyZone
	rules.ValueAliases[corev1.LabelTopologyZone] = map[string]string{"": "0"}

	pool := &NodePool{}
	pool.Spec.Template.Labels = map[string]string{"cloud.example/family": "m7g", "cloud.example/other": "x"}
	errs := pool.ValidateWith(rules)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "allowed of it: cloud.example/family") {
		t.Errorf("faults %v, want one that names the label that is allowed", errs)
	}
	if got := rules.NormalizeKey("old.example/zone"); got != corev1.LabelTopologyZone {
		t.Errorf("NormalizeKey() = %q", got)
	}
	if got := rules.NormalizeValue(corev1.LabelTopologyZone, ""); got != "0" {
		t.Errorf(`NormalizeValue("") = %q, want "0"`, got)
	}
	if got := rules.NormalizeValue(corev1.LabelTopologyZone, "b"); got != "b" {
		t.Errorf(`NormalizeValue("b") = %q, want "b"`, got)
	}

	clone := rules.Clone()
	if diff := cmp.Diff(rules, clone); diff != "" {
		t.Errorf("Clone() (-want +got):\n%s", diff)
	}
	clone.WellKnown.Insert("x")
	clone.KnownValues[CapacityTypeLabelKey].Insert("x")
	clone.Aliases["x"] = "y"
	clone.ValueAliases[corev1.LabelTopologyZone]["x"] = "y"
	if rules.WellKnown.Has("x") || rules.KnownValues[CapacityTypeLabelKey].Has("x") || rules.Aliases["x"] != "" || rules.ValueAliases[corev1.LabelTopologyZone]["x"] != "" {
		t.Error("a change of the clone shows in the original")
	}
	if DefaultLabelRules().WellKnown.Has("cloud.example/family") {
		t.Error("a change of some rules shows in the default ones")
	}
}

func TestUnknownValues(t *testing.T) {
	r := Requirement{Key: CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"cheap", "spot", "free"}}
	if diff := cmp.Diff([]string{"cheap", "free"}, UnknownValues(r, DefaultLabelRules())); diff != "" {
		t.Errorf("UnknownValues() (-want +got):\n%s", diff)
	}
	r.Key = corev1.LabelTopologyZone
	if got := UnknownValues(r, DefaultLabelRules()); got != nil {
		t.Errorf("UnknownValues() of a label with any value = %v, want none", got)
	}
	if got := UnknownValues(r, LabelRules{KnownValues: map[string]sets.Set[string]{r.Key: sets.New("a")}}); got != nil {
		t.Errorf("UnknownValues() of a label that is not well known = %v, want none", got)
	}
}

func TestIsKnownEphemeralTaint(t *testing.T) {
	tests := map[string]struct {
		taint corev1.Taint
		want  bool
	}{
		"a node that is not ready":             {corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}, true},
		"with any value":                       {corev1.Taint{Key: corev1.TaintNodeNotReady, Value: "x", Effect: corev1.TaintEffectNoSchedule}, true},
		"a node out of reach":                  {corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}, true},
		"a node out of reach, evicting":        {corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}, false},
		"a node that is not registered":        {UnregisteredTaint(), true},
		"a node that the cloud has not set up": {corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}, true},
		"a readiness gate":                     {corev1.Taint{Key: "readiness.k8s.io/network", Effect: corev1.TaintEffectNoSchedule}, true},
		"a node that is being disrupted":       {DisruptedTaint(), false},
		"a node that is being rebooted":        {RebootingTaint(), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := IsKnownEphemeralTaint(tt.taint); got != tt.want {
				t.Errorf("IsKnownEphemeralTaint() = %t, want %t", got, tt.want)
			}
		})
	}
}
