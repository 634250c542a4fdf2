package sim

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

const (
	// Kind is the kind of NodeClass that the simulated cloud has.
	Kind = "SimNodeClass"
	// Drifted is the reason of a machine whose SimNodeClass gives Nodes other labels or
	// taints now.
	Drifted = "NodeClassDrift"

	scheme = "sim:///"
	// wrongScheme is that of the provider IDs that a cloud lies with.
	wrongScheme = "sim-wrong:///"
)

// Options tune a [Provider]. The zero value is ready to use.
type Options struct {
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// StandIns are kinds of NodeClass of other clouds that are taken for a SimNodeClass of
	// the same name, so that manifests for them run as they stand.
	StandIns []schema.GroupVersionKind
	// Catalog is what classes sell that name no catalogue. Defaults to the built-in one of
	// EC2.
	Catalog *catalog.Catalog
}

// Provider is the simulated cloud. It has a [cloud.Interrupter] and [cloud.Repairer].
// What it knows beside Store is which offerings were out of capacity lately.
type Provider struct {
	store  Store
	now    func() time.Time
	market *market
	feed   feed
	kinds  []schema.GroupVersionKind
}

var (
	_ cloud.Provider    = (*Provider)(nil)
	_ cloud.Interrupter = (*Provider)(nil)
	_ cloud.Repairer    = (*Provider)(nil)
)

// New makes a provider of the machines in store and the classes in classes. Nothing
// happens to machines by itself: see [Provider.Step].
func New(store Store, classes Classes, opts Options) *Provider {
	p := &Provider{store: store, now: opts.Now, market: newMarket(store, classes)}
	if opts.Catalog != nil {
		p.market.builtin[""] = func() *catalog.Catalog { return opts.Catalog }
	}
	p.kinds = append([]schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind(Kind)}, opts.StandIns...)
	if p.now == nil {
		p.now = time.Now
	}
	return p
}

// Name implements [cloud.Provider].
func (p *Provider) Name() string { return "sim" }

// NodeClasses implements [cloud.Provider].
func (p *Provider) NodeClasses() []schema.GroupVersionKind { return slices.Clone(p.kinds) }

// RepairPolicies implements [cloud.Repairer]: a Node that is not ready for ten minutes is
// broken.
func (p *Provider) RepairPolicies() []cloud.RepairPolicy {
	return []cloud.RepairPolicy{
		{Condition: corev1.NodeReady, Status: corev1.ConditionFalse, Toleration: 10 * time.Minute, Drain: new(time.Duration)},
		{Condition: corev1.NodeReady, Status: corev1.ConditionUnknown, Toleration: 10 * time.Minute, Drain: new(time.Duration)},
	}
}

// Interruptions implements [cloud.Interrupter].
func (p *Provider) Interruptions(ctx context.Context) <-chan cloud.Interruption {
	return p.feed.listen(ctx)
}

// Announce delivers the interruptions of a machine that are still to be delivered. Whoever
// moves machines by [Advance] calls it when the new status is stored.
func (p *Provider) Announce(in *v1alpha1.SimInstance) {
	for _, i := range Announcements(in) {
		p.feed.add(i)
	}
}

// Forget keeps what was announced of a machine that is gone from those who listen later.
func (p *Provider) Forget(in *v1alpha1.SimInstance) { p.feed.forget(in.Spec.ProviderID) }

// Catalog implements [cloud.Provider].
func (p *Provider) Catalog(ctx context.Context, pool *karpv1.NodePool) (*catalog.Catalog, error) {
	name, err := p.className(pool.Spec.Template.Spec.NodeClassRef)
	if err != nil {
		return nil, err
	}
	return p.Sold(ctx, name)
}

// Sold is what the SimNodeClass of a name sells now, as [Provider.Catalog].
func (p *Provider) Sold(ctx context.Context, name string) (*catalog.Catalog, error) {
	class, st, err := p.market.class(ctx, name)
	if err != nil {
		return nil, err
	}
	defer st.mu.Unlock()
	return p.market.sold(ctx, st, class, p.now())
}

// className is the name of the SimNodeClass that ref refers to.
func (p *Provider) className(ref *karpv1.NodeClassReference) (string, error) {
	switch {
	case ref == nil:
		return "", &cloud.NodeClassNotReadyError{NodeClass: Kind, Err: errors.New("nodeClassRef is missing")}
	case !slices.ContainsFunc(p.kinds, func(k schema.GroupVersionKind) bool { return k.Group == ref.Group && k.Kind == ref.Kind }):
		return "", &cloud.NodeClassNotReadyError{NodeClass: ref.Kind + "/" + ref.Name, Err: fmt.Errorf("is not a %s of group %s", Kind, v1alpha1.Group)}
	}
	return ref.Name, nil
}

// choice is an offering that would do.
type choice struct {
	of   *catalog.InstanceType
	o    *catalog.Offering
	rank int // by preference; larger is later
}

func (c choice) name() cloud.Offering { return offeringOf(c.of.Name, c.o) }

// compare orders choices: first what is preferred, then what is cheap, and of what costs
// the same what is paid for already.
func (c choice) compare(d choice) int {
	later := func(o *catalog.Offering) int {
		if o.CapacityType == catalog.Reserved {
			return 0
		}
		return 1
	}
	if n := cmp.Or(cmp.Compare(c.rank, d.rank), cmp.Compare(c.o.Price, d.o.Price), cmp.Compare(later(c.o), later(d.o))); n != 0 {
		return n
	}
	return cmp.Or(cmp.Compare(c.of.Name, d.of.Name), cmp.Compare(c.o.Zone, d.o.Zone), cmp.Compare(c.o.CapacityType, d.o.CapacityType), cmp.Compare(c.o.ReservationID, d.o.ReservationID))
}

// choices are a heap: mostly the best one is all that is needed of thousands.
type choices []choice

func (c choices) Len() int           { return len(c) }
func (c choices) Less(i, j int) bool { return c[i].compare(c[j]) < 0 }
func (c choices) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *choices) Push(x any)        { *c = append(*c, x.(choice)) }
func (c *choices) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}

// Launch implements [cloud.Provider]. The machine boots later.
func (p *Provider) Launch(ctx context.Context, claim *karpv1.NodeClaim) (*cloud.Machine, error) {
	if claim.UID == "" {
		return nil, &cloud.CreateError{Reason: "InvalidClaim", Message: "the NodeClaim has no UID"}
	}
	in, tried, err := p.try(ctx, claim)
	if err == nil && in != nil {
		return machine(in), nil
	}
	// Whatever is in the way now, the machine of an earlier call counts: another process
	// was faster, or this one before it was stopped.
	id := instanceID(claim)
	switch earlier, getErr := p.store.Get(ctx, id); {
	case getErr == nil:
		return machine(earlier), nil
	case err != nil && !errors.Is(err, ErrExists):
		return nil, err
	case !errors.Is(getErr, ErrNotFound) || err != nil:
		return nil, fmt.Errorf("machine %s: %w", id, getErr)
	}
	out := &cloud.InsufficientCapacityError{Offerings: tried}
	if len(tried) == 0 {
		out.Err = errors.New("no offering that is available meets the claim's requirements and holds its requests")
	}
	return nil, out
}

// try buys a machine for a claim that has none. Without error and machine there is no
// capacity.
func (p *Provider) try(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.SimInstance, []string, error) {
	name, err := p.className(claim.Spec.NodeClassRef)
	if err != nil {
		return nil, nil, err
	}
	class, st, err := p.market.class(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	return p.buy(ctx, st, class, claim, p.now())
}

// buy takes the first choice that there is capacity for. It unlocks st. Without error and
// machine there is none.
func (p *Provider) buy(ctx context.Context, st *stall, class *v1alpha1.SimNodeClass, claim *karpv1.NodeClaim, now time.Time) (*v1alpha1.SimInstance, []string, error) {
	locked := true
	unlock := func() {
		if locked {
			st.mu.Unlock()
			locked = false
		}
	}
	defer unlock()
	sold, err := p.market.sold(ctx, st, class, now)
	if err != nil {
		return nil, nil, err
	}
	used, err := p.market.count(ctx, st, class, now)
	if err != nil {
		return nil, nil, err
	}
	reqs, open, err := choose(sold, claim)
	if err != nil {
		return nil, nil, err
	}
	var tried []string
	for len(open) > 0 {
		c := heap.Pop(&open).(choice)
		name := c.name()
		if f := failure(class, v1alpha1.FailureLaunch, name, claim, now); f != nil {
			return nil, nil, &cloud.CreateError{
				Reason:  cmp.Or(f.Reason, "SimulatedFailure"),
				Message: cmp.Or(f.Message, "launches of "+name.String()+" fail by a rule of "+Kind+" "+class.Name),
			}
		}
		if hidden(class, used, name, now) {
			st.exhausted(name, class, now)
			tried = append(tried, name.String())
			continue
		}
		if !st.finite {
			unlock() // other launches cannot take what this one counts on
		}
		in := newInstance(class, claim, reqs, c, now)
		if err := p.store.Create(ctx, in); err != nil {
			return nil, nil, fmt.Errorf("create machine %s: %w", in.Name, err)
		}
		return in, nil, nil
	}
	return nil, tried, nil
}

// choose makes a heap of the offerings that meet the claim, best first.
func choose(sold *catalog.Catalog, claim *karpv1.NodeClaim) (requirements.Set, choices, error) {
	invalid := func(err error) error {
		return &cloud.CreateError{Reason: "InvalidClaim", Message: err.Error(), Err: err}
	}
	entries := make([]requirements.Entry, len(claim.Spec.Requirements))
	for i, r := range claim.Spec.Requirements {
		entries[i] = requirements.Entry{Key: r.Key, Operator: r.Operator, Values: r.Values}
	}
	reqs, err := requirements.FromEntries(entries)
	if err != nil {
		return nil, nil, invalid(fmt.Errorf("requirements: %w", err))
	}
	requests, err := resources.FromQuantities(claim.Spec.Resources.Requests)
	if err != nil {
		return nil, nil, invalid(fmt.Errorf("requests: %w", err))
	}
	preferred := cloud.Preferred(claim)
	rank := make(map[cloud.Offering]int, len(preferred))
	for i, o := range preferred {
		if _, ok := rank[o]; !ok {
			rank[o] = i
		}
	}
	zones, capacityTypes, reservations := reqs.Get(corev1.LabelTopologyZone), reqs.Get(karpv1.CapacityTypeLabelKey), reqs.Get(catalog.ReservationIDLabel)
	var out choices
	consider := func(t *catalog.InstanceType) {
		if !requests.FitsIn(t.Allocatable) || t.Requirements.Intersects(reqs) != nil {
			return
		}
		for i := range t.Offerings {
			o := &t.Offerings[i]
			if o.Unavailable || !zones.Has(o.Zone) || !capacityTypes.Has(o.CapacityType) || !reserved(reservations, o.ReservationID) ||
				o.Requirements.Intersects(reqs) != nil {
				continue
			}
			c := choice{of: t, o: o, rank: len(preferred)}
			if len(preferred) > 0 {
				if r, ok := rank[c.name()]; ok {
					c.rank = r
				}
			}
			out = append(out, c)
		}
	}
	if names := reqs.Get(corev1.LabelInstanceTypeStable); names.Values() != nil {
		for _, name := range names.Values() {
			if t, ok := sold.ByName(name); ok {
				consider(t)
			}
		}
	} else {
		types := sold.Types()
		for i := range types {
			consider(&types[i])
		}
	}
	heap.Init(&out)
	return reqs, out, nil
}

// reserved reports whether a reservation satisfies r; an offering without one has none of
// the label.
func reserved(r requirements.Requirement, id string) bool {
	if id == "" {
		return r.AllowsAbsent()
	}
	return r.Has(id)
}

// failure is the first rule of a kind that hits a launch, or nil.
func failure(class *v1alpha1.SimNodeClass, kind v1alpha1.FailureKind, o cloud.Offering, claim *karpv1.NodeClaim, now time.Time) *v1alpha1.SimFailure {
	for i := range class.Spec.Failures {
		f := &class.Spec.Failures[i]
		if f.Kind == kind && f.Matches(o.InstanceType, o.Zone, o.CapacityType) && f.Contains(class.CreationTimestamp.Time, now) &&
			hits(f.Percent, string(claim.UID), "failure/"+string(kind)) {
			return f
		}
	}
	return nil
}

// newInstance is the record of a machine that is bought now.
func newInstance(class *v1alpha1.SimNodeClass, claim *karpv1.NodeClaim, reqs requirements.Set, c choice, now time.Time) *v1alpha1.SimInstance {
	uid, id, name := string(claim.UID), instanceID(claim), c.name()
	in := &v1alpha1.SimInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SimInstance"},
		ObjectMeta: metav1.ObjectMeta{Name: id},
		Spec: v1alpha1.SimInstanceSpec{
			Claim:               v1alpha1.SimClaim{Name: claim.Name, UID: uid},
			NodePool:            claim.Labels[karpv1.NodePoolLabelKey],
			NodeClass:           class.Name,
			NodeClassHash:       classHash(class),
			InstanceType:        name.InstanceType,
			Zone:                name.Zone,
			CapacityType:        name.CapacityType,
			ReservationID:       name.ReservationID,
			Price:               strconv.FormatFloat(c.o.Price.Dollars(), 'f', -1, 64),
			ProviderID:          scheme + name.Zone + "/" + id,
			Labels:              labels(c.of, c.o, reqs),
			NodeLabels:          maps.Clone(class.Spec.Labels),
			Capacity:            c.of.Capacity.Quantities(),
			Allocatable:         c.of.Allocatable.Quantities(),
			LaunchTime:          *microTime(now),
			LaunchLatency:       latency(class.Spec.LaunchLatency, uid, "launch"),
			RegistrationLatency: latency(class.Spec.RegistrationLatency, uid, "registration"),
			TerminateLatency:    latency(class.Spec.TerminateLatency, uid, "terminate"),
			NeverRegisters:      failure(class, v1alpha1.FailureNeverRegisters, name, claim, now) != nil,
		},
	}
	for _, t := range class.Spec.Taints {
		in.Spec.Taints = append(in.Spec.Taints, *t.DeepCopy())
	}
	if failure(class, v1alpha1.FailureWrongProviderID, name, claim, now) != nil {
		in.Spec.NodeProviderID = wrongScheme + name.Zone + "/" + id
	}
	if f := failure(class, v1alpha1.FailureLateNotFound, name, claim, now); f != nil && f.For != nil {
		in.Spec.ForgetLatency = *f.For
	}
	return in
}

// labels are those of a machine: what its type and offering leave no choice about, and of
// what they leave open what the claim asks for, or else the common value.
func labels(t *catalog.InstanceType, o *catalog.Offering, reqs requirements.Set) map[string]string {
	out := map[string]string{karpv1.CapacityTypeLabelKey: o.CapacityType}
	settle := func(set requirements.Set) {
		for key, r := range set {
			values := r.Values()
			if want := reqs.Get(key); len(values) > 1 {
				values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !want.Has(v) })
			}
			if len(values) == 0 {
				continue
			}
			value := values[0]
			for _, common := range []string{"linux", "default"} {
				if slices.Contains(values, common) {
					value = common
				}
			}
			out[key] = value
		}
	}
	settle(t.Requirements)
	settle(o.Requirements)
	if o.Zone != "" {
		out[corev1.LabelTopologyZone] = o.Zone
	}
	if o.ReservationID != "" {
		out[catalog.ReservationIDLabel] = o.ReservationID
	}
	return out
}

// instanceID is the name of the machine for a claim, in the form that EC2's have.
func instanceID(claim *karpv1.NodeClaim) string {
	sum := sha256.Sum256([]byte(claim.UID))
	return "i-" + hex.EncodeToString(sum[:])[:17]
}

// InstanceName is the name of the SimInstance that a provider ID names; false if it is not
// one of the simulated cloud.
func InstanceName(providerID string) (string, bool) {
	rest, ok := strings.CutPrefix(providerID, scheme)
	if !ok {
		return "", false
	}
	name := rest[strings.LastIndexByte(rest, '/')+1:]
	return name, name != ""
}

// classHash is a digest of what a class gives to Nodes.
func classHash(class *v1alpha1.SimNodeClass) string {
	sum := sha256.Sum256([]byte(text(class.Spec.Labels, class.Spec.Taints)))
	return hex.EncodeToString(sum[:8])
}

// machine is a record in the form of the port.
func machine(in *v1alpha1.SimInstance) *cloud.Machine {
	return &cloud.Machine{
		ProviderID:  in.Spec.ProviderID,
		ClaimName:   in.Spec.Claim.Name,
		ClaimUID:    in.Spec.Claim.UID,
		Labels:      maps.Clone(in.Spec.Labels),
		Capacity:    in.Spec.Capacity.DeepCopy(),
		Allocatable: in.Spec.Allocatable.DeepCopy(),
		Created:     in.Spec.LaunchTime.Time,
		Ending:      in.Status.TerminatingTime != nil,
	}
}

// find returns the record of the claim's machine, or ErrNotFound.
func (p *Provider) find(ctx context.Context, claim *karpv1.NodeClaim) (*v1alpha1.SimInstance, error) {
	// A claim that was restored from a backup has another UID.
	if name, ok := InstanceName(claim.Status.ProviderID); ok {
		return p.store.Get(ctx, name)
	}
	return p.store.Get(ctx, instanceID(claim))
}

// Terminate implements [cloud.Provider].
func (p *Provider) Terminate(ctx context.Context, claim *karpv1.NodeClaim) error {
	gone := &cloud.NotFoundError{Machine: cmp.Or(claim.Status.ProviderID, claim.Name)}
	in, err := p.find(ctx, claim)
	if err == nil && in.Status.TerminatingTime == nil {
		now := p.now()
		_, err = p.store.Update(ctx, in.Name, func(in *v1alpha1.SimInstance) bool {
			if in.Status.TerminatingTime != nil {
				return false
			}
			in.Status.Phase, in.Status.TerminatingTime = v1alpha1.SimTerminating, microTime(now)
			return true
		})
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return gone
	case err != nil:
		return fmt.Errorf("terminate machine of %s: %w", claim.Name, err)
	}
	return nil
}

// Get implements [cloud.Provider].
func (p *Provider) Get(ctx context.Context, providerID string) (*cloud.Machine, error) {
	name, ok := InstanceName(providerID)
	if !ok {
		return nil, &cloud.NotFoundError{Machine: providerID}
	}
	in, err := p.store.Get(ctx, name)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && in.Spec.ProviderID != providerID:
		return nil, &cloud.NotFoundError{Machine: providerID}
	case err != nil:
		return nil, fmt.Errorf("machine %s: %w", providerID, err)
	}
	return machine(in), nil
}

// List implements [cloud.Provider]. Machines are in order of their provider IDs.
func (p *Provider) List(ctx context.Context) ([]*cloud.Machine, error) {
	all, err := p.store.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	out := make([]*cloud.Machine, len(all))
	for i, in := range all {
		out[i] = machine(in)
	}
	slices.SortFunc(out, func(a, b *cloud.Machine) int { return cmp.Compare(a.ProviderID, b.ProviderID) })
	return out, nil
}

// Drift implements [cloud.Provider]. A class that is missing is no drift; a machine that is
// missing is a NotFoundError.
func (p *Provider) Drift(ctx context.Context, claim *karpv1.NodeClaim) (string, error) {
	in, err := p.find(ctx, claim)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", &cloud.NotFoundError{Machine: cmp.Or(claim.Status.ProviderID, claim.Name)}
	case err != nil:
		return "", fmt.Errorf("machine of %s: %w", claim.Name, err)
	}
	class, err := p.market.classes.NodeClass(ctx, in.Spec.NodeClass)
	switch {
	case errors.Is(err, ErrNotFound):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("%s %q: %w", Kind, in.Spec.NodeClass, err)
	}
	if in.Spec.NodeClassHash != "" && in.Spec.NodeClassHash != classHash(class) {
		return Drifted, nil
	}
	return "", nil
}

// Event is a Node that appears, or one whose machine is gone.
type Event struct {
	Instance *v1alpha1.SimInstance
	// Node is the Node that appears; nil if the machine is gone.
	Node *corev1.Node
}

// Step brings all machines of the store to what they are now, and announces interruptions.
// It returns what happened to Nodes, in order of the machines' names, and when the next
// step is due: zero if nothing will happen by itself. It is for simulations; in a cluster
// package kube does the same.
func (p *Provider) Step(ctx context.Context) ([]Event, time.Time, error) {
	now := p.now()
	all, err := p.store.List(ctx)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("list machines: %w", err)
	}
	var events []Event
	var next time.Time
	for _, in := range slices.SortedFunc(slices.Values(all), func(a, b *v1alpha1.SimInstance) int { return cmp.Compare(a.Name, b.Name) }) {
		class, err := p.market.classes.NodeClass(ctx, in.Spec.NodeClass)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return events, next, fmt.Errorf("%s %q: %w", Kind, in.Spec.NodeClass, err)
		}
		var did Progress
		ended := false
		name := in.Name
		in, err = p.store.Update(ctx, name, func(in *v1alpha1.SimInstance) bool {
			before := in.Status.EndTime
			if did = Advance(in, class, now); did.Boot {
				Booted(in, now)
			}
			ended = before == nil && did.Ended
			return did.Changed || did.Boot
		})
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return events, next, fmt.Errorf("machine %s: %w", name, err)
		}
		p.Announce(in)
		switch {
		case did.Boot:
			events = append(events, Event{Instance: in, Node: Node(in)})
		case ended:
			events = append(events, Event{Instance: in})
		}
		if did.Forget {
			p.Forget(in)
			if err := p.store.Delete(ctx, name); err != nil {
				return events, next, fmt.Errorf("forget machine %s: %w", name, err)
			}
		}
		if !did.Next.IsZero() && (next.IsZero() || did.Next.Before(next)) {
			next = did.Next
		}
	}
	return events, next, nil
}
