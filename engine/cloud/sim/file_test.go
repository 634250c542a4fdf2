package sim

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// show writes a catalogue as text: a line per type, one per offering.
func show(c *catalog.Catalog) string {
	var b strings.Builder
	for _, it := range c.Types() {
		fmt.Fprintf(&b, "%s %s: cpu %d/%d memory %d/%d pods %d", it.Name, it.Requirements, it.Allocatable["cpu"], it.Capacity["cpu"],
			it.Allocatable["memory"]>>20, it.Capacity["memory"]>>20, it.Allocatable["pods"])
		for _, name := range it.Capacity.Names() {
			if strings.Contains(string(name), "/") {
				fmt.Fprintf(&b, " %s %d/%d", name, it.Allocatable[name], it.Capacity[name])
			}
		}
		if len(it.AttachLimits) > 0 {
			fmt.Fprintf(&b, " attach %v", it.AttachLimits)
		}
		b.WriteByte('\n')
		for _, o := range it.Offerings {
			fmt.Fprintf(&b, "  %q %s %d", o.Zone, o.CapacityType, o.Price)
			if o.Unavailable {
				b.WriteString(" unavailable")
			}
			if o.ReservationID != "" {
				fmt.Fprintf(&b, " reservation %s×%d", o.ReservationID, o.ReservationCapacity)
			}
			if len(o.Requirements) > 0 {
				fmt.Fprintf(&b, " %s", o.Requirements)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func texts(errs []error) string {
	var b strings.Builder
	for _, err := range errs {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}

// readme returns the example of a catalogue file in README.md.
func readme(t testing.TB) string {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "## A catalogue file\n")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	example, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("README.md has no example")
	}
	return example
}

func TestReadFile(t *testing.T) {
	tests := map[string]struct{ in, want, errs string }{
		"the example of the README": {
			in: readme(t),
			want: `large kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [large]: cpu 63000/64000 memory 512000/524288 pods 250 nvidia.com/gpu 2/2
  "rack-1" on-demand 3100000
  "rack-1" spot 1200000 unavailable
  "rack-2" on-demand 3100000
  "rack-2" spot 1200000 unavailable
small example.com/disk In [hdd ssd]; kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [small]: cpu 7800/8000 memory 31744/32768 pods 110 attach map[ebs.csi.aws.com:26]
  "rack-1" on-demand 210000
  "rack-1" reserved 0 reservation prepaid×4
  "rack-2" on-demand 210000
`,
		},
		"JSON, no zone, labels of an offering, a tiny price": {
			in: `{"instanceTypes": [{"name": "a", "labels": {"kubernetes.io/arch": "arm64", "n": 3}, "capacity": {"cpu": "1500m", "memory": 1073741824},
				"offerings": [{"price": "0.00000001", "labels": {"rack": ["1", "2"]}}]}]}`,
			want: `a kubernetes.io/arch In [arm64]; kubernetes.io/os In [linux]; n In [3]; node.kubernetes.io/instance-type In [a]: cpu 1500/1500 memory 1024/1024 pods 110
  "" on-demand 1 rack In [1 2]
`,
		},
		"everything wrong is reported, and the rest counts": {
			in: `
instanceTypes:
- {name: good, capacity: {cpu: 1}, offerings: [{zone: a, price: 1}, {zone: b, price: -1}, {zone: c}, {zone: d, price: cheap}, {zone: "no zone", price: 1}, {zone: a, price: 2}, {zone: e, capacityType: free, price: 1}]}
- {name: good, capacity: {cpu: 2}, offerings: [{zone: a, price: 1}]}
- {capacity: {cpu: 1}, offerings: [{price: 1}]}
- {name: quantities, capacity: {cpu: many, memory: -1Gi, pods: 1e999999999}, offerings: [{price: 1}]}
- {name: typo, capacity: {cpu: 1}, offerings: [{prise: 1}]}
- {name: shape, capacity: {cpu: 1}, offerings: {price: 1}}
- {name: overhead, capacity: {cpu: 1}, overhead: {cpu: 2}, offerings: [{price: 1}]}
- {name: more, capacity: {cpu: 1}, allocatable: {cpu: 2}, offerings: [{price: 1}]}
- {name: both, capacity: {cpu: 1}, overhead: {cpu: 100m}, allocatable: {cpu: 1}, offerings: [{price: 1}]}
- {name: labels, labels: {"a b": c, d: "e f", g: []}, capacity: {cpu: 1}, offerings: [{price: 1}]}
- {name: unpriced, capacity: {cpu: 1}, offerings: [{zone: a, price: 0}]}
- {name: none, capacity: {cpu: 1}}
- {name: reserved, capacity: {cpu: 1}, offerings: [{reservationID: r, price: 1}, {capacityType: reserved, reservationID: r, reservationCapacity: -1}, {zone: a, zones: [b], price: 1}, {zones: [c], price: 1}]}
- {name: drivers, capacity: {cpu: 1}, attachLimits: {d: -1}, offerings: [{price: 1}]}
- {name: nested, capacity: {cpu: {a: b}}, offerings: [{price: 1}]}
- just text
`,
			want: `good kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [good]: cpu 1000/1000 memory 0/0 pods 110
  "a" on-demand 1000000
reserved kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [reserved]: cpu 1000/1000 memory 0/0 pods 110
  "c" on-demand 1000000
`,
			errs: `f.yaml: instance type "good": offerings[1].price: -1: must not be negative
f.yaml: instance type "good": offerings[2].price: has no price
f.yaml: instance type "good": offerings[3].price: "cheap": must be a decimal number of US dollars per hour
f.yaml: instance type "good": offerings[4].zone: "no zone": must be a label value
f.yaml: instance type "good": offerings[6].capacityType: "free": must be on-demand, spot or reserved
f.yaml: instance type "#3": name: "": must be a label value that is not empty
f.yaml: instance type "quantities": capacity[cpu]: "many": must be a quantity such as 2, 500m or 16Gi
f.yaml: instance type "quantities": capacity[memory]: -1Gi: must not be negative
f.yaml: instance type "quantities": capacity[pods]: "1e999999999": must be a quantity such as 2, 500m or 16Gi
f.yaml: instance type "typo": field "prise": is unknown
f.yaml: instance type "shape": offerings: must be a list, not object
f.yaml: instance type "more": allocatable[cpu]: 2: must not be more than capacity
f.yaml: instance type "both": overhead: must not be set together with allocatable
f.yaml: instance type "labels": labels[a b]: must be a label key: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
f.yaml: instance type "labels": labels[d]: "e f": must be a label value: a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
f.yaml: instance type "labels": labels[g]: must have at least one value
f.yaml: instance type "unpriced": offerings[0].price: has no price
f.yaml: instance type "reserved": offerings[0].reservationID: must be set on reserved offerings only
f.yaml: instance type "reserved": offerings[1].reservationCapacity: -1: must not be negative
f.yaml: instance type "reserved": offerings[2].zones: must hold at least one zone, and not be set together with zone
f.yaml: instance type "nested": is a list or a map, must be a single value
f.yaml: instance type "#16": value: must be a map, not string
f.yaml: instance type "good": offerings: on-demand in zone "a" is there twice; the first one counts
f.yaml: instance type "good": is there twice; the first one counts
f.yaml: instance type "overhead": allocatable[cpu]: -1: must not be negative
f.yaml: instance type "unpriced": offerings: must have at least one that is usable
f.yaml: instance type "none": offerings: must have at least one that is usable
f.yaml: instance type "drivers": attachLimits[d]: -1: must not be negative
`,
		},
		"KWOK's file": {
			in: `[
	{"name": "m5.xlarge", "architecture": "x86_64", "operatingSystems": ["windows"], "resources": {"cpu": "4", "memory": "16Gi", "pods": "58"},
	 "offerings": [
		{"Price": 0.05, "Available": true, "Requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}, {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]},
		{"Price": 0.192, "Available": true, "Requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}, {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}]},
	{"name": "m5.xlarge", "architecture": "x86_64", "operatingSystems": ["linux"], "resources": {"cpu": "4", "memory": "16Gi", "pods": "58"},
	 "offerings": [
		{"Price": 0.192, "Available": true, "Requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}, {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]},
		{"Price": 0.05, "Available": true, "Requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}, {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}]},
	{"name": "m5.xlarge", "architecture": "arm64", "operatingSystems": ["linux"], "resources": {"cpu": "8", "memory": "16Gi"}, "offerings": [{"price": 1, "zone": "a"}]},
	{"name": "old", "architecture": "amd64", "operatingSystems": ["linux"], "resources": {"cpu": "1", "memory": "1Gi"},
	 "offerings": [{"capacityType": "on-demand", "zone": "a", "price": 1.624}, {"zone": "b", "price": 1.7, "Available": false}]},
	{"name": "more", "architecture": "aarch64", "operatingSystems": ["linux"], "resources": {"cpu": "1", "memory": "1Gi"},
	 "offerings": [{"Price": 1, "ReservationCapacity": 3, "Requirements": [
		{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["reserved"]}, {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]},
		{"key": "karpenter.sh/reservation-id", "operator": "In", "values": ["r-1"]}, {"key": "rack", "operator": "Exists"}]},
		{"Price": 1, "Requirements": [{"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["a"]}]},
		{"Price": 1, "Requirements": [{"key": "x", "operator": "Is"}]}]},
	{"name": "bad", "operatingSystems": [], "resources": {"cpu": "x"}},
	7
]`,
			want: `m5.xlarge karpenter.kwok.sh/instance-cpu In [4]; karpenter.kwok.sh/instance-family In [m5]; karpenter.kwok.sh/instance-memory In [16Gi]; karpenter.kwok.sh/instance-size In [xlarge]; kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux windows]; node.kubernetes.io/instance-type In [m5.xlarge]: cpu 3900/4000 memory 16374/16384 pods 58
  "a" on-demand 192000
  "a" spot 50000
more karpenter.kwok.sh/instance-cpu In [1]; karpenter.kwok.sh/instance-family In [m]; karpenter.kwok.sh/instance-memory In [1Gi]; karpenter.kwok.sh/instance-size In [1]; kubernetes.io/arch In [arm64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [more]: cpu 900/1000 memory 1014/1024 pods 110
  "a" reserved 1000000 reservation r-1×3 rack Exists
  "b" reserved 1000000 reservation r-1×3 rack Exists
old karpenter.kwok.sh/instance-cpu In [1]; karpenter.kwok.sh/instance-family In [o]; karpenter.kwok.sh/instance-memory In [1Gi]; karpenter.kwok.sh/instance-size In [1]; kubernetes.io/arch In [amd64]; kubernetes.io/os In [linux]; node.kubernetes.io/instance-type In [old]: cpu 900/1000 memory 1014/1024 pods 110
  "a" on-demand 1624000
  "b" on-demand 1700000 unavailable
`,
			errs: `f.yaml: instance type "more": offerings[1].requirements[0]: operator NotIn: must be In for label topology.kubernetes.io/zone
f.yaml: instance type "more": offerings[2].requirements[0]: requirement x: operator "Is": must be one of In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte, Lte
f.yaml: instance type "bad": architecture: must not be empty
f.yaml: instance type "bad": operatingSystems: must have at least one
f.yaml: instance type "bad": resources[cpu]: "x": must be a quantity such as 2, 500m or 16Gi
f.yaml: instance type "#7": value: must be a map, not number
f.yaml: instance type "m5.xlarge": is there twice; the first one counts
`,
		},
		"an empty file":           {in: "", errs: "f.yaml: must hold a map with instanceTypes, or a list of KWOK instance types\n"},
		"another kind of file":    {in: "apiVersion: v1\nkind: Pod\n", errs: "f.yaml: field \"apiVersion\": is unknown\n"},
		"a file without types":    {in: "description: x", errs: "f.yaml: instanceTypes: must be a list\n"},
		"a text":                  {in: "hello", errs: "f.yaml: must hold a map with instanceTypes, or a list of KWOK instance types\n"},
		"two documents":           {in: "---\ninstanceTypes: []\n---\ninstanceTypes: []\n", errs: "f.yaml: has 2 documents, must have one\n"},
		"a separator is no error": {in: "# types\n---\ninstanceTypes: []\n"},
		"a syntax error has its line": {
			in:   "instanceTypes:\n- name: a\n  capacity: {cpu: 1\n- name: b\n",
			errs: "f.yaml: yaml: line 3: did not find expected ',' or '}'\n",
		},
		"so has one in JSON": {in: "{\n\"instanceTypes\": [\n}", errs: "f.yaml: line 3: invalid character '}' looking for beginning of value\n"},
		"a key twice": {
			in:   "instanceTypes:\n- name: a\n  name: b\n",
			errs: "f.yaml: yaml: unmarshal errors:\n  line 3: key \"name\" already set in map\n",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, errs := ReadFile(strings.NewReader(tc.in), "f.yaml")
			if diff := cmp.Diff(tc.want, show(c)); diff != "" {
				t.Errorf("catalogue (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.errs, texts(errs)); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestReadFile_TooLarge(t *testing.T) {
	c, errs := ReadFile(endless{}, "big")
	if got, want := texts(errs), "big: is larger than 64 MiB\n"; got != want || c.Len() != 0 {
		t.Errorf("errors = %q, want %q", got, want)
	}
}

func TestReadFile_Scenarios(t *testing.T) {
	f, err := os.Open("../../../test/scenarios/cat-1.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, errs := ReadFile(f, "cat-1.yaml")
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if c.Len() != 14 {
		t.Errorf("Len() = %d, want 14", c.Len())
	}
	for name, want := range map[string]struct{ cpu, gib, gpu, price int64 }{
		"c.2": {2, 4, 0, 80_000}, "c.16": {16, 32, 0, 640_000}, "m.4": {4, 16, 0, 200_000}, "r.8": {8, 64, 0, 520_000},
		"g.4": {4, 16, 1, 1_000_000}, "g.48": {48, 192, 4, 5_600_000},
	} {
		it, ok := c.ByName(name)
		if !ok {
			t.Errorf("%s is missing", name)
			continue
		}
		if it.Capacity["cpu"] != want.cpu*1000 || it.Capacity["memory"] != want.gib<<30 || it.Capacity["nvidia.com/gpu"] != want.gpu || it.Capacity["pods"] != 110 || it.Capacity.Compare(it.Allocatable) != 0 {
			t.Errorf("%s: capacity %v, allocatable %v", name, it.Capacity, it.Allocatable)
		}
		if len(it.Offerings) != 6 {
			t.Errorf("%s: %d offerings, want 6", name, len(it.Offerings))
		}
		for _, o := range it.Offerings {
			wantPrice := want.price
			if o.CapacityType == catalog.Spot {
				wantPrice = wantPrice * 4 / 10
			}
			if int64(o.Price) != wantPrice {
				t.Errorf("%s %s %s: price %d, want %d", name, o.Zone, o.CapacityType, o.Price, wantPrice)
			}
		}
	}
}

func FuzzReadFile(f *testing.F) {
	f.Add([]byte(readme(f)))
	f.Add([]byte(`[{"name": "m5.large", "architecture": "x86_64", "operatingSystems": ["linux"], "resources": {"cpu": "2"}, "offerings": [{"Price": 0.1, "Requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}]}]}]`))
	f.Add([]byte("instanceTypes: [{name: a, capacity: {cpu: 1e99}, offerings: [{zones: [a, a], price: 1e-9}]}]"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, errs := ReadFile(strings.NewReader(string(data)), "fuzz")
		for _, err := range errs {
			if !strings.HasPrefix(err.Error(), "fuzz: ") {
				t.Errorf("error does not name the file: %v", err)
			}
		}
		if again, _ := ReadFile(strings.NewReader(string(data)), "fuzz"); again.Hash() != c.Hash() {
			t.Error("reading twice gives different catalogues")
		}
		for _, it := range c.Types() {
			if it.Name == "" || len(it.Offerings) == 0 {
				t.Errorf("type %q has %d offerings", it.Name, len(it.Offerings))
			}
			for name, n := range it.Allocatable {
				if n < 0 || n > it.Capacity[name] {
					t.Errorf("%s: allocatable %s is %d of %d", it.Name, name, n, it.Capacity[name])
				}
			}
			for _, o := range it.Offerings {
				if o.Price < 0 || o.Price == 0 && !o.Unavailable && o.CapacityType != catalog.Reserved {
					t.Errorf("%s: price %d", it.Name, o.Price)
				}
			}
		}
	})
}
