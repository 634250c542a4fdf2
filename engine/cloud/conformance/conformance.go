// Package conformance is the test that every cloud.Provider passes: what the port promises,
// checked from outside.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Options are what the test needs to know of a provider.
type Options struct {
	// New makes a cloud without machines. It is called for each part of the test.
	New func(t *testing.T) Cloud
	// Claims is how many random claims are launched. Defaults to 300.
	Claims int
	// Seed makes other random claims. Defaults to 1.
	Seed uint64
}

// Cloud is a cloud under test.
type Cloud struct {
	// Open returns a provider of this cloud. Each call stands for a process of its own:
	// providers share nothing but the cloud.
	Open func(t *testing.T) cloud.Provider
	// NodeClass is one that is ready, with a catalogue of at least three instance types,
	// two zones, and spot and on-demand offerings.
	NodeClass karpv1.NodeClassReference
	// Exhaust takes away all capacity of offerings from now on, without a word in the
	// catalogue. Nil leaves out what needs it.
	Exhaust func(t *testing.T, offerings ...cloud.Offering)
	// Advance lets time pass in the cloud. It must not take as long.
	Advance func(t *testing.T, d time.Duration)
}

// Ending is the time within which a terminated machine must be gone, and Memory the time
// within which an offering that was out of capacity must be tried again.
const (
	Ending = time.Hour
	Memory = time.Hour
)

// T is what the test needs of a *testing.T.
type T interface {
	Context() context.Context
	Helper()
	Failed() bool
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// part is one promise of the port.
type part struct {
	name string
	test func(T, *suite)
}

var parts = []part{
	{"says what it is", testIdentity},
	{"sells something, and says when that changes", testCatalog},
	{"a machine is what the catalogue says", testMachine},
	{"a claim gets one machine, whoever asks", testIdempotent},
	{"a claim gets one machine, however many ask", testConcurrent},
	{"preferred offerings come first, in their order", testPreferred},
	{"names that cannot be read among the preferred do none", testOddPreferred},
	{"an offering without capacity is passed over", testPassedOver},
	{"nothing left is insufficient capacity", testNothingLeft},
	{"nothing that fits is insufficient capacity", testNothingFits},
	{"requirements are obeyed, and the cheapest is bought", testRequirements},
	{"a claim that asks for nothing special gets something", testPlain},
	{"a NodeClass that is missing is not ready", testMissingClass},
	{"a NodeClass of another kind is not ready", testOtherClass},
	{"a machine that is terminated ends, and is not found", testTerminate},
	{"a terminated machine leaves the others alone", testOthers},
	{"a machine that never was is not found", testUnknown},
	{"all machines are listed, also by another process", testList},
	{"a fresh machine has not drifted", testDrift},
}

// Parts are the names of the subtests of [Run], in their order.
func Parts() []string {
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = p.name
	}
	return out
}

// Run holds a provider to the port.
func Run(t *testing.T, opts Options) {
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.test(t, newSuite(t, opts)) })
	}
}

// Faults is what [Run] would report of a provider, by subtest. It fails t for faults of the
// cloud's own functions only. It shows that a faulty provider is found out.
func Faults(t *testing.T, opts Options) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, p := range parts {
		r := &recorder{ctx: t.Context()}
		done := make(chan struct{})
		go func() { // which Fatal ends
			defer close(done)
			p.test(r, newSuite(t, opts))
		}()
		if <-done; len(r.faults) > 0 {
			out[p.name] = r.faults
		}
	}
	return out
}

// recorder is a T that keeps what it is told.
type recorder struct {
	ctx    context.Context
	mu     sync.Mutex
	faults []string
}

func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Helper()                  {}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.faults) > 0
}

func (r *recorder) Error(args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

func (r *recorder) Errorf(format string, args ...any) { r.Error(fmt.Sprintf(format, args...)) }

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

func (r *recorder) Skip(...any) { runtime.Goexit() }

// suite is a cloud under test with a provider of it.
type suite struct {
	Cloud
	// owner is what the cloud's functions belong to.
	owner    *testing.T
	opts     Options
	provider cloud.Provider
	claims   int
}

func newSuite(t *testing.T, opts Options) *suite {
	t.Helper()
	if opts.Claims == 0 {
		opts.Claims = 300
	}
	if opts.Seed == 0 {
		opts.Seed = 1
	}
	c := opts.New(t)
	return &suite{Cloud: c, owner: t, opts: opts, provider: c.Open(t)}
}

func (s *suite) open() cloud.Provider { return s.Open(s.owner) }

func (s *suite) advance(d time.Duration) { s.Advance(s.owner, d) }

func (s *suite) exhaust(offerings ...cloud.Offering) { s.Exhaust(s.owner, offerings...) }

// pool is a NodePool of the class.
func (s *suite) pool() *karpv1.NodePool {
	p := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "pool", UID: "pool-uid"}}
	ref := s.NodeClass
	p.Spec.Template.Spec.NodeClassRef = &ref
	return p
}

// claim is a new NodeClaim that asks for little, and for what else is named.
func (s *suite) claim(reqs ...karpv1.Requirement) *karpv1.NodeClaim {
	s.claims++
	ref := s.NodeClass
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("claim-%d", s.claims), UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.claims)),
			Labels: map[string]string{karpv1.NodePoolLabelKey: "pool"}, Annotations: map[string]string{},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &ref, Requirements: append([]karpv1.Requirement{in(karpv1.NodePoolLabelKey, "pool")}, reqs...),
			Resources: karpv1.ResourceRequirements{Requests: resources.List{corev1.ResourceCPU: 10, corev1.ResourcePods: 1}.Quantities()},
		},
	}
}

func in(key string, values ...string) karpv1.Requirement {
	return karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func (s *suite) catalog(t T) *catalog.Catalog {
	t.Helper()
	c, err := s.provider.Catalog(t.Context(), s.pool())
	if err != nil {
		t.Fatalf("Catalog() error: %v", err)
	}
	return c
}

func (s *suite) launch(t T, claim *karpv1.NodeClaim) *cloud.Machine {
	t.Helper()
	m, err := s.provider.Launch(t.Context(), claim)
	if err != nil || m == nil {
		t.Fatalf("Launch(%s) = %v, %v, want a machine", claim.Name, m, err)
	}
	return m
}

func (s *suite) get(t T, providerID string) *cloud.Machine {
	t.Helper()
	m, err := s.provider.Get(t.Context(), providerID)
	if err != nil || m == nil {
		t.Fatalf("Get(%s) = %v, %v, want the machine", providerID, m, err)
	}
	return m
}

func (s *suite) list(t T, p cloud.Provider) []*cloud.Machine {
	t.Helper()
	machines, err := p.List(t.Context())
	if err != nil {
		t.Fatalf("List() error: %v", err)
	}
	return machines
}

// bought is the offering that a machine is of.
func bought(m *cloud.Machine) cloud.Offering {
	return cloud.Offering{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable], Zone: m.Labels[corev1.LabelTopologyZone],
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey], ReservationID: m.Labels[catalog.ReservationIDLabel],
	}
}

// all are the offerings that can be bought and hold a small claim, cheapest first.
func (s *suite) all(t T) []cloud.Offering {
	t.Helper()
	type priced struct {
		cloud.Offering
		price catalog.Price
	}
	var list []priced
	types := s.catalog(t).Types()
	for i := range types {
		for _, o := range types[i].Offerings {
			if !o.Unavailable && o.ReservationID == "" && types[i].Allocatable[corev1.ResourceCPU] >= 10 {
				list = append(list, priced{cloud.Offering{InstanceType: types[i].Name, Zone: o.Zone, CapacityType: o.CapacityType}, o.Price})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b priced) int { return int(a.price - b.price) })
	out := make([]cloud.Offering, len(list))
	for i, p := range list {
		out[i] = p.Offering
	}
	if len(out) < 6 {
		t.Fatalf("%d offerings can be bought, the test needs 6", len(out))
	}
	return out
}

// available reports whether the catalogue has an offering that can be bought now.
func (s *suite) available(t T, want cloud.Offering) bool {
	t.Helper()
	it, ok := s.catalog(t).ByName(want.InstanceType)
	if !ok {
		t.Fatalf("instance type %s is gone from the catalogue", want.InstanceType)
	}
	for _, o := range it.Offerings {
		if o.Zone == want.Zone && o.CapacityType == want.CapacityType && o.ReservationID == want.ReservationID {
			return !o.Unavailable
		}
	}
	t.Fatalf("offering %s is gone from the catalogue", want)
	return false
}

func testIdentity(t T, s *suite) {
	if s.provider.Name() == "" {
		t.Error("Name() is empty")
	}
	kinds := s.provider.NodeClasses()
	if len(kinds) == 0 {
		t.Fatal("NodeClasses() is empty")
	}
	for _, kind := range kinds {
		if kind.Group == s.NodeClass.Group && kind.Kind == s.NodeClass.Kind {
			return
		}
	}
	t.Errorf("NodeClasses() = %v, want %s of %s among them", kinds, s.NodeClass.Kind, s.NodeClass.Group)
}

func testCatalog(t T, s *suite) {
	c := s.catalog(t)
	zones, capacityTypes := map[string]bool{}, map[string]bool{}
	for _, it := range c.Types() {
		for _, o := range it.Offerings {
			zones[o.Zone], capacityTypes[o.CapacityType] = true, true
		}
	}
	if c.Len() < 3 || len(zones) < 2 || !capacityTypes[catalog.Spot] || !capacityTypes[catalog.OnDemand] {
		t.Errorf("%d instance types, zones %v, capacity types %v: the test needs 3, 2, spot and on-demand", c.Len(), zones, capacityTypes)
	}
	for range 3 {
		if again := s.catalog(t); again != c {
			t.Error("Catalog() is another one although nothing changed")
		}
	}
	s.launch(t, s.claim())
	if again := s.catalog(t); again != c && again.Hash() == c.Hash() {
		t.Error("Catalog() is another one with the same contents")
	}
}

func testMachine(t T, s *suite) {
	for i, want := range s.all(t)[:6] {
		claim := s.claim(in(corev1.LabelInstanceTypeStable, want.InstanceType), in(corev1.LabelTopologyZone, want.Zone), in(karpv1.CapacityTypeLabelKey, want.CapacityType))
		m := s.launch(t, claim)
		if got := bought(m); got != want {
			t.Errorf("machine %d is %s, want %s", i, got, want)
		}
		if m.ProviderID == "" || m.ClaimUID != "" && m.ClaimUID != string(claim.UID) || m.ClaimName != "" && m.ClaimName != claim.Name {
			t.Errorf("machine %q of claim %s (%s), want one of %s (%s)", m.ProviderID, m.ClaimName, m.ClaimUID, claim.Name, claim.UID)
		}
		if m.Created.IsZero() || m.Ending {
			t.Errorf("machine created %v, ending %v, want a time and false", m.Created, m.Ending)
		}
		it, ok := s.catalog(t).ByName(want.InstanceType)
		if !ok {
			t.Fatalf("instance type %s is gone", want.InstanceType)
		}
		consistent(t, it, m)
		got := s.get(t, m.ProviderID)
		if bought(got) != want || got.ProviderID != m.ProviderID {
			t.Errorf("Get() = %s %s, want %s %s", got.ProviderID, bought(got), m.ProviderID, want)
		}
		consistent(t, it, got)
	}
}

// consistent checks a machine against its type.
func consistent(t T, it *catalog.InstanceType, m *cloud.Machine) {
	t.Helper()
	for _, list := range []struct {
		name string
		have corev1.ResourceList
		want resources.List
	}{{"capacity", m.Capacity, it.Capacity}, {"allocatable", m.Allocatable, it.Allocatable}} {
		have, err := resources.FromQuantities(list.have)
		if err != nil {
			t.Errorf("%s of %s: %v", list.name, m.ProviderID, err)
			continue
		}
		if have.Compare(list.want) != 0 {
			t.Errorf("%s of %s is %v, want that of %s: %v", list.name, m.ProviderID, have, it.Name, list.want)
		}
	}
	for key, r := range it.Requirements {
		value, ok := m.Labels[key]
		switch {
		case ok && !r.Has(value):
			t.Errorf("label %s=%s of %s, which %s does not have: %s", key, value, m.ProviderID, it.Name, r)
		case !ok && !r.AllowsAbsent():
			t.Errorf("%s lacks label %s, which %s has: %s", m.ProviderID, key, it.Name, r)
		}
	}
}

func testIdempotent(t T, s *suite) {
	claim := s.claim()
	first := s.launch(t, claim)
	other := s.open()
	for i, p := range []cloud.Provider{s.provider, other, s.open(), other} {
		again, err := p.Launch(t.Context(), claim)
		if err != nil || again == nil {
			t.Fatalf("launch %d: %v, %v, want a machine", i+2, again, err)
		}
		if again.ProviderID != first.ProviderID || bought(again) != bought(first) {
			t.Errorf("launch %d gave %s, want %s again", i+2, again.ProviderID, first.ProviderID)
		}
		s.advance(time.Minute)
	}
	// What a claim asks for does not matter any more.
	changed := claim.DeepCopy()
	changed.Annotations[cloud.PreferredAnnotation] = s.all(t)[3].String()
	if again := s.launch(t, changed); again.ProviderID != first.ProviderID {
		t.Errorf("launch of the same UID gave %s, want %s again", again.ProviderID, first.ProviderID)
	}
	if machines := s.list(t, s.provider); len(machines) != 1 {
		t.Errorf("%d machines, want 1", len(machines))
	}
}

func testConcurrent(t T, s *suite) {
	const callers, claims = 6, 4
	var all []*karpv1.NodeClaim
	for range claims {
		all = append(all, s.claim())
	}
	providers := []cloud.Provider{s.provider, s.open(), s.open()}
	got := make([][claims]string, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range all {
				m, err := providers[i%len(providers)].Launch(t.Context(), all[(i+j)%claims])
				if err != nil || m == nil {
					t.Errorf("launch: %v, %v, want a machine", m, err)
					return
				}
				got[i][(i+j)%claims] = m.ProviderID
			}
		})
	}
	wg.Wait()
	seen := map[string]bool{}
	for j := range claims {
		seen[got[0][j]] = true
		for i := range callers {
			if got[i][j] != got[0][j] {
				t.Errorf("claim %d is machine %s for caller %d, want %s", j, got[i][j], i, got[0][j])
			}
		}
	}
	if machines := s.list(t, s.provider); len(machines) != claims || len(seen) != claims {
		t.Errorf("%d machines, %d of them known, want %d", len(machines), len(seen), claims)
	}
}

func testPreferred(t T, s *suite) {
	all := s.all(t)
	for _, want := range []cloud.Offering{all[len(all)-1], all[len(all)/2], all[1]} {
		claim := s.claim()
		claim.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred([]cloud.Offering{want, all[0]})
		if got := bought(s.launch(t, claim)); got != want {
			t.Errorf("bought %s, want %s, which is preferred", got, want)
		}
	}
	// What is preferred must still meet the requirements.
	claim := s.claim(in(corev1.LabelTopologyZone, all[0].Zone))
	other := all[slices.IndexFunc(all, func(o cloud.Offering) bool { return o.Zone != all[0].Zone })]
	claim.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred([]cloud.Offering{other})
	if got := bought(s.launch(t, claim)); got.Zone != all[0].Zone {
		t.Errorf("bought %s, want zone %s, which is required", got, all[0].Zone)
	}
}

func testOddPreferred(t T, s *suite) {
	want := s.all(t)[2]
	claim := s.claim()
	claim.Annotations[cloud.PreferredAnnotation] = "no-such-type/" + want.Zone + "/spot,nonsense,,a/b/c/d/e," + want.String()
	if got := bought(s.launch(t, claim)); got != want {
		t.Errorf("bought %s, want %s", got, want)
	}
}

func testPassedOver(t T, s *suite) {
	if s.Exhaust == nil {
		t.Skip("this cloud cannot be exhausted")
	}
	all := s.all(t)
	gone, next := all[2:4], all[4]
	before := s.catalog(t)
	s.exhaust(gone...)
	if again := s.catalog(t); again != before {
		t.Fatal("the catalogue told that capacity is gone: the test needs a surprise")
	}
	claim := s.claim()
	claim.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred([]cloud.Offering{gone[0], gone[1], next})
	if got := bought(s.launch(t, claim)); got != next {
		t.Errorf("bought %s, want %s, the first with capacity", got, next)
	}
	if after := s.catalog(t); after == before {
		t.Error("Catalog() is the same one although capacity errors were seen")
	}
	for _, o := range gone {
		if s.available(t, o) {
			t.Errorf("%s is available although it was just out of capacity", o)
		}
	}
	if !s.available(t, next) {
		t.Errorf("%s is unavailable although it was just bought", next)
	}
	s.advance(Memory)
	for _, o := range gone {
		if !s.available(t, o) {
			t.Errorf("%s is still unavailable after %s: it would never be tried again", o, Memory)
		}
	}
}

func testNothingLeft(t T, s *suite) {
	if s.Exhaust == nil {
		t.Skip("this cloud cannot be exhausted")
	}
	all := s.all(t)
	var gone []cloud.Offering
	for _, o := range all {
		if o.InstanceType == all[0].InstanceType {
			gone = append(gone, o)
		}
	}
	s.exhaust(gone...)
	claim := s.claim(in(corev1.LabelInstanceTypeStable, all[0].InstanceType))
	for i := range 2 { // the second time the provider remembers
		m, err := s.provider.Launch(t.Context(), claim)
		var none *cloud.InsufficientCapacityError
		if !errors.As(err, &none) {
			t.Fatalf("launch %d gave %v, %v, want an InsufficientCapacityError", i, m, err)
		}
		if i == 0 && len(none.Offerings) != len(gone) {
			t.Errorf("tried %v, want %v", none.Offerings, gone)
		}
	}
	if machines := s.list(t, s.provider); len(machines) != 0 {
		t.Errorf("%d machines, want none", len(machines))
	}
}

func testNothingFits(t T, s *suite) {
	huge := s.claim()
	huge.Spec.Resources.Requests = resources.List{corev1.ResourceCPU: 1e9}.Quantities()
	unknown := s.claim()
	unknown.Spec.Resources.Requests = resources.List{"example.com/no-such-device": 1}.Quantities()
	odd := s.claim(in(corev1.LabelInstanceTypeStable, "no-such-type"))
	contrary := s.claim(in(corev1.LabelTopologyZone, "no-such-zone"))
	for name, claim := range map[string]*karpv1.NodeClaim{"a million cores": huge, "an unknown device": unknown, "an unknown type": odd, "an unknown zone": contrary} {
		if m, err := s.provider.Launch(t.Context(), claim); !cloud.IsInsufficientCapacity(err) {
			t.Errorf("%s: %v, %v, want an InsufficientCapacityError", name, m, err)
		}
	}
	if machines := s.list(t, s.provider); len(machines) != 0 {
		t.Errorf("%d machines, want none", len(machines))
	}
}

func testPlain(t T, s *suite) {
	claim := s.claim()
	claim.Annotations, claim.Spec.Requirements = nil, nil
	claim.Spec.Resources.Requests = nil
	m := s.launch(t, claim)
	if _, ok := s.catalog(t).ByName(bought(m).InstanceType); !ok {
		t.Errorf("bought %s, which the catalogue does not have", bought(m))
	}
}

// testRequirements launches random claims, and judges each by a plain search.
func testRequirements(t T, s *suite) {
	rng := rand.New(rand.NewPCG(s.opts.Seed, 7))
	bought, none := 0, 0
	for range s.opts.Claims {
		claim := s.random(t, rng)
		best, price := s.search(t, claim)
		m, err := s.provider.Launch(t.Context(), claim)
		switch {
		case best == "" && cloud.IsInsufficientCapacity(err):
			none++
		case best == "":
			t.Fatalf("%s: %v, %v, want an InsufficientCapacityError\n%s", claim.Name, m, err, show(claim))
		case err != nil || m == nil:
			t.Fatalf("%s: %v, %v, want %s\n%s", claim.Name, m, err, best, show(claim))
		default:
			bought++
			s.judge(t, claim, m, price)
		}
		if t.Failed() {
			return
		}
	}
	if bought < s.opts.Claims/10 || none < s.opts.Claims/50 {
		t.Errorf("of %d claims %d were bought and %d could not be: the test says little", s.opts.Claims, bought, none)
	}
}

func show(claim *karpv1.NodeClaim) string {
	return fmt.Sprintf("requirements %v\nrequests %v", claim.Spec.Requirements, claim.Spec.Resources.Requests)
}

// random is a claim that asks for some of what some offering of the catalogue has.
func (s *suite) random(t T, rng *rand.Rand) *karpv1.NodeClaim {
	types := s.catalog(t).Types()
	it := &types[rng.IntN(len(types))]
	o := &it.Offerings[rng.IntN(len(it.Offerings))]
	claim := s.claim()
	add := func(r karpv1.Requirement) { claim.Spec.Requirements = append(claim.Spec.Requirements, r) }
	if rng.IntN(2) == 0 {
		add(in(corev1.LabelTopologyZone, o.Zone))
	}
	if rng.IntN(3) == 0 {
		add(in(karpv1.CapacityTypeLabelKey, o.CapacityType))
	}
	if rng.IntN(4) == 0 {
		names := []string{it.Name}
		for range rng.IntN(4) {
			names = append(names, types[rng.IntN(len(types))].Name)
		}
		add(in(corev1.LabelInstanceTypeStable, names...))
	}
	keys := it.Requirements.Keys()
	for range rng.IntN(4) {
		key := keys[rng.IntN(len(keys))]
		values := it.Requirements[key].Values()
		switch op := rng.IntN(5); {
		case len(values) == 0:
			add(karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist})
		case op == 0:
			add(karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values[:1]})
		case op == 1:
			add(karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpExists})
		default:
			add(in(key, values[rng.IntN(len(values))]))
		}
	}
	for _, key := range o.Requirements.Keys() {
		if values := o.Requirements[key].Values(); rng.IntN(4) == 0 && len(values) > 0 {
			add(in(key, values[rng.IntN(len(values))]))
		}
	}
	if rng.IntN(4) == 0 { // a label that no machine has is the claim's own affair
		add(in("example.com/team", "a"))
	}
	requests := resources.List{corev1.ResourcePods: 1}
	share := func() int64 { return int64(rng.IntN(130)) }
	requests[corev1.ResourceCPU] = it.Allocatable[corev1.ResourceCPU] * share() / 100
	requests[corev1.ResourceMemory] = it.Allocatable[corev1.ResourceMemory] / 100 * share()
	claim.Spec.Resources.Requests = requests.Quantities()
	return claim
}

// search finds the cheapest offering for a claim by looking at each.
func (s *suite) search(t T, claim *karpv1.NodeClaim) (best string, price catalog.Price) {
	t.Helper()
	requests, err := resources.FromQuantities(claim.Spec.Resources.Requests)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range s.catalog(t).Types() {
		if !requests.FitsIn(it.Allocatable) {
			continue
		}
		for _, o := range it.Offerings {
			if o.Unavailable {
				continue
			}
			ok := true
			for _, r := range claim.Spec.Requirements {
				ok = ok && meets(t, &it, &o, r)
			}
			if ok && (best == "" || o.Price < price) {
				best, price = it.Name+"/"+o.Zone+"/"+o.CapacityType, o.Price
			}
		}
	}
	return best, price
}

// meets reports whether a machine of an offering can meet one requirement.
func meets(t T, it *catalog.InstanceType, o *catalog.Offering, r karpv1.Requirement) bool {
	t.Helper()
	req, err := requirements.New(r.Key, r.Operator, r.Values...)
	if err != nil {
		t.Fatal(err)
	}
	switch r.Key {
	case corev1.LabelTopologyZone:
		return req.Has(o.Zone)
	case karpv1.CapacityTypeLabelKey:
		return req.Has(o.CapacityType)
	case catalog.ReservationIDLabel:
		return o.ReservationID == "" && req.AllowsAbsent() || o.ReservationID != "" && req.Has(o.ReservationID)
	}
	have, ok := o.Requirements[r.Key]
	if !ok {
		if have, ok = it.Requirements[r.Key]; !ok {
			return true // the claim brings the label itself
		}
	}
	return slices.ContainsFunc(have.Values(), req.Has) || have.AllowsAbsent() && req.AllowsAbsent()
}

// judge checks a machine against its claim.
func (s *suite) judge(t T, claim *karpv1.NodeClaim, m *cloud.Machine, price catalog.Price) {
	t.Helper()
	it, ok := s.catalog(t).ByName(bought(m).InstanceType)
	if !ok {
		t.Errorf("%s is %s, which the catalogue does not have", claim.Name, bought(m))
		return
	}
	consistent(t, it, m)
	for _, r := range claim.Spec.Requirements {
		req, err := requirements.New(r.Key, r.Operator, r.Values...)
		if err != nil {
			t.Fatal(err)
		}
		value, ok := m.Labels[r.Key]
		known := it.Requirements.Has(r.Key) || r.Key == corev1.LabelTopologyZone || r.Key == karpv1.CapacityTypeLabelKey ||
			slices.ContainsFunc(it.Offerings, func(o catalog.Offering) bool { return o.Requirements.Has(r.Key) })
		if ok && !req.Has(value) || !ok && known && !req.AllowsAbsent() {
			t.Errorf("%s is %s with %s=%q, want %s", claim.Name, bought(m), r.Key, value, req)
		}
	}
	requests, err := resources.FromQuantities(claim.Spec.Resources.Requests)
	if err != nil {
		t.Fatal(err)
	}
	if have, err := resources.FromQuantities(m.Allocatable); err != nil || !requests.FitsIn(have) {
		t.Errorf("%s is %s with %v (%v), want %v", claim.Name, bought(m), m.Allocatable, err, claim.Spec.Resources.Requests)
	}
	for _, o := range it.Offerings {
		if bought(m) == (cloud.Offering{InstanceType: it.Name, Zone: o.Zone, CapacityType: o.CapacityType, ReservationID: o.ReservationID}) {
			if o.Price != price {
				t.Errorf("%s is %s for %v, want the cheapest for %v\n%s", claim.Name, bought(m), o.Price, price, show(claim))
			}
			return
		}
	}
	t.Errorf("%s is %s, which the catalogue does not have", claim.Name, bought(m))
}

func testMissingClass(t T, s *suite) {
	pool, claim := s.pool(), s.claim()
	pool.Spec.Template.Spec.NodeClassRef.Name, claim.Spec.NodeClassRef.Name = "no-such-class", "no-such-class"
	if c, err := s.provider.Catalog(t.Context(), pool); !cloud.IsNodeClassNotReady(err) {
		t.Errorf("Catalog() = %v, %v, want a NodeClassNotReadyError", c, err)
	}
	if m, err := s.provider.Launch(t.Context(), claim); !cloud.IsNodeClassNotReady(err) {
		t.Errorf("Launch() = %v, %v, want a NodeClassNotReadyError", m, err)
	}
	s.launch(t, s.claim()) // others are not held up
}

func testOtherClass(t T, s *suite) {
	pool, claim := s.pool(), s.claim()
	pool.Spec.Template.Spec.NodeClassRef.Kind, claim.Spec.NodeClassRef.Kind = "OtherNodeClass", "OtherNodeClass"
	if c, err := s.provider.Catalog(t.Context(), pool); !cloud.IsNodeClassNotReady(err) {
		t.Errorf("Catalog() = %v, %v, want a NodeClassNotReadyError", c, err)
	}
	if m, err := s.provider.Launch(t.Context(), claim); !cloud.IsNodeClassNotReady(err) {
		t.Errorf("Launch() = %v, %v, want a NodeClassNotReadyError", m, err)
	}
}

// gone lets time pass until the claim's machine is not found, and fails if it stays.
func (s *suite) gone(t T, claim *karpv1.NodeClaim) {
	t.Helper()
	for range 60 {
		err := s.provider.Terminate(t.Context(), claim)
		switch {
		case cloud.IsNotFound(err):
			return
		case err != nil:
			t.Fatalf("Terminate() error: %v", err)
		}
		s.advance(Ending / 60)
	}
	t.Fatalf("the machine of %s is still there %s after its termination", claim.Name, Ending)
}

func testTerminate(t T, s *suite) {
	for name, wait := range map[string]time.Duration{"at once": 0, "when it runs": 10 * time.Minute} {
		claim := s.claim()
		m := s.launch(t, claim)
		s.advance(wait)
		if wait == 0 {
			claim.Status.ProviderID = "" // the controller was stopped before it could note it
		} else {
			claim.Status.ProviderID = m.ProviderID
		}
		if err := s.provider.Terminate(t.Context(), claim); err != nil {
			t.Errorf("%s: Terminate() error: %v, want nil at first", name, err)
		}
		machines := s.list(t, s.provider)
		i := slices.IndexFunc(machines, func(listed *cloud.Machine) bool { return listed.ProviderID == m.ProviderID })
		if i >= 0 && !machines[i].Ending {
			t.Errorf("%s: the machine is not ending after Terminate()", name)
		}
		if got, err := s.provider.Get(t.Context(), m.ProviderID); i < 0 && err == nil {
			t.Errorf("%s: Get() = %v, but List() leaves it out: machines that are ending are listed", name, got)
		}
		s.gone(t, claim)
		if got, err := s.provider.Get(t.Context(), m.ProviderID); !cloud.IsNotFound(err) {
			t.Errorf("%s: Get() = %v, %v, want a NotFoundError", name, got, err)
		}
		for _, p := range []cloud.Provider{s.provider, s.open()} {
			if machines := s.list(t, p); len(machines) != 0 {
				t.Errorf("%s: %d machines, want none", name, len(machines))
			}
		}
	}
}

func testOthers(t T, s *suite) {
	kept, claim := s.claim(), s.claim()
	want := s.launch(t, kept)
	s.launch(t, claim)
	s.gone(t, claim)
	if got := s.get(t, want.ProviderID); got.Ending {
		t.Errorf("the other machine is ending: %v", got)
	}
	if machines := s.list(t, s.provider); len(machines) != 1 {
		t.Errorf("%d machines, want the other one", len(machines))
	}
}

func testUnknown(t T, s *suite) {
	if err := s.provider.Terminate(t.Context(), s.claim()); !cloud.IsNotFound(err) {
		t.Errorf("Terminate() of a claim without machine: %v, want a NotFoundError", err)
	}
	m := s.launch(t, s.claim())
	for _, id := range []string{"", "nonsense", "other:///zone/i-0123456789abcdef0", m.ProviderID + "0"} {
		if got, err := s.provider.Get(t.Context(), id); !cloud.IsNotFound(err) {
			t.Errorf("Get(%q) = %v, %v, want a NotFoundError", id, got, err)
		}
	}
	claim := s.claim()
	claim.Status.ProviderID = m.ProviderID + "0"
	if err := s.provider.Terminate(t.Context(), claim); !cloud.IsNotFound(err) {
		t.Errorf("Terminate() of a machine that never was: %v, want a NotFoundError", err)
	}
}

func testList(t T, s *suite) {
	want := map[string]string{}
	for range 5 {
		claim := s.claim()
		want[s.launch(t, claim).ProviderID] = string(claim.UID)
	}
	for _, p := range []cloud.Provider{s.provider, s.open()} {
		machines := s.list(t, p)
		if len(machines) != len(want) {
			t.Errorf("%d machines, want %d", len(machines), len(want))
		}
		for _, m := range machines {
			if uid, ok := want[m.ProviderID]; !ok || m.ClaimUID != "" && m.ClaimUID != uid || m.Ending || bought(m).InstanceType == "" {
				t.Errorf("machine %s of claim %s (%s), ending %v, want one of %v", m.ProviderID, m.ClaimUID, bought(m), m.Ending, want)
			}
		}
	}
}

func testDrift(t T, s *suite) {
	claim := s.claim()
	claim.Status.ProviderID = s.launch(t, claim).ProviderID
	for range 2 {
		if why, err := s.provider.Drift(t.Context(), claim); why != "" || err != nil {
			t.Errorf("Drift() = %q, %v, want none", why, err)
		}
		s.advance(10 * time.Minute)
	}
}
