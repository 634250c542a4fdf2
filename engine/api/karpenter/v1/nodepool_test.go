package v1

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func template() NodeClaimTemplate {
	return NodeClaimTemplate{
		ObjectMeta: ObjectMeta{Labels: map[string]string{"a": "1", "b": "2"}, Annotations: map[string]string{"c": "3"}},
		Spec: NodeClaimTemplateSpec{
			Taints:                 []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}, {Key: "y", Effect: corev1.TaintEffectNoExecute}},
			StartupTaints:          []corev1.Taint{{Key: "z", Effect: corev1.TaintEffectNoSchedule}},
			Requirements:           []Requirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}},
			NodeClassRef:           &NodeClassReference{Group: "g", Kind: "K", Name: "n"},
			TerminationGracePeriod: &metav1.Duration{Duration: time.Hour},
			ExpireAfter:            DurationOf(720 * time.Hour),
		},
	}
}

func TestNodePool_Hash(t *testing.T) {
	tests := map[string]struct {
		change func(*NodePool)
		same   bool
	}{
		"the same template":                {func(*NodePool) {}, true},
		"another label value":              {func(p *NodePool) { p.Spec.Template.Labels["a"] = "9" }, false},
		"another label":                    {func(p *NodePool) { p.Spec.Template.Labels["d"] = "" }, false},
		"a label moved to the annotations": {func(p *NodePool) { delete(p.Spec.Template.Labels, "a"); p.Spec.Template.Annotations["a"] = "1" }, false},
		"another annotation":               {func(p *NodePool) { p.Spec.Template.Annotations["c"] = "4" }, false},
		"taints in another order":          {func(p *NodePool) { ts := p.Spec.Template.Spec.Taints; ts[0], ts[1] = ts[1], ts[0] }, true},
		"a taint with a value":             {func(p *NodePool) { p.Spec.Template.Spec.Taints[0].Value = "v" }, false},
		"a taint with another effect":      {func(p *NodePool) { p.Spec.Template.Spec.Taints[0].Effect = corev1.TaintEffectNoExecute }, false},
		"a taint with a time":              {func(p *NodePool) { p.Spec.Template.Spec.Taints[0].TimeAdded = &metav1.Time{Time: time.Unix(1, 0)} }, true},
		"a taint moved to the startup": {func(p *NodePool) {
			s := &p.Spec.Template.Spec
			s.StartupTaints = append(s.StartupTaints, s.Taints[1])
			s.Taints = s.Taints[:1]
		}, false},
		"another NodeClass":          {func(p *NodePool) { p.Spec.Template.Spec.NodeClassRef.Name = "m" }, false},
		"no NodeClass":               {func(p *NodePool) { p.Spec.Template.Spec.NodeClassRef = nil }, false},
		"another grace period":       {func(p *NodePool) { p.Spec.Template.Spec.TerminationGracePeriod.Duration = time.Minute }, false},
		"no grace period":            {func(p *NodePool) { p.Spec.Template.Spec.TerminationGracePeriod = nil }, false},
		"expiry never":               {func(p *NodePool) { p.Spec.Template.Spec.ExpireAfter = NillableDuration{} }, false},
		"the same expiry in minutes": {func(p *NodePool) { p.Spec.Template.Spec.ExpireAfter.Text = "43200m" }, true},
		"other requirements":         {func(p *NodePool) { p.Spec.Template.Spec.Requirements = nil }, true},
		"another weight":             {func(p *NodePool) { p.Spec.Weight = new(int32(5)) }, true},
		"another disruption":         {func(p *NodePool) { p.Spec.Disruption.ConsolidationPolicy = "WhenEmpty" }, true},
		"another name":               {func(p *NodePool) { p.Name = "other" }, true},
		"no startup taints":          {func(p *NodePool) { p.Spec.Template.Spec.StartupTaints = []corev1.Taint{} }, false},
	}
	original := (&NodePool{Spec: NodePoolSpec{Template: template()}}).Hash()
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pool := &NodePool{Spec: NodePoolSpec{Template: template()}}
			tt.change(pool)
			if got := pool.Hash(); (got == original) != tt.same {
				t.Errorf("hash %s against %s, want the same: %t", got, original, tt.same)
			}
		})
	}
	empty := &NodePool{}
	empty.Spec.Template.Labels = map[string]string{}
	empty.Spec.Template.Spec.Taints = []corev1.Taint{}
	empty.Spec.Template.Spec.NodeClassRef = &NodeClassReference{}
	if got, want := empty.Hash(), (&NodePool{}).Hash(); got != want {
		t.Errorf("hash of empty fields %s, of absent ones %s, want the same", got, want)
	}
	// Stored hashes outlive the program: one that changes needs another version.
	if want := "8ac53a606465e8fa"; original != want {
		t.Errorf("hash %s, want %s: change NodePoolHashVersion with it", original, want)
	}
}

func TestNillableDuration(t *testing.T) {
	tests := map[string]struct {
		text string
		want time.Duration
		// never and wantErr exclude a duration.
		never, wantErr bool
	}{
		"hours":                 {text: "720h", want: 720 * time.Hour},
		"minutes stay minutes":  {text: "90m", want: 90 * time.Minute},
		"a mixture":             {text: "1h0m30s", want: time.Hour + 30*time.Second},
		"never":                 {text: "Never", never: true},
		"nothing at all":        {text: "", wantErr: true},
		"a number without unit": {text: "30", wantErr: true},
		"days":                  {text: "30d", wantErr: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in, err := json.Marshal(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			var d NillableDuration
			if err := json.Unmarshal(in, &d); (err != nil) != tt.wantErr {
				t.Fatalf("error %v, want one: %t", err, tt.wantErr)
			}
			if tt.wantErr {
				return
			}
			got, ok := d.Value()
			if ok == tt.never || got != tt.want || d.IsNever() != tt.never || d.IsZero() {
				t.Errorf("Value() = %v, %t; IsNever() = %t; want %v, never %t", got, ok, d.IsNever(), tt.want, tt.never)
			}
			out, err := json.Marshal(d)
			if err != nil || string(out) != string(in) {
				t.Errorf("written back as %s (%v), want %s", out, err, in)
			}
		})
	}

	t.Run("a text that no longer holds is not written", func(t *testing.T) {
		d, err := ParseNillableDuration("90m")
		if err != nil {
			t.Fatal(err)
		}
		*d.Duration = 2 * time.Hour
		if got := d.String(); got != "2h0m0s" {
			t.Errorf("String() = %q, want 2h0m0s", got)
		}
		d.Duration = nil
		if got := d.String(); got != Never {
			t.Errorf("String() = %q, want %s", got, Never)
		}
	})
	t.Run("spelling does not count in a comparison", func(t *testing.T) {
		a, b := DurationOf(time.Hour), NillableDuration{Duration: new(time.Hour), Text: "60m"}
		if !a.Equal(b) || a.Equal(NillableDuration{}) || !(NillableDuration{}).Equal(NillableDuration{Text: Never}) {
			t.Error("Equal() compares something else than the duration")
		}
	})
	t.Run("a number is refused", func(t *testing.T) {
		var d NillableDuration
		if err := json.Unmarshal([]byte("720"), &d); err == nil {
			t.Error("720 was read, want an error")
		}
	})
	t.Run("null is absent", func(t *testing.T) {
		var d NillableDuration
		if err := json.Unmarshal([]byte("null"), &d); err != nil || !d.IsZero() {
			t.Errorf("null was read as %v (%v), want it absent", d, err)
		}
	})
}

func TestNodePool_SetDefaults(t *testing.T) {
	pool := &NodePool{}
	if err := json.Unmarshal([]byte(`{"spec":{"template":{"spec":{}}}}`), pool); err != nil {
		t.Fatal(err)
	}
	pool.SetDefaults()
	want := &NodePool{}
	want.Spec.Template.Spec.ExpireAfter = NillableDuration{Duration: new(720 * time.Hour), Text: "720h"}
	want.Spec.Disruption = Disruption{
		ConsolidateAfter:    NillableDuration{Duration: new(time.Duration(0)), Text: "0s"},
		ConsolidationPolicy: ConsolidationPolicyWhenEmptyOrUnderutilized,
		Budgets:             []Budget{{Nodes: "10%"}},
	}
	if diff := cmp.Diff(want, pool); diff != "" {
		t.Errorf("SetDefaults() of nothing (-want +got):\n%s", diff)
	}

	set := `{"metadata":{},"spec":{"template":{"metadata":{},"spec":{"requirements":null,"nodeClassRef":null,"expireAfter":"Never"}},` +
		`"disruption":{"consolidateAfter":"Never","consolidationPolicy":"WhenEmpty","budgets":[]}},"status":{}}`
	pool = &NodePool{}
	if err := json.Unmarshal([]byte(set), pool); err != nil {
		t.Fatal(err)
	}
	pool.SetDefaults()
	got, err := json.Marshal(pool)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(set, string(got)); diff != "" {
		t.Errorf("SetDefaults() of a full object (-want +got):\n%s", diff)
	}

	claim := &NodeClaim{}
	claim.SetDefaults()
	if got := claim.Spec.ExpireAfter.String(); got != "720h" {
		t.Errorf("a NodeClaim expires after %s, want 720h", got)
	}
}

func TestBudget_Allowed(t *testing.T) {
	tests := map[string]struct {
		budget  string
		nodes   int
		want    int
		wantErr bool
	}{
		"a number":                        {"5", 3, 5, false},
		"zero":                            {"0", 3, 0, false},
		"a percentage":                    {"20%", 50, 10, false},
		"a percentage is rounded up":      {"1%", 3, 1, false},
		"no percent of any number":        {"0%", 3, 0, false},
		"a percentage of nothing":         {"10%", 0, 0, false},
		"all":                             {"100%", 7, 7, false},
		"more than all is malformed":      {"101%", 7, 0, true},
		"a negative number is malformed":  {"-1", 7, 0, true},
		"a sign is malformed":             {"+1", 7, 0, true},
		"a word is malformed":             {"few", 7, 0, true},
		"nothing is malformed":            {"", 7, 0, true},
		"a percent sign alone too":        {"%", 7, 0, true},
		"a number beyond 32 bits as well": {"9999999999", 7, 0, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := (&Budget{Nodes: tt.budget}).Allowed(tt.nodes)
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("Allowed(%d) of %q = %d, %v; want %d, error %t", tt.nodes, tt.budget, got, err, tt.want, tt.wantErr)
			}
		})
	}
}

func TestBudget_AppliesTo(t *testing.T) {
	if !(&Budget{}).AppliesTo(DisruptionReasonEmpty) {
		t.Error("a budget without reasons does not apply")
	}
	b := &Budget{Reasons: []DisruptionReason{DisruptionReasonDrifted}}
	if b.AppliesTo(DisruptionReasonEmpty) || !b.AppliesTo(DisruptionReasonDrifted) {
		t.Error("a budget applies to other reasons than its own")
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"NodePool", "NodePoolList", "NodeClaim", "NodeClaimList"} {
		object, err := scheme.New(GroupVersion.WithKind(kind))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if kinds, _, err := scheme.ObjectKinds(object); err != nil || kinds[0].Kind != kind {
			t.Errorf("%s is known as %v (%v)", kind, kinds, err)
		}
	}
}

func TestNodeClassReference_LabelKey(t *testing.T) {
	ref := &NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
	if got, want := ref.LabelKey(), "karpenter.k8s.aws/ec2nodeclass"; got != want {
		t.Errorf("LabelKey() = %q, want %q", got, want)
	}
}
