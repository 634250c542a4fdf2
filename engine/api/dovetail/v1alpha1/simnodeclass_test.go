package v1alpha1

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func TestSimNodeClass_RuntimeValidate(t *testing.T) {
	tests := map[string]struct {
		spec string
		want []string
	}{
		"nothing":           {spec: "{}"},
		"two catalogues":    {spec: "{catalog: {builtin: ec2, configMapRef: {namespace: a, name: b}}}", want: []string{"spec.catalog: Invalid"}},
		"odd catalogues":    {spec: "{catalog: {builtin: gce}}", want: []string{"spec.catalog.builtin: Unsupported"}},
		"a nameless file":   {spec: "{catalog: {configMapRef: {namespace: a}}}", want: []string{"configMapRef.name: Invalid"}},
		"odd patterns":      {spec: "{instanceTypes: ['m5.['], capacity: [{instanceTypes: ['']}]}", want: []string{"spec.instanceTypes[0]: Invalid", "spec.capacity[0].instanceTypes[0]: Invalid"}},
		"odd nodes":         {spec: "{labels: {karpenter.sh/a: b, x: '#'}, taints: [{key: '', effect: No}]}", want: []string{"spec.labels[karpenter.sh/a]: Forbidden", "spec.labels[x]: Invalid", "spec.taints[0].key: Invalid", "spec.taints[0].key: Invalid", "spec.taints[0].effect: Unsupported"}},
		"odd latencies":     {spec: "{launchLatency: {base: -1s}, terminateLatency: {jitter: -1s}, unavailableFor: -1s}", want: []string{"spec.launchLatency.base", "spec.terminateLatency.jitter", "spec.unavailableFor"}},
		"odd capacity":      {spec: "{capacity: [{available: -1, from: then, until: '2026-01-01', capacityTypes: [free]}]}", want: []string{"capacity[0].capacityTypes[0]", "capacity[0].from", "capacity[0].until", "capacity[0].available"}},
		"odd prices":        {spec: "{prices: [{}, {price: x}, {percent: 0}, {price: '1', percent: 2}, {price: '1', at: -5m}]}", want: []string{"prices[0]: Invalid", "prices[1].price", "prices[2].percent", "prices[3]: Invalid", "prices[4].at"}},
		"odd interruptions": {spec: "{interruptions: [{kind: Fire}, {at: 1m, after: 1m}, {percent: 101}, {after: -1s}, {warning: -1s}]}", want: []string{"interruptions[0].kind", "interruptions[1]: Invalid", "interruptions[2].percent", "interruptions[3].after", "interruptions[4].warning"}},
		"odd failures":      {spec: "{failures: [{}, {kind: LateNotFound}, {kind: NeverRegisters, for: 1s}, {kind: NeverRegisters, message: x}, {kind: LaunchError, reason: so what}]}", want: []string{"failures[0].kind: Required", "failures[1].for", "failures[2].for", "failures[3].reason: Forbidden", "failures[4].reason: Invalid"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var c SimNodeClass
			if err := yaml.UnmarshalStrict([]byte("spec: "+tt.spec), &c); err != nil {
				t.Fatal(err)
			}
			errs := c.Validate()
			if len(errs) != len(tt.want) {
				t.Fatalf("Validate() = %v, want %d faults", errs, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(errs[i].Error(), want) {
					t.Errorf("fault %d is %q, want part %q", i, errs[i], want)
				}
			}
			if got := c.RuntimeValidate(); (got == nil) != (len(tt.want) == 0) {
				t.Errorf("RuntimeValidate() = %v", got)
			}
		})
	}
}

func TestSimTime_Resolve(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	tests := map[SimTime]struct {
		want      time.Time
		wantError bool
	}{
		"":                          {},
		"90s":                       {want: created.Add(90 * time.Second)},
		"1h30m":                     {want: created.Add(90 * time.Minute)},
		"2026-01-02T04:00:00+01:00": {want: created},
		"2026-01-02T03:00:00.5Z":    {want: created.Add(500 * time.Millisecond)},
		"-5m":                       {wantError: true},
		"tomorrow":                  {wantError: true},
	}
	for in, tt := range tests {
		got, err := in.Resolve(created)
		if !got.Equal(tt.want) || (err != nil) != tt.wantError {
			t.Errorf("Resolve(%q) = %v, %v, want %v, error %v", in, got, err, tt.want, tt.wantError)
		}
	}
}

func TestSimSelector_Matches(t *testing.T) {
	tests := map[string]struct {
		selector SimSelector
		want     []string
	}{
		"nothing named": {want: []string{"m5.large/a/spot", "m5.xlarge/b/on-demand", "c5.large/a/on-demand"}},
		"a name":        {selector: SimSelector{InstanceTypes: []string{"m5.large"}}, want: []string{"m5.large/a/spot"}},
		"wildcards":     {selector: SimSelector{InstanceTypes: []string{"m5.*", "x?"}}, want: []string{"m5.large/a/spot", "m5.xlarge/b/on-demand"}},
		"all three":     {selector: SimSelector{InstanceTypes: []string{"*.large"}, Zones: []string{"a", "b"}, CapacityTypes: []string{"on-demand"}}, want: []string{"c5.large/a/on-demand"}},
	}
	for name, tt := range tests {
		var got []string
		for _, offering := range []string{"m5.large/a/spot", "m5.xlarge/b/on-demand", "c5.large/a/on-demand"} {
			parts := strings.Split(offering, "/")
			if tt.selector.Matches(parts[0], parts[1], parts[2]) {
				got = append(got, offering)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: selects %v, want %v", name, got, tt.want)
		}
	}
}
