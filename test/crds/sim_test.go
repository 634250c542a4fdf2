package crds

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// TestSimNodeClasses puts SimNodeClasses to an API server that has our CRD. What it
// accepts our own validation accepts too, but for what only that can see.
func TestSimNodeClasses(t *testing.T) {
	data, err := crds.Read("dovetail.sh", "simnodeclasses")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, data)
	tests := map[string]struct {
		spec      string
		wantError string
		// ours is a part of what only our own validation says.
		ours string
	}{
		"nothing": {spec: "{}"},
		"everything": {spec: `{catalog: {configMapRef: {namespace: a, name: b, key: c.json.gz}}, instanceTypes: ["m5.*"], zones: [a],
			labels: {example.com/a: b}, taints: [{key: a, effect: NoSchedule}], unavailableFor: 1m,
			launchLatency: {base: 1.5s, jitter: 500ms}, registrationLatency: {base: 30s}, terminateLatency: {jitter: 1m},
			capacity: [{zones: [a], capacityTypes: [spot], from: 5m, until: '2026-01-02T03:04:05Z', available: 3, known: true}],
			prices: [{instanceTypes: [m5.large], at: 1h, price: '0.2'}, {percent: 150}],
			interruptions: [{claims: [web-1], kind: ScheduledChange, warning: 10m}, {at: 2m, percent: 5}, {after: 30s}],
			failures: [{kind: LaunchError, reason: Quota, message: sorry, percent: 10}, {kind: NeverRegisters}, {kind: WrongProviderID}, {kind: LateNotFound, for: 1m}]}`},
		"an unknown catalogue":           {spec: "{catalog: {builtin: gce}}", wantError: "Unsupported value"},
		"two catalogues":                 {spec: "{catalog: {builtin: ec2, configMapRef: {namespace: a, name: b}}}", wantError: "at most one of"},
		"a type that is no pattern":      {spec: "{instanceTypes: ['m5.[']}", ours: "spec.instanceTypes[0]"},
		"a label of Karpenter's":         {spec: "{labels: {karpenter.sh/nodepool: a}}", wantError: "set at registration"},
		"a label that is none":           {spec: "{labels: {a/b/c: x}}", ours: "spec.labels[a/b/c]"},
		"a negative latency":             {spec: "{launchLatency: {base: -1s}}", wantError: "should match"},
		"a number for a latency":         {spec: "{launchLatency: {base: 3}}", wantError: "must be of type string"},
		"negative capacity":              {spec: "{capacity: [{available: -1}]}", wantError: "greater than or equal to 0"},
		"a time that is none":            {spec: "{capacity: [{from: tomorrow}]}", wantError: "should match"},
		"a day that is none":             {spec: "{capacity: [{from: '2026-02-31T00:00:00Z'}]}", ours: "spec.capacity[0].from"},
		"a price and a percentage":       {spec: "{prices: [{price: '1', percent: 5}]}", wantError: "exactly one of"},
		"a change of nothing":            {spec: "{prices: [{at: 1h}]}", wantError: "exactly one of"},
		"a price that is a word":         {spec: "{prices: [{price: cheap}]}", wantError: "should match"},
		"two times of an interruption":   {spec: "{interruptions: [{at: 1m, after: 1m}]}", wantError: "at most one of"},
		"an unknown interruption":        {spec: "{interruptions: [{kind: Fire}]}", wantError: "Unsupported value"},
		"more than all":                  {spec: "{interruptions: [{percent: 101}]}", wantError: "less than or equal to 100"},
		"a failure of no kind":           {spec: "{failures: [{percent: 1}]}", wantError: "kind: Required"},
		"a reason of another failure":    {spec: "{failures: [{kind: NeverRegisters, reason: A}]}", wantError: "for kind LaunchError"},
		"a late end without its length":  {spec: "{failures: [{kind: LateNotFound}]}", wantError: "for is required"},
		"a length of another failure":    {spec: "{failures: [{kind: NeverRegisters, for: 1m}]}", wantError: "for is required"},
		"an unknown capacity type":       {spec: "{capacity: [{capacityTypes: [free]}]}", wantError: "Unsupported value"},
		"a taint with an unknown effect": {spec: "{taints: [{key: a, effect: Bite}]}", ours: "spec.taints[0].effect"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			object := parse(t, "{apiVersion: dovetail.sh/v1alpha1, kind: SimNodeClass, metadata: {name: a, uid: u, resourceVersion: '1'}, spec: "+tt.spec+"}")
			stored, err := s.create(t.Context(), object)
			if tt.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantError) {
					t.Errorf("error %v, want part %q", err, tt.wantError)
				}
				return
			}
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			text, err := yaml.Marshal(stored)
			if err != nil {
				t.Fatal(err)
			}
			var class v1alpha1.SimNodeClass
			if err := yaml.UnmarshalStrict(text, &class); err != nil {
				t.Fatalf("read what is stored: %v", err)
			}
			err = class.RuntimeValidate()
			if (err == nil) != (tt.ours == "") || err != nil && !strings.Contains(err.Error(), tt.ours) {
				t.Errorf("RuntimeValidate() = %v, want part %q", err, tt.ours)
			}
			// Nothing of the object gets lost in the Go types.
			again, err := yaml.Marshal(&class)
			if err != nil {
				t.Fatal(err)
			}
			kept, err := s.create(t.Context(), parse(t, string(again)))
			if err != nil {
				t.Errorf("what our types write is refused: %v", err)
			}
			if text, err = yaml.Marshal(kept); err != nil {
				t.Fatal(err)
			}
			var twice v1alpha1.SimNodeClass
			if err := yaml.UnmarshalStrict(text, &twice); err != nil {
				t.Fatalf("read what is stored again: %v", err)
			}
			if diff := cmp.Diff(class.Spec, twice.Spec); diff != "" {
				t.Errorf("spec through our types (-stored +stored again):\n%s", diff)
			}
		})
	}
}

// TestSimInstances holds the CRD against a machine as the product writes it.
func TestSimInstances(t *testing.T) {
	data, err := crds.Read("dovetail.sh", "siminstances")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, data)
	const base = `{apiVersion: dovetail.sh/v1alpha1, kind: SimInstance, metadata: {name: i-1, uid: u, resourceVersion: '1'}, spec: {
		claim: {name: web-1, uid: c}, nodeClass: default, instanceType: m5.large, zone: a, capacityType: spot, price: '0.1',
		providerID: 'sim:///a/i-1', labels: {a: b}, capacity: {cpu: 2}, allocatable: {cpu: 1900m}, taints: [{key: a, effect: NoSchedule}],
		launchTime: '2026-01-01T00:00:00.000001Z', launchLatency: 2s}}`
	if _, err := s.create(t.Context(), parse(t, base)); err != nil {
		t.Errorf("create: %v", err)
	}
	changed := merge(parse(t, base), parse(t, "{spec: {zone: b}}"))
	if _, err := s.update(t.Context(), parse(t, base), changed); err == nil || !strings.Contains(err.Error(), "spec is immutable") {
		t.Errorf("update of the spec: %v, want that it is immutable", err)
	}
	var in v1alpha1.SimInstance
	if err := yaml.UnmarshalStrict([]byte(base), &in); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(&in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.create(t.Context(), parse(t, string(text))); err != nil {
		t.Errorf("create what our types write: %v", err)
	}
	running := merge(parse(t, base), parse(t, "{status: {phase: Running, nodeName: web-1, runningTime: '2026-01-01T00:00:02.000000Z', interruptions: [{kind: SpotInterruption, time: '2026-01-01T00:00:02.000000Z', end: '2026-01-01T00:02:02.000000Z'}]}}"))
	if _, err := s.updateStatus(t.Context(), parse(t, base), running); err != nil {
		t.Errorf("update of the status: %v", err)
	}
}
