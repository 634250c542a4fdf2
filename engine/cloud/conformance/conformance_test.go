package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/cloud/conformance"
	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// world is a simulated cloud.
type world struct {
	memory *sim.Memory
	class  *v1alpha1.SimNodeClass

	mu  sync.Mutex
	now time.Time
	// count and pairs are for faults that need them.
	count int
	pairs pairs
}

// pairs brings callers of the same claim together.
type pairs struct {
	mu    sync.Mutex
	first map[types.UID]chan struct{}
}

// second returns true for the second caller of a claim, and makes the first wait for it.
func (p *pairs) second(uid types.UID) bool {
	p.mu.Lock()
	waits, known := p.first[uid]
	if !known {
		if p.first == nil {
			p.first = map[types.UID]chan struct{}{}
		}
		p.first[uid] = make(chan struct{})
		waits = p.first[uid]
	} else {
		p.first[uid] = nil
	}
	p.mu.Unlock()
	switch {
	case !known:
		select {
		case <-waits:
		case <-time.After(time.Second): // nobody else comes
		}
		return false
	case waits == nil:
		return false
	}
	close(waits)
	return true
}

func (w *world) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// next counts.
func (w *world) next() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	return w.count
}

func (w *world) process() *sim.Provider {
	return sim.New(w.memory, w.memory, sim.Options{Now: w.Now})
}

// counted is the last result of next.
func (w *world) counted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// options have a cloud whose processes are made by open.
func options(open func(w *world) cloud.Provider) conformance.Options {
	return conformance.Options{Claims: 60, New: func(*testing.T) conformance.Cloud {
		w := &world{memory: &sim.Memory{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		w.class = &v1alpha1.SimNodeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "default", CreationTimestamp: metav1.NewTime(w.now)},
			Spec: v1alpha1.SimNodeClassSpec{
				Catalog:          v1alpha1.SimCatalog{Builtin: v1alpha1.BuiltinKWOK},
				TerminateLatency: v1alpha1.SimLatency{Base: metav1.Duration{Duration: 5 * time.Minute}},
			},
		}
		w.memory.SetNodeClass(w.class)
		world := w.process()
		return conformance.Cloud{
			Open:      func(*testing.T) cloud.Provider { return open(w) },
			NodeClass: karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: sim.Kind, Name: "default"},
			Exhaust: func(_ *testing.T, offerings ...cloud.Offering) {
				for _, o := range offerings {
					w.class.Spec.Capacity = append(w.class.Spec.Capacity, v1alpha1.SimCapacity{SimSelector: v1alpha1.SimSelector{
						InstanceTypes: []string{o.InstanceType}, Zones: []string{o.Zone}, CapacityTypes: []string{o.CapacityType},
					}})
				}
				w.memory.SetNodeClass(w.class)
			},
			Advance: func(t *testing.T, d time.Duration) {
				w.mu.Lock()
				w.now = w.now.Add(d)
				w.mu.Unlock()
				if _, _, err := world.Step(context.WithoutCancel(t.Context())); err != nil {
					t.Fatal(err)
				}
			},
		}
	}}
}

// faulty is a provider of which some methods are replaced.
type faulty struct {
	cloud.Provider
	name      func() string
	classes   func() []schema.GroupVersionKind
	launch    func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error)
	terminate func(ctx context.Context, c *karpv1.NodeClaim) error
	get       func(ctx context.Context, id string) (*cloud.Machine, error)
	list      func(ctx context.Context) ([]*cloud.Machine, error)
	catalog   func(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error)
	drift     func(ctx context.Context, c *karpv1.NodeClaim) (string, error)
}

func (f *faulty) Name() string {
	if f.name != nil {
		return f.name()
	}
	return f.Provider.Name()
}

func (f *faulty) NodeClasses() []schema.GroupVersionKind {
	if f.classes != nil {
		return f.classes()
	}
	return f.Provider.NodeClasses()
}

func (f *faulty) Launch(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
	if f.launch != nil {
		return f.launch(ctx, c)
	}
	return f.Provider.Launch(ctx, c)
}

func (f *faulty) Terminate(ctx context.Context, c *karpv1.NodeClaim) error {
	if f.terminate != nil {
		return f.terminate(ctx, c)
	}
	return f.Provider.Terminate(ctx, c)
}

func (f *faulty) Get(ctx context.Context, id string) (*cloud.Machine, error) {
	if f.get != nil {
		return f.get(ctx, id)
	}
	return f.Provider.Get(ctx, id)
}

func (f *faulty) List(ctx context.Context) ([]*cloud.Machine, error) {
	if f.list != nil {
		return f.list(ctx)
	}
	return f.Provider.List(ctx)
}

func (f *faulty) Catalog(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error) {
	if f.catalog != nil {
		return f.catalog(ctx, p)
	}
	return f.Provider.Catalog(ctx, p)
}

func (f *faulty) Drift(ctx context.Context, c *karpv1.NodeClaim) (string, error) {
	if f.drift != nil {
		return f.drift(ctx, c)
	}
	return f.Provider.Drift(ctx, c)
}

// asks changes what the provider is asked to launch.
func asks(change func(w *world, c *karpv1.NodeClaim)) func(*world, *faulty) {
	return func(w *world, f *faulty) {
		f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
			c = c.DeepCopy()
			change(w, c)
			return f.Provider.Launch(ctx, c)
		}
	}
}

// tells changes what the provider tells of machines, wherever it does.
func tells(change func(m *cloud.Machine)) func(*world, *faulty) {
	one := func(m *cloud.Machine, err error) (*cloud.Machine, error) {
		if err == nil {
			change(m)
		}
		return m, err
	}
	return func(_ *world, f *faulty) {
		f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
			return one(f.Provider.Launch(ctx, c))
		}
		f.get = func(ctx context.Context, id string) (*cloud.Machine, error) { return one(f.Provider.Get(ctx, id)) }
		f.list = func(ctx context.Context) ([]*cloud.Machine, error) {
			machines, err := f.Provider.List(ctx)
			for _, m := range machines {
				change(m)
			}
			return machines, err
		}
	}
}

// lists changes the list of machines.
func lists(change func([]*cloud.Machine) []*cloud.Machine) func(*world, *faulty) {
	return func(_ *world, f *faulty) {
		f.list = func(ctx context.Context) ([]*cloud.Machine, error) {
			machines, err := f.Provider.List(ctx)
			return change(machines), err
		}
	}
}

// refuses changes the errors of launches.
func refuses(change func(error) error) func(*world, *faulty) {
	return func(_ *world, f *faulty) {
		f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
			m, err := f.Provider.Launch(ctx, c)
			if err != nil {
				err = change(err)
			}
			return m, err
		}
	}
}

// ends replaces the answer of Terminate.
func ends(answer func(ctx context.Context, w *world, next cloud.Provider, c *karpv1.NodeClaim) error) func(*world, *faulty) {
	return func(w *world, f *faulty) {
		f.terminate = func(ctx context.Context, c *karpv1.NodeClaim) error { return answer(ctx, w, f.Provider, c) }
	}
}

// dropRequirement removes what a claim asks for by key.
func dropRequirement(c *karpv1.NodeClaim, key string) {
	c.Spec.Requirements = slices.DeleteFunc(c.Spec.Requirements, func(r karpv1.Requirement) bool { return r.Key == key })
}

// prefer changes the order in which a claim wants offerings to be tried.
func prefer(change func([]cloud.Offering) []cloud.Offering) func(*world, *karpv1.NodeClaim) {
	return func(_ *world, c *karpv1.NodeClaim) {
		if have := cloud.Preferred(c); len(have) > 0 {
			c.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred(change(have))
		}
	}
}

// TestFaults shows that the test finds providers out that break the port in one way each,
// and names the promise that is broken.
func TestFaults(t *testing.T) {
	const (
		identity, sells, machine     = "says what it is", "sells something, and says when that changes", "a machine is what the catalogue says"
		whoever, howeverMany         = "a claim gets one machine, whoever asks", "a claim gets one machine, however many ask"
		preferred, odd               = "preferred offerings come first, in their order", "names that cannot be read among the preferred do none"
		passedOver, nothingLeft      = "an offering without capacity is passed over", "nothing left is insufficient capacity"
		nothingFits, obeyed          = "nothing that fits is insufficient capacity", "requirements are obeyed, and the cheapest is bought"
		plain, missing, otherKind    = "a claim that asks for nothing special gets something", "a NodeClass that is missing is not ready", "a NodeClass of another kind is not ready"
		terminated, others, neverWas = "a machine that is terminated ends, and is not found", "a terminated machine leaves the others alone", "a machine that never was is not found"
		listed, drifted              = "all machines are listed, also by another process", "a fresh machine has not drifted"
	)
	tests := map[string]struct {
		fault func(w *world, f *faulty)
		// want are parts that must find the provider out.
		want []string
	}{
		"has no name":              {func(_ *world, f *faulty) { f.name = func() string { return "" } }, []string{identity}},
		"has no kind of NodeClass": {func(_ *world, f *faulty) { f.classes = func() []schema.GroupVersionKind { return nil } }, []string{identity}},
		"has another kind": {func(_ *world, f *faulty) {
			f.classes = func() []schema.GroupVersionKind { return []schema.GroupVersionKind{{Kind: "OtherNodeClass"}} }
		}, []string{identity}},
		"another catalogue each time": {func(_ *world, f *faulty) { f.catalog = copied(f) }, []string{sells}},
		"another catalogue after each launch, with the same contents": {func(_ *world, f *faulty) {
			var last atomic.Pointer[catalog.Catalog]
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				last.Store(nil)
				return f.Provider.Launch(ctx, c)
			}
			again := copied(f)
			f.catalog = func(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error) {
				if have := last.Load(); have != nil {
					return have, nil
				}
				c, err := again(ctx, p)
				last.Store(c)
				return c, err
			}
		}, []string{sells}},
		"one catalogue for ever": {func(_ *world, f *faulty) {
			var first *catalog.Catalog
			f.catalog = func(ctx context.Context, p *karpv1.NodePool) (c *catalog.Catalog, err error) {
				if first == nil {
					first, err = f.Provider.Catalog(ctx, p)
				}
				return first, err
			}
		}, []string{passedOver}},
		"the catalogue fails": {func(_ *world, f *faulty) {
			f.catalog = func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) { return nil, errors.New("throttled") }
		}, []string{sells}},
		"a wrong provider ID": {func(_ *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				m, err := f.Provider.Launch(ctx, c)
				if err == nil {
					m.ProviderID += "0"
				}
				return m, err
			}
		}, []string{machine, listed}},
		"no provider ID":              {tells(func(m *cloud.Machine) { m.ProviderID = "" }), []string{machine}},
		"the UID of another claim":    {tells(func(m *cloud.Machine) { m.ClaimUID = "other" }), []string{machine, listed}},
		"the name of another claim":   {tells(func(m *cloud.Machine) { m.ClaimName = "other" }), []string{machine}},
		"another zone":                {tells(func(m *cloud.Machine) { m.Labels[corev1.LabelTopologyZone] = "elsewhere" }), []string{machine}},
		"no label of the type":        {tells(func(m *cloud.Machine) { delete(m.Labels, corev1.LabelInstanceTypeStable) }), []string{machine, plain}},
		"no label of the system":      {tells(func(m *cloud.Machine) { delete(m.Labels, corev1.LabelOSStable) }), []string{machine, obeyed}},
		"a label that the type lacks": {tells(func(m *cloud.Machine) { m.Labels[corev1.LabelArchStable] = "vax" }), []string{machine}},
		"more CPU than there is":      {tells(func(m *cloud.Machine) { m.Capacity[corev1.ResourceCPU] = resource.MustParse("1k") }), []string{machine}},
		"no allocatable resources":    {tells(func(m *cloud.Machine) { m.Allocatable = nil }), []string{machine, obeyed}},
		"no time of creation":         {tells(func(m *cloud.Machine) { m.Created = time.Time{} }), []string{machine}},
		"every machine is ending":     {tells(func(m *cloud.Machine) { m.Ending = true }), []string{machine, others, listed}},
		"no machine is ending":        {tells(func(m *cloud.Machine) { m.Ending = false }), []string{terminated}},
		"no machine and no error": {func(_ *world, f *faulty) {
			f.launch = func(context.Context, *karpv1.NodeClaim) (*cloud.Machine, error) { return nil, nil }
		}, []string{machine, plain}},

		"a machine for each launch": {asks(func(w *world, c *karpv1.NodeClaim) {
			c.UID = types.UID(fmt.Sprint(c.UID, "/", w.next()))
		}), []string{whoever, howeverMany}},
		"a machine for each process": {func(w *world, f *faulty) {
			process := w.next()
			asks(func(_ *world, c *karpv1.NodeClaim) { c.UID = types.UID(fmt.Sprint(c.UID, "/", process)) })(w, f)
		}, []string{whoever, howeverMany}},
		"a machine for each thing that a claim asks for": {asks(func(_ *world, c *karpv1.NodeClaim) {
			c.UID += types.UID(c.Annotations[cloud.PreferredAnnotation])
		}), []string{whoever}},
		"a machine for each of two callers that come at the same time": {func(w *world, f *faulty) {
			w.next()
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				if w.counted() >= 3 && w.pairs.second(c.UID) { // fewer processes call one after the other
					c = c.DeepCopy()
					c.UID += "/2"
				}
				return f.Provider.Launch(ctx, c)
			}
		}, []string{howeverMany}},

		"no preferences":            {asks(func(_ *world, c *karpv1.NodeClaim) { delete(c.Annotations, cloud.PreferredAnnotation) }), []string{preferred, odd, passedOver}},
		"the last preference first": {asks(prefer(func(o []cloud.Offering) []cloud.Offering { slices.Reverse(o); return o })), []string{preferred, passedOver}},
		"preferences win over requirements": {asks(func(_ *world, c *karpv1.NodeClaim) {
			if len(cloud.Preferred(c)) > 0 {
				dropRequirement(c, corev1.LabelTopologyZone)
			}
		}), []string{preferred}},
		"odd preferences are refused": {func(_ *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				if text := c.Annotations[cloud.PreferredAnnotation]; text != cloud.FormatPreferred(cloud.Preferred(c)) {
					return nil, &cloud.CreateError{Reason: "InvalidClaim", Message: text}
				}
				return f.Provider.Launch(ctx, c)
			}
		}, []string{odd}},
		"only the first preference is tried": {asks(func(_ *world, c *karpv1.NodeClaim) {
			if o := cloud.Preferred(c); len(o) > 0 {
				for key, value := range map[string]string{corev1.LabelInstanceTypeStable: o[0].InstanceType, corev1.LabelTopologyZone: o[0].Zone, karpv1.CapacityTypeLabelKey: o[0].CapacityType} {
					c.Spec.Requirements = append(c.Spec.Requirements, karpv1.Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
				}
			}
		}), []string{passedOver, odd}},
		"a lack of capacity is not noted": {func(w *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				return w.process().Launch(ctx, c)
			}
		}, []string{passedOver}},
		"a lack of capacity is noted for ever": {func(w *world, f *faulty) {
			stopped := w.Now()
			f.Provider = sim.New(w.memory, w.memory, sim.Options{Now: func() time.Time { return stopped }})
		}, []string{passedOver}},
		"a lack of capacity is any error": {refuses(func(err error) error { return errors.New(err.Error()) }), []string{nothingLeft, nothingFits, obeyed, missing}},
		"a lack of capacity names no offerings": {refuses(func(err error) error {
			if cloud.IsInsufficientCapacity(err) {
				return &cloud.InsufficientCapacityError{}
			}
			return err
		}), []string{nothingLeft}},
		"a machine although there is no capacity": {func(w *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				m, err := f.Provider.Launch(ctx, c)
				if cloud.IsInsufficientCapacity(err) {
					c = c.DeepCopy()
					dropRequirement(c, corev1.LabelInstanceTypeStable)
					return f.Provider.Launch(ctx, c)
				}
				return m, err
			}
		}, []string{nothingLeft, nothingFits}},

		"requests do not matter": {asks(func(_ *world, c *karpv1.NodeClaim) { c.Spec.Resources.Requests = nil }), []string{nothingFits, obeyed}},
		"memory does not matter": {asks(func(_ *world, c *karpv1.NodeClaim) { delete(c.Spec.Resources.Requests, corev1.ResourceMemory) }), []string{obeyed}},
		"zones do not matter":    {asks(func(_ *world, c *karpv1.NodeClaim) { dropRequirement(c, corev1.LabelTopologyZone) }), []string{nothingFits, obeyed}},
		"operators do not matter": {asks(func(_ *world, c *karpv1.NodeClaim) {
			c.Spec.Requirements = slices.DeleteFunc(c.Spec.Requirements, func(r karpv1.Requirement) bool { return r.Operator != corev1.NodeSelectorOpIn })
		}), []string{obeyed}},
		"the dearest is bought": {func(w *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				if len(cloud.Preferred(c)) == 0 && c.Spec.NodeClassRef.Name == w.class.Name && c.Annotations != nil {
					c = c.DeepCopy()
					c.Annotations[cloud.PreferredAnnotation] = cloud.FormatPreferred(dearest(w))
				}
				return f.Provider.Launch(ctx, c)
			}
		}, []string{obeyed}},
		"a claim without annotations is refused": {func(_ *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				if c.Annotations == nil {
					return nil, &cloud.CreateError{Reason: "InvalidClaim", Message: "no annotations"}
				}
				return f.Provider.Launch(ctx, c)
			}
		}, []string{plain}},
		"a class that is missing is another one": {func(_ *world, f *faulty) {
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				c = c.DeepCopy()
				c.Spec.NodeClassRef.Name = "default"
				return f.Provider.Launch(ctx, c)
			}
		}, []string{missing}},
		"a class that is missing sells nothing": {func(_ *world, f *faulty) {
			f.catalog = func(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error) {
				c, err := f.Provider.Catalog(ctx, p)
				if cloud.IsNodeClassNotReady(err) {
					return &catalog.Catalog{}, nil
				}
				return c, err
			}
		}, []string{missing, otherKind}},
		"the kind of a class does not matter": {asks(func(_ *world, c *karpv1.NodeClaim) { c.Spec.NodeClassRef.Kind = sim.Kind }), []string{otherKind}},

		"nothing is terminated": {ends(func(context.Context, *world, cloud.Provider, *karpv1.NodeClaim) error { return nil }), []string{terminated, others, neverWas}},
		"a machine that is terminated is not found at once": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			if err := next.Terminate(ctx, c); err != nil {
				return err
			}
			return &cloud.NotFoundError{Machine: c.Name}
		}), []string{terminated}},
		"a machine that is terminated twice is not found": {ends(func(ctx context.Context, w *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			err := next.Terminate(ctx, c)
			if err == nil && w.next() > 1 {
				return &cloud.NotFoundError{Machine: c.Name}
			}
			return err
		}), []string{terminated}},
		"a machine that is terminated twice is an error": {ends(func(ctx context.Context, w *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			err := next.Terminate(ctx, c)
			if err == nil && w.next() > 1 {
				return errors.New("is shutting down already")
			}
			return err
		}), []string{terminated}},
		"a machine that is gone is never not found": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			if err := next.Terminate(ctx, c); !cloud.IsNotFound(err) {
				return err
			}
			return nil
		}), []string{terminated, others, neverWas}},
		"a machine that is gone is any error": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			if err := next.Terminate(ctx, c); err != nil {
				return errors.New(err.Error())
			}
			return nil
		}), []string{terminated, others, neverWas}},
		"a machine that is gone is found for a day": {func(_ *world, f *faulty) {
			seen := map[string]*cloud.Machine{}
			f.get = func(ctx context.Context, id string) (*cloud.Machine, error) {
				m, err := f.Provider.Get(ctx, id)
				if err == nil {
					seen[id] = m
				}
				if old := seen[id]; cloud.IsNotFound(err) && old != nil {
					gone := *old
					gone.Ending = true
					return &gone, nil
				}
				return m, err
			}
		}, []string{terminated}},
		"a machine is terminated by provider ID only": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			if c.Status.ProviderID == "" {
				return &cloud.NotFoundError{Machine: c.Name}
			}
			return next.Terminate(ctx, c)
		}), []string{terminated}},
		"a wrong provider ID is no matter": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			c = c.DeepCopy()
			c.Status.ProviderID = strings.TrimSuffix(c.Status.ProviderID, "0")
			return next.Terminate(ctx, c)
		}), []string{neverWas}},
		"all machines are terminated": {ends(func(ctx context.Context, _ *world, next cloud.Provider, c *karpv1.NodeClaim) error {
			machines, err := next.List(ctx)
			for _, m := range machines {
				one := &karpv1.NodeClaim{}
				one.Status.ProviderID = m.ProviderID
				err = errors.Join(err, next.Terminate(ctx, one))
			}
			return errors.Join(err, next.Terminate(ctx, c))
		}), []string{others}},

		"no machine is an error of no class": {func(_ *world, f *faulty) {
			f.get = func(ctx context.Context, id string) (*cloud.Machine, error) {
				m, err := f.Provider.Get(ctx, id)
				if err != nil {
					err = errors.New(err.Error())
				}
				return m, err
			}
		}, []string{terminated, neverWas}},
		"no machine is nil": {func(_ *world, f *faulty) {
			f.get = func(ctx context.Context, id string) (*cloud.Machine, error) {
				m, err := f.Provider.Get(ctx, id)
				if cloud.IsNotFound(err) {
					err = nil
				}
				return m, err
			}
		}, []string{terminated, neverWas}},
		"machines are found by the start of their ID": {func(_ *world, f *faulty) {
			f.get = func(ctx context.Context, id string) (*cloud.Machine, error) {
				return f.Provider.Get(ctx, strings.TrimSuffix(id, "0"))
			}
		}, []string{neverWas}},

		"the list forgets one": {lists(func(m []*cloud.Machine) []*cloud.Machine { return m[:max(len(m)-1, 0)] }), []string{whoever, howeverMany, others, listed}},
		"the list has a page":  {lists(func(m []*cloud.Machine) []*cloud.Machine { return m[:min(len(m), 3)] }), []string{howeverMany, listed}},
		"the list has one twice": {lists(func(m []*cloud.Machine) []*cloud.Machine {
			return append(m, m[:min(len(m), 1)]...)
		}), []string{whoever, howeverMany, others, listed}},
		"the list has those of another cluster": {lists(func(m []*cloud.Machine) []*cloud.Machine {
			return append(m, &cloud.Machine{ProviderID: "sim:///other/i-1", ClaimUID: "other"})
		}), []string{whoever, nothingLeft, nothingFits, terminated, listed}},
		"the list forgets those that are ending": {lists(func(m []*cloud.Machine) []*cloud.Machine {
			return slices.DeleteFunc(m, func(m *cloud.Machine) bool { return m.Ending })
		}), []string{terminated}},
		"the list has what this process launched": {func(_ *world, f *faulty) {
			var mu sync.Mutex
			mine := map[string]bool{}
			f.launch = func(ctx context.Context, c *karpv1.NodeClaim) (*cloud.Machine, error) {
				m, err := f.Provider.Launch(ctx, c)
				if err == nil {
					mu.Lock()
					defer mu.Unlock()
					mine[m.ProviderID] = true
				}
				return m, err
			}
			f.list = func(ctx context.Context) ([]*cloud.Machine, error) {
				machines, err := f.Provider.List(ctx)
				return slices.DeleteFunc(machines, func(m *cloud.Machine) bool { return !mine[m.ProviderID] }), err
			}
		}, []string{listed}},
		"the list fails": {func(_ *world, f *faulty) {
			f.list = func(context.Context) ([]*cloud.Machine, error) { return nil, errors.New("throttled") }
		}, []string{listed}},

		"everything drifts": {func(_ *world, f *faulty) {
			f.drift = func(context.Context, *karpv1.NodeClaim) (string, error) { return "Drifted", nil }
		}, []string{drifted}},
		"drift is not known": {func(_ *world, f *faulty) {
			f.drift = func(context.Context, *karpv1.NodeClaim) (string, error) { return "", errors.New("no such image") }
		}, []string{drifted}},
		"machines drift in ten minutes": {func(w *world, f *faulty) {
			f.drift = func(ctx context.Context, c *karpv1.NodeClaim) (string, error) {
				m, err := f.Provider.Get(ctx, c.Status.ProviderID)
				if err == nil && w.Now().Sub(m.Created) >= 10*time.Minute {
					return "Drifted", nil
				}
				return "", err
			}
		}, []string{drifted}},
	}
	wanted := map[string]bool{}
	for name, tt := range tests {
		for _, part := range tt.want {
			wanted[part] = true
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := conformance.Faults(t, options(func(w *world) cloud.Provider {
				f := &faulty{Provider: w.process()}
				tt.fault(w, f)
				return f
			}))
			for _, part := range tt.want {
				if len(faults[part]) == 0 {
					t.Errorf("%q does not find it out; found %v", part, faults)
				}
			}
		})
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(conformance.Parts())), slices.Sorted(maps.Keys(wanted))); diff != "" {
		t.Errorf("parts that find somebody out (-want +got):\n%s", diff)
	}
}

// TestFaults_none has a provider without fault, which must not be blamed.
func TestFaults_none(t *testing.T) {
	faults := conformance.Faults(t, options(func(w *world) cloud.Provider { return &faulty{Provider: w.process()} }))
	if len(faults) > 0 {
		t.Errorf("faults of a provider without fault: %v", faults)
	}
}

// copied makes a catalogue each time, with the same contents.
func copied(f *faulty) func(context.Context, *karpv1.NodePool) (*catalog.Catalog, error) {
	return func(ctx context.Context, p *karpv1.NodePool) (*catalog.Catalog, error) {
		c, err := f.Provider.Catalog(ctx, p)
		if err != nil {
			return nil, err
		}
		c, errs := catalog.New(slices.Clone(c.Types()))
		return c, errors.Join(errs...)
	}
}

// dearest are the offerings of w, dearest first.
func dearest(w *world) []cloud.Offering {
	sold, err := w.process().Sold(context.Background(), w.class.Name)
	if err != nil {
		panic(err)
	}
	price := map[cloud.Offering]catalog.Price{}
	for _, it := range sold.Types() {
		for _, o := range it.Offerings {
			price[cloud.Offering{InstanceType: it.Name, Zone: o.Zone, CapacityType: o.CapacityType}] = o.Price
		}
	}
	return slices.SortedFunc(maps.Keys(price), func(a, b cloud.Offering) int { return int(price[b] - price[a]) })
}
