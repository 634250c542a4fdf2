package sim_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// smallTypes are two types in two zones, and a reservation of two units.
const smallTypes = `
instanceTypes:
- name: small
  labels: {topology.kubernetes.io/region: r, example.com/os-image: [one, two], kubernetes.io/os: [linux, windows]}
  capacity: {cpu: 2, memory: 4Gi}
  offerings:
  - {zones: [a, b], price: 0.10}
  - {zones: [a, b], capacityType: spot, price: 0.03}
- name: large
  capacity: {cpu: 8, memory: 16Gi}
  overhead: {cpu: 200m}
  offerings:
  - {zones: [a, b], price: 0.40}
  - {zone: a, capacityType: reserved, reservationID: prepaid, reservationCapacity: 2}
`

// world is a simulated cloud in memory.
type world struct {
	*clock
	memory   *sim.Memory
	provider *sim.Provider
	class    *v1alpha1.SimNodeClass
}

// newWorld has a class of smallTypes with the fields of spec.
func newWorld(t testing.TB, spec string) *world {
	t.Helper()
	w := &world{clock: newClock(), memory: &sim.Memory{}}
	w.class = &v1alpha1.SimNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default", CreationTimestamp: metav1.NewTime(w.Now())}}
	if err := yaml.UnmarshalStrict([]byte(spec), &w.class.Spec); err != nil {
		t.Fatal(err)
	}
	ref := v1alpha1.ConfigMapReference{Namespace: "a", Name: "types", Key: "c"}
	if w.class.Spec.Catalog == (v1alpha1.SimCatalog{}) {
		w.class.Spec.Catalog.ConfigMapRef = &ref
	}
	w.memory.SetFile(ref, []byte(smallTypes))
	w.memory.SetNodeClass(w.class)
	w.provider = sim.New(w.memory, w.memory, sim.Options{Now: w.Now})
	return w
}

func (w *world) sold(t *testing.T) *catalog.Catalog {
	t.Helper()
	c, err := w.provider.Sold(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// shown are the offerings of a catalogue as text.
func shown(c *catalog.Catalog) []string {
	var out []string
	for _, it := range c.Types() {
		for _, o := range it.Offerings {
			s := fmt.Sprintf("%s/%s/%s %g", it.Name, o.Zone, o.CapacityType, o.Price.Dollars())
			if o.ReservationID != "" {
				s += fmt.Sprintf(" %d left", o.ReservationCapacity)
			}
			if o.Unavailable {
				s += " -"
			}
			out = append(out, s)
		}
	}
	return out
}

func claim(name string, requirements ...karpv1.Requirement) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{karpv1.NodePoolLabelKey: "web"}},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: sim.Kind, Name: "default"}, Requirements: requirements,
		},
	}
}

func in(key string, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// buy launches a claim and returns the offering, or the class of the error.
func (w *world) buy(t *testing.T, c *karpv1.NodeClaim) string {
	t.Helper()
	m, err := w.provider.Launch(t.Context(), c)
	if err != nil {
		if class := cloud.Class(err); class != "" {
			return class
		}
		t.Fatal(err)
	}
	return m.Labels[corev1.LabelInstanceTypeStable] + "/" + m.Labels[corev1.LabelTopologyZone] + "/" + m.Labels[karpv1.CapacityTypeLabelKey]
}

var all = []string{
	"large/a/on-demand 0.4", "large/a/reserved 0 2 left", "large/b/on-demand 0.4",
	"small/a/on-demand 0.1", "small/a/spot 0.03", "small/b/on-demand 0.1", "small/b/spot 0.03",
}

// but is all with some lines replaced.
func but(lines map[int]string) []string {
	out := slices.Clone(all)
	for i, s := range lines {
		out[i] = s
	}
	return out
}

func TestProvider_Sold(t *testing.T) {
	tests := map[string]struct {
		spec string
		// want is what is sold by minute.
		want map[int][]string
	}{
		"nothing scripted": {spec: "{}", want: map[int][]string{0: all, 60: all}},
		"filters":          {spec: "{instanceTypes: ['s*'], zones: [b]}", want: map[int][]string{0: {"small/b/on-demand 0.1", "small/b/spot 0.03"}}},
		"prices in order of time": {
			spec: "{prices: [{capacityTypes: [spot], at: 10m, percent: 200}, {instanceTypes: [small], zones: [a], capacityTypes: [spot], at: 5m, price: '0.05'}, {instanceTypes: [large], price: '0.5'}]}",
			want: map[int][]string{
				0:  but(map[int]string{0: "large/a/on-demand 0.5", 1: "large/a/reserved 0.5 2 left", 2: "large/b/on-demand 0.5"}),
				5:  but(map[int]string{0: "large/a/on-demand 0.5", 1: "large/a/reserved 0.5 2 left", 2: "large/b/on-demand 0.5", 4: "small/a/spot 0.05"}),
				10: but(map[int]string{0: "large/a/on-demand 0.5", 1: "large/a/reserved 0.5 2 left", 2: "large/b/on-demand 0.5", 4: "small/a/spot 0.1", 6: "small/b/spot 0.06"}),
			},
		},
		"a price that would vanish": {spec: "{prices: [{capacityTypes: [spot], price: '0'}, {capacityTypes: [on-demand], price: '0.0000001'}]}", want: map[int][]string{
			0: but(map[int]string{0: "large/a/on-demand 1e-06", 2: "large/b/on-demand 1e-06", 3: "small/a/on-demand 1e-06", 4: "small/a/spot 1e-06", 5: "small/b/on-demand 1e-06", 6: "small/b/spot 1e-06"}),
		}},
		"a time of the calendar": {spec: "{prices: [{zones: [b], at: '2026-01-02T03:34:05Z', percent: 50}]}", want: map[int][]string{
			29: all, 30: but(map[int]string{2: "large/b/on-demand 0.2", 5: "small/b/on-demand 0.05", 6: "small/b/spot 0.015"}),
		}},
		"an outage that is announced": {spec: "{capacity: [{zones: [a], from: 10m, until: 20m, known: true}]}", want: map[int][]string{
			9: all, 20: all, 10: but(map[int]string{0: "large/a/on-demand 0.4 -", 1: "large/a/reserved 0 2 left -", 3: "small/a/on-demand 0.1 -", 4: "small/a/spot 0.03 -"}),
		}},
		"an outage that a launch must find": {spec: "{capacity: [{zones: [a]}]}", want: map[int][]string{0: all}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tt.spec)
			passed := 0
			for _, minute := range slices.Sorted(maps.Keys(tt.want)) {
				w.Add(time.Duration(minute-passed) * time.Minute)
				passed = minute
				c := w.sold(t)
				if diff := cmp.Diff(tt.want[minute], shown(c)); diff != "" {
					t.Errorf("sold in minute %d (-want +got):\n%s", minute, diff)
				}
				w.Add(time.Second)
				if w.sold(t) != c {
					t.Errorf("another catalogue a second after minute %d", minute)
				}
				w.Add(-time.Second)
			}
		})
	}
}

// TestProvider_SoldAnew checks what makes another catalogue, and what does not.
func TestProvider_SoldAnew(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, w *world)
		want   bool
	}{
		"other latencies": {change: func(_ *testing.T, w *world) { w.class.Spec.LaunchLatency.Base.Duration = time.Second }},
		"a status":        {change: func(_ *testing.T, w *world) { w.class.Status.InstanceTypes = 3 }},
		"capacity that a launch must find": {change: func(_ *testing.T, w *world) {
			w.class.Spec.Capacity = append(w.class.Spec.Capacity, v1alpha1.SimCapacity{})
		}},
		"a machine": {change: func(t *testing.T, w *world) { w.buy(t, claim("a", in(corev1.LabelInstanceTypeStable, "small"))) }},
		"a machine of a reservation": {want: true, change: func(t *testing.T, w *world) {
			w.buy(t, claim("a", in(corev1.LabelInstanceTypeStable, "large")))
		}},
		"a price": {want: true, change: func(_ *testing.T, w *world) {
			w.class.Spec.Prices = []v1alpha1.SimPrice{{Price: "1"}}
		}},
		"a filter": {want: true, change: func(_ *testing.T, w *world) { w.class.Spec.Zones = []string{"a"} }},
		"a file": {want: true, change: func(_ *testing.T, w *world) {
			w.memory.SetFile(*w.class.Spec.Catalog.ConfigMapRef, []byte("{instanceTypes: [{name: x, capacity: {cpu: 1}, offerings: [{price: 1}]}]}"))
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "{}")
			before := w.sold(t)
			tt.change(t, w)
			w.memory.SetNodeClass(w.class)
			if got := w.sold(t) != before; got != tt.want {
				t.Errorf("another catalogue: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestProvider_Reservations(t *testing.T) {
	w := newWorld(t, "{terminateLatency: {base: 1m}}")
	large := func(name string) *karpv1.NodeClaim {
		return claim(name, in(corev1.LabelInstanceTypeStable, "large"), in(corev1.LabelTopologyZone, "a"))
	}
	for i, want := range []string{"large/a/reserved", "large/a/reserved", "large/a/on-demand"} {
		if got := w.buy(t, large(fmt.Sprint("c", i))); got != want {
			t.Errorf("machine %d is %s, want %s", i, got, want)
		}
	}
	if diff := cmp.Diff(but(map[int]string{1: "large/a/reserved 0 0 left -"}), shown(w.sold(t))); diff != "" {
		t.Errorf("sold when all units are used (-want +got):\n%s", diff)
	}
	if err := w.provider.Terminate(t.Context(), large("c0")); err != nil {
		t.Fatal(err)
	}
	w.Add(59 * time.Second)
	if got := w.buy(t, large("c3")); got != "large/a/on-demand" {
		t.Errorf("bought %s while the unit is still in use", got)
	}
	w.Add(time.Second)
	if diff := cmp.Diff(but(map[int]string{1: "large/a/reserved 0 1 left"}), shown(w.sold(t))); diff != "" {
		t.Errorf("sold when a unit is back (-want +got):\n%s", diff)
	}
	// A claim may insist on the reservation, or on none.
	if got := w.buy(t, claim("c4", in(catalog.ReservationIDLabel, "prepaid"))); got != "large/a/reserved" {
		t.Errorf("bought %s, want the reservation", got)
	}
	if got := w.buy(t, claim("c5", in(catalog.ReservationIDLabel, "prepaid"))); got != "InsufficientCapacityError" {
		t.Errorf("bought %s, want none: the reservation is used up", got)
	}
	if got := w.buy(t, claim("c6", in(catalog.ReservationIDLabel, "other"))); got != "InsufficientCapacityError" {
		t.Errorf("bought %s, want none: there is no such reservation", got)
	}
}

func TestProvider_Capacity(t *testing.T) {
	w := newWorld(t, "{capacity: [{instanceTypes: [small], capacityTypes: [spot], available: 2}, {zones: [b], from: 1h, until: 2h}], unavailableFor: 10m}")
	spot := func(name string) *karpv1.NodeClaim { return claim(name, in(karpv1.CapacityTypeLabelKey, "spot")) }
	for i, want := range []string{"small/a/spot", "small/a/spot", "InsufficientCapacityError"} {
		if got := w.buy(t, spot(fmt.Sprint("c", i))); got != want {
			t.Errorf("machine %d is %s, want %s", i, got, want)
		}
	}
	if diff := cmp.Diff(but(map[int]string{4: "small/a/spot 0.03 -", 6: "small/b/spot 0.03 -"}), shown(w.sold(t))); diff != "" {
		t.Errorf("sold after capacity errors (-want +got):\n%s", diff)
	}
	if err := w.provider.Terminate(t.Context(), spot("c0")); err != nil {
		t.Fatal(err)
	}
	if got := w.buy(t, spot("c3")); got != "InsufficientCapacityError" {
		t.Errorf("bought %s although the offerings were just out of capacity", got)
	}
	w.Add(10 * time.Minute)
	if got := w.buy(t, spot("c3")); got != "small/a/spot" {
		t.Errorf("bought %s, want the capacity that came back", got)
	}
	w.Add(50 * time.Minute)
	if got := w.buy(t, claim("d0", in(corev1.LabelTopologyZone, "b"))); got != "InsufficientCapacityError" {
		t.Errorf("bought %s in a zone without capacity", got)
	}
	w.Add(time.Hour)
	if got := w.buy(t, claim("d1", in(corev1.LabelTopologyZone, "b"), in(karpv1.CapacityTypeLabelKey, "on-demand"))); got != "small/b/on-demand" {
		t.Errorf("bought %s, want the zone's capacity again", got)
	}
}

func TestProvider_CapacityIsNotOversold(t *testing.T) {
	w := newWorld(t, "{capacity: [{available: 5}]}")
	results := make(chan error, 20)
	for i := range cap(results) {
		go func() {
			_, err := w.provider.Launch(t.Context(), claim(fmt.Sprint("c", i)))
			results <- err
		}()
	}
	sold := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			sold++
		case !cloud.IsInsufficientCapacity(err):
			t.Error(err)
		}
	}
	if machines, err := w.provider.List(t.Context()); err != nil || sold != 5 || len(machines) != 5 {
		t.Errorf("%d sold, %d machines (%v), want 5", sold, len(machines), err)
	}
}

func TestProvider_LaunchFailures(t *testing.T) {
	w := newWorld(t, "{failures: [{kind: LaunchError, instanceTypes: [large], reason: QuotaExceeded, message: ask for more, until: 1h}, {kind: LaunchError, instanceTypes: [small], percent: 30}]}")
	_, err := w.provider.Launch(t.Context(), claim("a", in(corev1.LabelInstanceTypeStable, "large")))
	var failed *cloud.CreateError
	if !errors.As(err, &failed) || failed.Reason != "QuotaExceeded" || failed.Message != "ask for more" {
		t.Errorf("Launch() error %v, want that of the rule", err)
	}
	hit := map[string]bool{}
	for i := range 200 {
		name := fmt.Sprint("c", i)
		got := w.buy(t, claim(name, in(corev1.LabelInstanceTypeStable, "small")))
		hit[name] = got == "CreateError"
		if again := w.buy(t, claim(name, in(corev1.LabelInstanceTypeStable, "small"))); again != got {
			t.Errorf("claim %s: %s, and then %s", name, got, again)
		}
	}
	n := 0
	for _, h := range hit {
		if h {
			n++
		}
	}
	if n < 40 || n > 80 {
		t.Errorf("%d of 200 launches failed, want about 30 percent", n)
	}
	w.Add(time.Hour)
	if got := w.buy(t, claim("a", in(corev1.LabelInstanceTypeStable, "large"))); got != "large/a/reserved" {
		t.Errorf("bought %s, want a machine when the failures are over", got)
	}
}

func TestProvider_Labels(t *testing.T) {
	w := newWorld(t, "{}")
	m, err := w.provider.Launch(t.Context(), claim("a", in(corev1.LabelInstanceTypeStable, "small"), in("example.com/os-image", "two", "three")))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		corev1.LabelInstanceTypeStable: "small", corev1.LabelTopologyZone: "a", corev1.LabelTopologyRegion: "r", karpv1.CapacityTypeLabelKey: "spot",
		corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", "example.com/os-image": "two",
	}
	if diff := cmp.Diff(want, m.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if w.buy(t, claim("b", in("example.com/os-image", "three"), in(corev1.LabelInstanceTypeStable, "small"))) != "InsufficientCapacityError" {
		t.Error("bought a machine without a value that was asked for")
	}
}

func TestProvider_BadClaims(t *testing.T) {
	w := newWorld(t, "{}")
	odd := claim("a", karpv1.Requirement{Key: "x", Operator: "Like", Values: []string{"y"}})
	negative := claim("b")
	negative.Spec.Resources.Requests = corev1.ResourceList{"cpu": *neg()}
	nameless := claim("c")
	nameless.UID = ""
	classless := claim("d")
	classless.Spec.NodeClassRef = nil
	for name, tt := range map[string]struct {
		claim *karpv1.NodeClaim
		want  string
	}{
		"an unknown operator": {odd, "CreateError"}, "negative requests": {negative, "CreateError"},
		"no UID": {nameless, "CreateError"}, "no class": {classless, "NodeClassNotReadyError"},
	} {
		if got := w.buy(t, tt.claim); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestProvider_Classes(t *testing.T) {
	w := newWorld(t, "{}")
	bought := claim("a")
	if _, err := w.provider.Launch(t.Context(), bought); err != nil {
		t.Fatal(err)
	}
	deleted := w.class.DeepCopy()
	deleted.DeletionTimestamp = &metav1.Time{Time: w.Now()}
	w.memory.SetNodeClass(deleted)
	if got := w.buy(t, claim("b")); got != "NodeClassNotReadyError" {
		t.Errorf("bought %s of a class that is being deleted", got)
	}
	w.memory.DeleteNodeClass("default")
	if got := w.buy(t, claim("b")); got != "NodeClassNotReadyError" {
		t.Errorf("bought %s of a class that is gone", got)
	}
	// What was bought before is still there.
	if got := w.buy(t, bought); got != "large/a/reserved" {
		t.Errorf("launch of a claim that has a machine: %s", got)
	}
	if why, err := w.provider.Drift(t.Context(), bought); why != "" || err != nil {
		t.Errorf("Drift() = %q, %v, want none: the class cannot be asked", why, err)
	}
	w.class.Spec.Labels = map[string]string{"a": "b"}
	w.memory.SetNodeClass(w.class)
	if why, err := w.provider.Drift(t.Context(), bought); why != sim.Drifted || err != nil {
		t.Errorf("Drift() = %q, %v, want %s", why, err, sim.Drifted)
	}
	if _, err := w.provider.Drift(t.Context(), claim("b")); !cloud.IsNotFound(err) {
		t.Errorf("Drift() of a claim without machine: %v, want NotFound", err)
	}
}
