package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

func sample(name string, cpu int64, price float64) InstanceType {
	t := InstanceType{
		Name:         name,
		Requirements: requirements.NewSet(requirements.In(corev1.LabelArchStable, "amd64"), requirements.In("family", name[:min(1, len(name))])),
		Capacity:     resources.List{"cpu": cpu * 1000, "memory": cpu << 32, "pods": 110},
		Allocatable:  resources.List{"cpu": cpu*1000 - 100, "memory": cpu<<32 - 1<<30, "pods": 110},
	}
	for _, zone := range []string{"b", "a"} {
		t.Offerings = append(t.Offerings,
			Offering{Zone: zone, CapacityType: Spot, Price: FromDollars(price * 0.4)},
			Offering{Zone: zone, CapacityType: OnDemand, Price: FromDollars(price)})
	}
	return t
}

func lines(errs []error) string {
	var b strings.Builder
	for _, err := range errs {
		fmt.Fprintln(&b, err)
	}
	return b.String()
}

func TestNew(t *testing.T) {
	with := func(name string, f func(*InstanceType)) InstanceType {
		it := sample(name, 2, 0.1)
		f(&it)
		return it
	}
	c, errs := New([]InstanceType{
		sample("m2", 2, 0.1),
		sample("c2", 2, 0.08),
		with("c2", func(it *InstanceType) { it.Capacity["cpu"] = 9 }),
		with("", func(*InstanceType) {}),
		with("negative", func(it *InstanceType) { it.Allocatable["memory"] = -1; it.AttachLimits = map[string]int64{"d": -2} }),
		with("empty", func(it *InstanceType) { it.Offerings = nil }),
		with("misnamed", func(it *InstanceType) {
			it.Requirements.Add(requirements.In(corev1.LabelInstanceTypeStable, "other"))
		}),
		with("prices", func(it *InstanceType) {
			it.Offerings[0].Price = -1
			it.Offerings[1].Price = 0
			it.Offerings = append(it.Offerings,
				Offering{Zone: "a", CapacityType: "cheap", Price: 1},
				Offering{Zone: "a", CapacityType: OnDemand, Price: 7},
				Offering{Zone: "z", CapacityType: Reserved, ReservationID: "r", ReservationCapacity: 3},
				Offering{Zone: "z", CapacityType: Reserved, ReservationID: "s", ReservationCapacity: -3},
				Offering{Zone: "z", CapacityType: OnDemand, Unavailable: true})
		}),
	})
	want := `instance type "c2": is there twice; the first one counts
instance type "": name: must not be empty
instance type "negative": allocatable[memory]: -1: must not be negative
instance type "negative": attachLimits[d]: -2: must not be negative
instance type "empty": offerings: must have at least one that is usable
instance type "misnamed": requirements[node.kubernetes.io/instance-type]: In [other]: must be the type's name
instance type "prices": offerings[0].price: -0.000001: must not be negative
instance type "prices": offerings[1].price: has no price
instance type "prices": offerings[4].capacityType: "cheap": must be on-demand, spot or reserved
instance type "prices": offerings[7].reservationCapacity: -3: must not be negative
instance type "prices": offerings: on-demand in zone "a" is there twice; the first one counts
`
	if diff := cmp.Diff(want, lines(errs)); diff != "" {
		t.Errorf("New() problems (-want +got):\n%s", diff)
	}
	var got []string
	for _, it := range c.Types() {
		for _, o := range it.Offerings {
			got = append(got, fmt.Sprintf("%s %s/%s%s %d %v", it.Name, o.Zone, o.CapacityType, o.ReservationID, o.Price, o.Unavailable))
		}
	}
	wantTypes := []string{
		"c2 a/on-demand 80000 false", "c2 a/spot 32000 false", "c2 b/on-demand 80000 false", "c2 b/spot 32000 false",
		"m2 a/on-demand 100000 false", "m2 a/spot 40000 false", "m2 b/on-demand 100000 false", "m2 b/spot 40000 false",
		"prices a/on-demand 100000 false", "prices a/spot 40000 false",
		"prices z/on-demand 0 true", "prices z/reservedr 0 false",
	}
	if diff := cmp.Diff(wantTypes, got); diff != "" {
		t.Errorf("Types() (-want +got):\n%s", diff)
	}
	it, ok := c.ByName("c2")
	if !ok || it.Capacity["cpu"] != 2000 || !it.Requirements.Get(corev1.LabelInstanceTypeStable).Has("c2") {
		t.Errorf("ByName(c2) = %+v, %v", it, ok)
	}
	if _, ok := c.ByName("nope"); ok || c.Len() != 3 {
		t.Errorf("Len() = %d, ByName(nope) found: %v", c.Len(), ok)
	}
}

func TestNew_LeavesArgumentsAlone(t *testing.T) {
	types := []InstanceType{sample("m2", 2, 0.1), sample("c2", 2, 0.08)}
	before := []InstanceType{sample("m2", 2, 0.1), sample("c2", 2, 0.08)}
	if _, errs := New(types); len(errs) != 0 {
		t.Fatal(errs)
	}
	if diff := cmp.Diff(before, types); diff != "" {
		t.Errorf("New() changed its argument (-want +got):\n%s", diff)
	}
}

func TestCatalog_Nil(t *testing.T) {
	var c *Catalog
	empty, _ := New(nil)
	if _, ok := c.ByName("x"); ok || c.Len() != 0 || c.Hash() != empty.Hash() {
		t.Error("the nil catalogue is not empty")
	}
	if got, problems := ApplyOverlays(c, "p", nil, []Overlay{{Name: "o", Price: "1"}}); got != nil || problems != nil {
		t.Errorf("ApplyOverlays(nil) = %v, %v", got, problems)
	}
}

func TestCatalog_Hash(t *testing.T) {
	base := func() []InstanceType { return []InstanceType{sample("c2", 2, 0.08), sample("m2", 2, 0.1)} }
	hash := func(types []InstanceType) string {
		c, errs := New(types)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		return c.Hash()
	}
	want := hash(base())
	reordered := base()
	slices.Reverse(reordered)
	slices.Reverse(reordered[0].Offerings)
	if got := hash(reordered); got != want {
		t.Error("the order of types and offerings changes the hash")
	}
	for name, edit := range map[string]func(*InstanceType){
		"price":                func(it *InstanceType) { it.Offerings[0].Price++ },
		"availability":         func(it *InstanceType) { it.Offerings[0].Unavailable = true },
		"zone":                 func(it *InstanceType) { it.Offerings[0].Zone = "c" },
		"reservation":          func(it *InstanceType) { it.Offerings[0].ReservationCapacity = 1 },
		"label":                func(it *InstanceType) { it.Requirements.Add(requirements.In("x", "y")) },
		"capacity":             func(it *InstanceType) { it.Capacity["gpu/x"] = 1 },
		"allocatable":          func(it *InstanceType) { it.Allocatable["cpu"]-- },
		"attach limit":         func(it *InstanceType) { it.AttachLimits = map[string]int64{"d": 1} },
		"offering requirement": func(it *InstanceType) { it.Offerings[0].Requirements = requirements.NewSet(requirements.In("x", "y")) },
	} {
		types := base()
		edit(&types[0])
		if hash(types) == want {
			t.Errorf("a change of %s does not change the hash", name)
		}
	}
}

// show lists what overlays changed.
func show(before, after *Catalog) string {
	var b strings.Builder
	for i, it := range after.Types() {
		old := before.Types()[i]
		for j, o := range it.Offerings {
			if o.PriceOverlay {
				fmt.Fprintf(&b, "%s %s/%s%s %.4f -> %.4f\n", it.Name, o.Zone, o.CapacityType, o.ReservationID, old.Offerings[j].Price.Dollars(), o.Price.Dollars())
			} else if o.Price != old.Offerings[j].Price {
				fmt.Fprintf(&b, "%s: unmarked change\n", it.Name)
			}
		}
		if it.CapacityOverlay {
			for _, name := range it.Capacity.Names() {
				if it.Capacity[name] != old.Capacity[name] {
					fmt.Fprintf(&b, "%s %s %d -> %d, allocatable %d\n", it.Name, name, old.Capacity[name], it.Capacity[name], it.Allocatable[name])
				}
			}
		}
	}
	return b.String()
}

func TestApplyOverlays(t *testing.T) {
	in := requirements.In
	set := requirements.NewSet
	notIn, err := requirements.New("reserved-for", corev1.NodeSelectorOpNotIn, "x")
	if err != nil {
		t.Fatal(err)
	}
	types := []InstanceType{sample("c2", 2, 0.08), sample("m2", 2, 0.1)}
	types[1].Offerings = append(types[1].Offerings, Offering{Zone: "a", CapacityType: Reserved, ReservationID: "r1", ReservationCapacity: 5,
		Requirements: set(in("reserved-for", "x"))})
	types[1].Capacity["x.io/y"], types[1].Allocatable["x.io/y"] = 4, 3
	spot := in("karpenter.sh/capacity-type", "spot")
	c2 := in(corev1.LabelInstanceTypeStable, "c2")
	tests := map[string]struct {
		overlays []Overlay
		labels   requirements.Set
		want     string
		problems []string
	}{
		"no overlay matches, so nothing changes": {
			overlays: []Overlay{{Name: "o", Requirements: set(in("family", "z")), Price: "1"}},
		},
		"a price replaces that of the matching offerings": {
			overlays: []Overlay{{Name: "o", Requirements: set(c2, spot), Price: "0.5"}},
			want:     "c2 a/spot 0.0320 -> 0.5000\nc2 b/spot 0.0320 -> 0.5000\n",
		},
		"a part of the price": {
			overlays: []Overlay{{Name: "o", Requirements: set(c2, spot, in(corev1.LabelTopologyZone, "a")), PriceAdjustment: "-15%"}},
			want:     "c2 a/spot 0.0320 -> 0.0272\n",
		},
		"an amount of the price, not below zero": {
			overlays: []Overlay{{Name: "o", Requirements: set(c2, in(corev1.LabelTopologyZone, "a")), PriceAdjustment: "-0.05"}},
			want:     "c2 a/on-demand 0.0800 -> 0.0300\nc2 a/spot 0.0320 -> 0.0000\n",
		},
		"the larger weight decides each price; the rest keeps the smaller": {
			overlays: []Overlay{
				{Name: "low", Weight: 1, Requirements: set(c2), PriceAdjustment: "+1"},
				{Name: "high", Weight: 2, Requirements: set(c2, spot), PriceAdjustment: "+10%"},
			},
			want: "c2 a/on-demand 0.0800 -> 1.0800\nc2 a/spot 0.0320 -> 0.0352\nc2 b/on-demand 0.0800 -> 1.0800\nc2 b/spot 0.0320 -> 0.0352\n",
		},
		"a conflict disables only what overlaps": {
			overlays: []Overlay{
				{Name: "z", Weight: 1, Requirements: set(c2, in(corev1.LabelTopologyZone, "a")), Price: "1"},
				{Name: "y", Weight: 1, Requirements: set(c2, spot), Price: "2"},
			},
			want:     "c2 a/on-demand 0.0800 -> 1.0000\nc2 a/spot 0.0320 -> 1.0000\nc2 b/spot 0.0320 -> 2.0000\n",
			problems: []string{`y Conflict z: overlay "z" of the same weight sets prices (1 in all) too (instance types c2); it decides there: give one of them more weight`},
		},
		"no conflict where a third overlay decides": {
			overlays: []Overlay{
				{Name: "a", Weight: 1, Requirements: set(c2, spot), Price: "1"},
				{Name: "b", Weight: 1, Requirements: set(c2, spot), Price: "2"},
				{Name: "top", Weight: 9, Requirements: set(c2, spot), Price: "3"},
			},
			want: "c2 a/spot 0.0320 -> 3.0000\nc2 b/spot 0.0320 -> 3.0000\n",
		},
		"a pool is selected by its name": {
			overlays: []Overlay{{Name: "other", Requirements: set(c2, in("karpenter.sh/nodepool", "q")), Price: "1"}, {Name: "this", Requirements: set(c2, spot, in("karpenter.sh/nodepool", "p")), Price: "2"}},
			want:     "c2 a/spot 0.0320 -> 2.0000\nc2 b/spot 0.0320 -> 2.0000\n",
		},
		"a pool is selected by its template's labels": {
			overlays: []Overlay{{Name: "o", Requirements: set(c2, spot, in("team", "web")), Price: "2"}, {Name: "p", Requirements: set(in("team", "db")), Price: "3"}},
			labels:   set(in("team", "web")),
			want:     "c2 a/spot 0.0320 -> 2.0000\nc2 b/spot 0.0320 -> 2.0000\n",
		},
		"a label nobody defines matches nothing": {
			overlays: []Overlay{{Name: "o", Requirements: set(in("team", "web")), Price: "2"}},
		},
		"capacity moves allocatable with it and adds new resources": {
			overlays: []Overlay{{Name: "o", Requirements: set(in("family", "m"), spot), Capacity: resources.List{"x.io/y": 10, "smarter-devices/fuse": 20}}},
			want:     "m2 smarter-devices/fuse 0 -> 20, allocatable 20\nm2 x.io/y 4 -> 10, allocatable 9\n",
		},
		"each resource has its own winner": {
			overlays: []Overlay{
				{Name: "a", Weight: 2, Requirements: set(c2), Capacity: resources.List{"x.io/y": 1}},
				{Name: "b", Weight: 1, Requirements: set(c2), Capacity: resources.List{"x.io/y": 9, "x.io/z": 3}},
				{Name: "a2", Weight: 1, Requirements: set(c2), Capacity: resources.List{"x.io/z": 4, "x.io/w": 5}},
			},
			want:     "c2 x.io/w 0 -> 5, allocatable 5\nc2 x.io/y 0 -> 1, allocatable 1\nc2 x.io/z 0 -> 3, allocatable 3\n",
			problems: []string{`a2 Conflict b: overlay "b" of the same weight sets capacity of x.io/z too (instance types c2); it decides there: give one of them more weight`},
		},
		"a reserved offering is selected by its reservation": {
			overlays: []Overlay{{Name: "o", Requirements: set(in(ReservationIDLabel, "r1")), Price: "0.07"}},
			want:     "m2 a/reservedr1 0.0000 -> 0.0700\n",
		},
		"an offering is selected by a label of its own": {
			overlays: []Overlay{{Name: "o", Requirements: set(in("reserved-for", "x")), Price: "0.07"}},
			want:     "m2 a/reservedr1 0.0000 -> 0.0700\n",
		},
		"offerings without that label match its exclusion": {
			overlays: []Overlay{{Name: "o", Requirements: set(notIn, in("family", "m"), in(corev1.LabelTopologyZone, "a")), Price: "0.07"}},
			want:     "m2 a/on-demand 0.1000 -> 0.0700\nm2 a/spot 0.0400 -> 0.0700\n",
		},
		"what cannot be used is left out and the rest applies": {
			overlays: []Overlay{
				{Name: "1", Requirements: set(c2), Price: "1", PriceAdjustment: "+1"},
				{Name: "2", Requirements: set(c2), Price: "-1"},
				{Name: "3", Requirements: set(c2), PriceAdjustment: "10%"},
				{Name: "4", Requirements: set(c2), PriceAdjustment: "-101%"},
				{Name: "5", Requirements: set(c2), Capacity: resources.List{"cpu": 1}},
				{Name: "6", Requirements: set(c2, in("family", "m"), in("family", "c")), Price: "1"},
				{Name: "7", Requirements: set(c2), Price: "99999999999999999999"},
				{Name: "8", Requirements: set(c2, spot, in(corev1.LabelTopologyZone, "b")), PriceAdjustment: "+.5"},
			},
			want: "c2 b/spot 0.0320 -> 0.5320\n",
			problems: []string{
				"7 RuntimeValidation : price: 99999999999999999999: must be at most 1000000000",
				"6 RuntimeValidation : requirements: no value of label family satisfies all of them",
				"5 RuntimeValidation : capacity[cpu]: must not be set by an overlay",
				"4 RuntimeValidation : priceAdjustment: -101%: must not be below -100%",
				`3 RuntimeValidation : priceAdjustment: "10%": must be like "+0.5", "-1", "+10%" or "-15%"`,
				`2 RuntimeValidation : price: "-1": must be a decimal number of US dollars per hour`,
				"1 RuntimeValidation : price: must not be set together with priceAdjustment",
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, errs := New(types)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			hash := c.Hash()
			got, problems := ApplyOverlays(c, "p", tc.labels, tc.overlays)
			if diff := cmp.Diff(tc.want, show(c, got)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			var texts []string
			for _, p := range problems {
				texts = append(texts, fmt.Sprintf("%s %s %s: %s", p.Overlay, p.Reason, p.With, p.Message))
			}
			if diff := cmp.Diff(tc.problems, texts); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if tc.want == "" && got != c {
				t.Error("nothing changed, yet the catalogue is another")
			}
			if again, _ := New(types); again.Hash() != hash {
				t.Error("ApplyOverlays() changed the original")
			}
			for i, it := range got.Types() { // everything else stays
				for j, o := range it.Offerings {
					o.Price, o.PriceOverlay = c.Types()[i].Offerings[j].Price, false
					if diff := cmp.Diff(c.Types()[i].Offerings[j], o, cmp.Comparer(requirements.Requirement.Equal)); diff != "" {
						t.Errorf("offering lost something (-want +got):\n%s", diff)
					}
				}
			}
			slices.Reverse(tc.overlays)
			if reversed, _ := ApplyOverlays(c, "p", tc.labels, tc.overlays); reversed.Hash() != got.Hash() {
				t.Error("the order of overlays matters")
			}
		})
	}
}

func BenchmarkApplyOverlays(b *testing.B) {
	var types []InstanceType
	for i := range 1345 {
		it := sample(fmt.Sprintf("m%04d", i), 4, 0.2)
		types = append(types, it)
	}
	c, _ := New(types)
	var overlays []Overlay
	for i := range 20 {
		overlays = append(overlays, Overlay{Name: fmt.Sprint(i), Weight: int32(i), PriceAdjustment: "-5%",
			Requirements: requirements.NewSet(requirements.In("family", "m"), requirements.In("karpenter.sh/capacity-type", OnDemand))})
	}
	b.ReportAllocs()
	for b.Loop() {
		if got, _ := ApplyOverlays(c, "p", nil, overlays); got == c {
			b.Fatal("nothing changed")
		}
	}
}
