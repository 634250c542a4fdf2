package sim

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

// DefaultUnavailableFor is how long an offering that was out of capacity counts as
// unavailable, unless its SimNodeClass says otherwise.
const DefaultUnavailableFor = 3 * time.Minute

// market knows what each class sells now.
type market struct {
	classes Classes
	store   Store
	// builtin has what a class sells that names no catalogue under the empty name.
	builtin map[v1alpha1.Builtin]func() *catalog.Catalog

	mu    sync.Mutex
	stall map[string]*stall // by name of the class
}

// stall is what one class sells.
type stall struct {
	mu  sync.Mutex
	uid string
	// version and spec are those of the class, and file that of its file, of which the
	// rest was made.
	version, file string
	spec          *v1alpha1.SimNodeClassSpec
	// base is the catalogue without rules, or baseErr why there is none. err is why the
	// class cannot be used.
	base         *catalog.Catalog
	baseErr, err error
	// epoch counts catalogues and rules.
	epoch int
	// finite is true if machines have to be counted.
	finite bool
	units  map[string]int // by reservation
	// out are the offerings that were out of capacity, until when.
	out map[cloud.Offering]time.Time

	// current is what is sold until a time (zero: until something else changes), and
	// state what it was made of.
	current *catalog.Catalog
	until   time.Time
	state   string
}

func newMarket(store Store, classes Classes) *market {
	ec2 := sync.OnceValue(Builtin)
	return &market{
		classes: classes, store: store, stall: map[string]*stall{},
		builtin: map[v1alpha1.Builtin]func() *catalog.Catalog{
			"": ec2, v1alpha1.BuiltinEC2: ec2, v1alpha1.BuiltinKWOK: sync.OnceValue(KWOK),
		},
	}
}

// class returns a class that can be used, with its stall, which the caller must unlock;
// or a NodeClassNotReadyError.
func (m *market) class(ctx context.Context, name string) (*v1alpha1.SimNodeClass, *stall, error) {
	notReady := func(err error) error {
		return &cloud.NodeClassNotReadyError{NodeClass: Kind + "/" + name, Err: err}
	}
	class, err := m.classes.NodeClass(ctx, name)
	switch {
	case errors.Is(err, ErrNotFound):
		m.mu.Lock()
		delete(m.stall, name)
		m.mu.Unlock()
		return nil, nil, notReady(err)
	case err != nil:
		return nil, nil, fmt.Errorf("%s %q: %w", Kind, name, err)
	case class.DeletionTimestamp != nil:
		return nil, nil, notReady(errors.New("is being deleted"))
	}
	m.mu.Lock()
	st := m.stall[name]
	if st == nil || st.uid != string(class.UID) {
		st = &stall{uid: string(class.UID), out: map[cloud.Offering]time.Time{}}
		m.stall[name] = st
	}
	m.mu.Unlock()
	st.mu.Lock()
	if err := m.refresh(ctx, st, class); err != nil {
		unusable := st.err != nil || errors.Is(err, ErrNotFound)
		st.mu.Unlock()
		if !unusable {
			return nil, nil, fmt.Errorf("%s %q: %w", Kind, name, err)
		}
		return nil, nil, notReady(err)
	}
	return class, st, nil
}

// refresh makes the stall's base anew if the class or its file changed. It returns why
// the class cannot be used.
func (m *market) refresh(ctx context.Context, st *stall, class *v1alpha1.SimNodeClass) error {
	var file File
	if ref := class.Spec.Catalog.ConfigMapRef; ref != nil {
		var err error
		if file, err = m.classes.File(ctx, *ref); err != nil {
			return err
		}
	}
	if st.spec != nil && st.version == class.ResourceVersion && st.file == file.Version {
		return st.err
	}
	old := st.spec
	if old == nil || st.file != file.Version || sells(old) != sells(&class.Spec) {
		st.base, st.baseErr = m.catalogue(class, file)
		st.epoch++
	} else if rules(old) != rules(&class.Spec) {
		st.epoch++
	}
	st.spec, st.version, st.file = class.Spec.DeepCopy(), class.ResourceVersion, file.Version
	if st.err = class.RuntimeValidate(); st.err == nil {
		st.err = st.baseErr
	}
	if st.err != nil {
		return st.err
	}
	st.units = map[string]int{}
	types := st.base.Types()
	for i := range types {
		for _, o := range types[i].Offerings {
			if o.ReservationID == "" {
				continue
			}
			if n, ok := st.units[o.ReservationID]; !ok || o.ReservationCapacity < n {
				st.units[o.ReservationID] = o.ReservationCapacity
			}
		}
	}
	st.finite = len(st.units) > 0 || slices.ContainsFunc(class.Spec.Capacity, func(r v1alpha1.SimCapacity) bool { return r.Available > 0 })
	return nil
}

// sells is what of a spec the base depends on, and rules what else of it changes what is
// sold.
func sells(s *v1alpha1.SimNodeClassSpec) string {
	return text(s.Catalog, s.InstanceTypes, s.Zones)
}

func rules(s *v1alpha1.SimNodeClassSpec) string {
	known := []v1alpha1.SimCapacity{}
	for _, r := range s.Capacity {
		if r.Known {
			known = append(known, r)
		}
	}
	return text(known, s.Prices)
}

func text(parts ...any) string {
	b, err := json.Marshal(parts)
	if err != nil {
		panic(fmt.Sprintf("write a spec as JSON: %v", err)) // it was read from JSON
	}
	return string(b)
}

// catalogue reads what a class names, and keeps what it sells of that. The catalogue is
// nil if there is an error.
func (m *market) catalogue(class *v1alpha1.SimNodeClass, file File) (*catalog.Catalog, error) {
	spec := &class.Spec
	var c *catalog.Catalog
	if ref := spec.Catalog.ConfigMapRef; ref != nil {
		data := file.Data
		name := fmt.Sprintf("ConfigMap %s/%s, %s", ref.Namespace, ref.Name, file.Key)
		if strings.HasSuffix(file.Key, ".gz") {
			r, err := gzip.NewReader(bytes.NewReader(data))
			if err == nil {
				data, err = io.ReadAll(io.LimitReader(r, MaxFileSize+1))
			}
			if err != nil {
				return nil, fmt.Errorf("%s: uncompress: %w", name, err)
			}
		}
		var errs []error
		if c, errs = ReadFile(bytes.NewReader(data), name); len(errs) > 0 {
			// All or nothing: a cloud that quietly sells less would be found out late.
			more := ""
			if len(errs) > 1 {
				more = fmt.Sprintf(" (and %d more faults)", len(errs)-1)
			}
			return nil, fmt.Errorf("%w%s", errs[0], more)
		}
	} else {
		c = m.builtin[spec.Catalog.Builtin]()
	}
	if len(spec.InstanceTypes) > 0 || len(spec.Zones) > 0 {
		var kept []catalog.InstanceType
		for _, t := range c.Types() {
			if len(spec.InstanceTypes) > 0 && !v1alpha1.MatchesAny(spec.InstanceTypes, t.Name) {
				continue
			}
			if len(spec.Zones) > 0 {
				t.Offerings = slices.DeleteFunc(slices.Clone(t.Offerings), func(o catalog.Offering) bool { return !slices.Contains(spec.Zones, o.Zone) })
			}
			if len(t.Offerings) > 0 {
				kept = append(kept, t)
			}
		}
		var errs []error
		if c, errs = catalog.New(kept); len(errs) > 0 {
			return nil, errs[0] // not of types that were in a catalogue before
		}
	}
	if c.Len() == 0 {
		return nil, errors.New("the catalogue holds no instance type that instanceTypes and zones select")
	}
	return c, nil
}

// usage counts the machines that take capacity.
type usage struct {
	rules        []int32 // by index of the rule
	reservations map[string]int
}

// count counts the machines of a class; nothing if the class has endless capacity.
func (m *market) count(ctx context.Context, st *stall, class *v1alpha1.SimNodeClass, now time.Time) (usage, error) {
	u := usage{rules: make([]int32, len(class.Spec.Capacity)), reservations: map[string]int{}}
	if !st.finite {
		return u, nil
	}
	all, err := m.store.List(ctx)
	if err != nil {
		return u, fmt.Errorf("list machines: %w", err)
	}
	for _, in := range all {
		if in.Spec.NodeClass != class.Name {
			continue
		}
		if t := in.Status.TerminatingTime; t != nil && !now.Before(t.Add(in.Spec.TerminateLatency.Duration)) {
			continue
		}
		if in.Spec.ReservationID != "" {
			u.reservations[in.Spec.ReservationID]++
		}
		for i := range class.Spec.Capacity {
			if class.Spec.Capacity[i].Matches(in.Spec.InstanceType, in.Spec.Zone, in.Spec.CapacityType) {
				u.rules[i]++
			}
		}
	}
	return u, nil
}

// sold is what a class sells at now. The stall must be locked.
func (m *market) sold(ctx context.Context, st *stall, class *v1alpha1.SimNodeClass, now time.Time) (*catalog.Catalog, error) {
	if st.current != nil && !st.finite && strings.HasPrefix(st.state, st.prefix()) && (st.until.IsZero() || now.Before(st.until)) {
		return st.current, nil
	}
	used, err := m.count(ctx, st, class, now)
	if err != nil {
		return nil, err
	}
	created := class.CreationTimestamp.Time
	var until time.Time
	later := func(at time.Time) {
		if at.After(now) && (until.IsZero() || at.Before(until)) {
			until = at
		}
	}
	var state strings.Builder
	state.WriteString(st.prefix())

	type change struct {
		at   time.Time
		rule *v1alpha1.SimPrice
	}
	var changes []change
	for i := range class.Spec.Prices {
		r := &class.Spec.Prices[i]
		at, err := r.At.Resolve(created)
		if err != nil {
			continue // Validate tells
		}
		if at.After(now) {
			later(at)
			continue
		}
		changes = append(changes, change{at, r})
		fmt.Fprintf(&state, " price %d", i)
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })

	var blocked []*v1alpha1.SimCapacity
	for i := range class.Spec.Capacity {
		r := &class.Spec.Capacity[i]
		if !r.Known {
			continue
		}
		from, end := r.Bounds(created)
		later(from)
		later(end)
		if r.Contains(created, now) && used.rules[i] >= r.Available {
			blocked = append(blocked, r)
			fmt.Fprintf(&state, " blocked %d", i)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(st.units)) {
		fmt.Fprintf(&state, " used %s %d", id, used.reservations[id])
	}
	for o, end := range st.out {
		if !end.After(now) {
			delete(st.out, o)
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(st.out), func(a, b cloud.Offering) int { return cmp.Compare(a.String(), b.String()) }) {
		later(st.out[o])
		fmt.Fprintf(&state, " out %s", o)
	}
	st.until = until
	if st.current != nil && st.state == state.String() {
		return st.current, nil
	}

	if len(changes) == 0 && len(blocked) == 0 && len(st.out) == 0 && len(st.units) == 0 {
		st.current, st.state = st.base, state.String()
		return st.current, nil
	}
	types := slices.Clone(st.base.Types())
	for i := range types {
		t := &types[i]
		var offerings []catalog.Offering // nil while they are the base's
		for j, o := range t.Offerings {
			before := o
			for _, c := range changes {
				if c.rule.Matches(t.Name, o.Zone, o.CapacityType) {
					o.Price = changed(c.rule, o.Price)
				}
			}
			if o.ReservationID != "" {
				o.ReservationCapacity = max(st.units[o.ReservationID]-used.reservations[o.ReservationID], 0)
				o.Unavailable = o.Unavailable || o.ReservationCapacity == 0
			}
			if _, out := st.out[offeringOf(t.Name, &o)]; out || slices.ContainsFunc(blocked, func(r *v1alpha1.SimCapacity) bool { return r.Matches(t.Name, o.Zone, o.CapacityType) }) {
				o.Unavailable = true
			}
			if o.Price == before.Price && o.Unavailable == before.Unavailable && o.ReservationCapacity == before.ReservationCapacity {
				continue
			}
			if offerings == nil {
				offerings = slices.Clone(t.Offerings)
			}
			offerings[j] = o
		}
		if offerings != nil {
			t.Offerings = offerings
		}
	}
	c, errs := catalog.New(types)
	if len(errs) > 0 {
		return nil, fmt.Errorf("catalogue of %s %q: %w", Kind, class.Name, errs[0])
	}
	st.current, st.state = c, state.String()
	return c, nil
}

// prefix begins the state of what is sold while catalogue and rules are the same.
func (st *stall) prefix() string { return "epoch " + strconv.Itoa(st.epoch) + ";" }

// exhausted notes that an offering was out of capacity.
func (st *stall) exhausted(o cloud.Offering, class *v1alpha1.SimNodeClass, now time.Time) {
	d := DefaultUnavailableFor
	if set := class.Spec.UnavailableFor; set != nil {
		d = set.Duration
	}
	if d > 0 {
		st.out[o] = now.Add(d)
		st.until = now // what is sold is looked at again
	}
}

// hidden reports whether a launch of an offering finds no capacity, although the
// catalogue may say otherwise.
func hidden(class *v1alpha1.SimNodeClass, used usage, o cloud.Offering, now time.Time) bool {
	for i := range class.Spec.Capacity {
		r := &class.Spec.Capacity[i]
		if used.rules[i] >= r.Available && r.Matches(o.InstanceType, o.Zone, o.CapacityType) && r.Contains(class.CreationTimestamp.Time, now) {
			return true
		}
	}
	return false
}

// changed is a price after a change, at least the smallest there is.
func changed(r *v1alpha1.SimPrice, p catalog.Price) catalog.Price {
	if r.Percent != nil {
		if p == 0 {
			return 0
		}
		return max(p*catalog.Price(*r.Percent)/100, 1)
	}
	dollars, err := readPrice(r.Price)
	if err != nil || dollars == 0 {
		return 1
	}
	return dollars
}

func offeringOf(instanceType string, o *catalog.Offering) cloud.Offering {
	return cloud.Offering{InstanceType: instanceType, Zone: o.Zone, CapacityType: o.CapacityType, ReservationID: o.ReservationID}
}
