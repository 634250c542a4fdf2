package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
)

// Overlay corrects the price of offerings, or adds to the capacity of instance types.
type Overlay struct {
	Name string
	// Weight decides between overlays on the same thing; the largest wins.
	Weight int32
	// Requirements select offerings by their labels, those of their type, and those of
	// the pool. Nil selects all.
	Requirements requirements.Set
	// Price replaces a price, in US dollars per hour such as "0.25". Empty means unset.
	Price string
	// PriceAdjustment changes a price by dollars per hour ("+0.1", "-0.1") or by a part
	// of it ("+10%", "-15%"), not below 0. Empty means unset; it excludes Price.
	PriceAdjustment string
	// Capacity replaces the amounts of extended resources. It may not hold cpu, memory,
	// ephemeral-storage or pods.
	Capacity resources.List
}

// Reasons for an [OverlayProblem], those of the NodeOverlay's condition.
const (
	OverlayInvalid  = "RuntimeValidation"
	OverlayConflict = "Conflict"
)

// OverlayProblem is an overlay that is not applied, or not everywhere.
type OverlayProblem struct {
	Overlay string
	// Reason is OverlayInvalid if the overlay is not applied at all, or OverlayConflict
	// if only the part is left out that another overlay of the same weight sets too.
	Reason string
	// With is the other overlay of a conflict.
	With    string
	Message string
}

func (p OverlayProblem) Error() string { return fmt.Sprintf("overlay %q: %s", p.Overlay, p.Message) }

var (
	priceForm      = regexp.MustCompile(`^\d+(\.\d+)?$`)
	adjustmentForm = regexp.MustCompile(`^([+-](\d+\.?\d*|\.\d+)%?)$`)
)

// maxDollars bounds the numbers in overlays, far above any price, so that no Price
// overflows.
const maxDollars = 1e9

// change is what an overlay does to a price.
type change struct {
	set     bool    // replace by amount
	percent bool    // amount is a part of the price, in percent
	amount  float64 // US dollars per hour, or percent
}

func (c change) apply(p Price) Price {
	switch {
	case c.set:
		p = FromDollars(c.amount)
	case c.percent:
		p = FromDollars(p.Dollars() * (100 + c.amount) / 100)
	default:
		p += FromDollars(c.amount)
	}
	return min(max(p, 0), math.MaxInt64/2)
}

// parse checks o. The change is nil if o leaves prices alone.
func (o *Overlay) parse() (*change, error) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods} {
		if _, ok := o.Capacity[name]; ok {
			return nil, fmt.Errorf("capacity[%s]: must not be set by an overlay", name)
		}
	}
	for _, name := range o.Capacity.Names() {
		if v := o.Capacity[name]; v < 0 {
			return nil, fmt.Errorf("capacity[%s]: %d: must not be negative", name, v)
		}
	}
	for _, key := range o.Requirements.Keys() {
		if o.Requirements[key].IsImpossible() {
			return nil, fmt.Errorf("requirements: no value of label %s satisfies all of them", key)
		}
	}
	number := func(field, s string) (float64, error) {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || math.Abs(v) > maxDollars {
			return 0, fmt.Errorf("%s: %s: must be at most %.0f", field, s, maxDollars)
		}
		return v, nil
	}
	switch {
	case o.Price != "" && o.PriceAdjustment != "":
		return nil, fmt.Errorf("price: must not be set together with priceAdjustment")
	case o.Price != "":
		if !priceForm.MatchString(o.Price) {
			return nil, fmt.Errorf("price: %q: must be a decimal number of US dollars per hour", o.Price)
		}
		v, err := number("price", o.Price)
		return &change{set: true, amount: v}, err
	case o.PriceAdjustment != "":
		if !adjustmentForm.MatchString(o.PriceAdjustment) {
			return nil, fmt.Errorf(`priceAdjustment: %q: must be like "+0.5", "-1", "+10%%" or "-15%%"`, o.PriceAdjustment)
		}
		digits, percent := strings.CutSuffix(o.PriceAdjustment, "%")
		v, err := number("priceAdjustment", digits)
		if err == nil && percent && v < -100 {
			err = fmt.Errorf("priceAdjustment: %s: must not be below -100%%", o.PriceAdjustment)
		}
		return &change{percent: percent, amount: v}, err
	}
	return nil, nil
}

// ApplyOverlays returns c as the NodePool named pool sees it. labels are what the pool
// gives its nodes beside karpenter.sh/nodepool: template labels, requirements.
//
// For each price, and for each resource of each type, the matching overlay of the
// largest weight decides. Of several with that weight the last by name decides, and
// the others are a conflict on that one price or resource; elsewhere they apply. An
// amount of capacity applies to a type if the overlay matches any of its offerings,
// and moves Allocatable with Capacity. Adjustments start from c's prices.
//
// c is not changed; what no overlay touches is shared with the result, which is c
// itself if that is everything. Problems are in order of weight and name, largest
// first.
func ApplyOverlays(c *Catalog, pool string, labels requirements.Set, overlays []Overlay) (*Catalog, []OverlayProblem) {
	if c == nil || len(overlays) == 0 {
		return c, nil
	}
	nodes := labels.Clone()
	nodes.Add(requirements.In(nodePoolLabel, pool))

	overlays = slices.Clone(overlays)
	slices.SortFunc(overlays, func(a, b Overlay) int {
		return cmp.Or(-cmp.Compare(a.Weight, b.Weight), -strings.Compare(a.Name, b.Name))
	})
	var problems []OverlayProblem
	var active []activeOverlay
	for i := range overlays {
		o := &overlays[i]
		ch, err := o.parse()
		if err != nil {
			problems = append(problems, OverlayProblem{Overlay: o.Name, Reason: OverlayInvalid, Message: err.Error()})
			continue
		}
		if ch != nil || len(o.Capacity) > 0 {
			active = append(active, activeOverlay{Overlay: o, change: ch, wanted: slices.Collect(maps.Values(o.Requirements))})
		}
	}
	types, conflicts := overlayTypes(c.types, nodes, active)
	problems = append(problems, conflicts...)
	rank := make(map[string]int, len(overlays))
	for i := range overlays {
		rank[overlays[i].Name] = i
	}
	slices.SortStableFunc(problems, func(a, b OverlayProblem) int { return cmp.Compare(rank[a.Overlay], rank[b.Overlay]) })
	if types == nil {
		return c, problems
	}
	return build(types), problems
}

const nodePoolLabel = "karpenter.sh/nodepool"

type activeOverlay struct {
	*Overlay
	change *change
	// wanted are Requirements in any order: quicker to walk than the map.
	wanted []requirements.Requirement
}

// clash is a pair of overlays with the prices and resources that both set.
type clash struct {
	loser, winner string
	prices        int
	types         []string
	resources     []string
}

// overlayTypes returns changed copies, or nil if no overlay matches. active is in order
// of precedence.
func overlayTypes(types []InstanceType, nodes requirements.Set, active []activeOverlay) ([]InstanceType, []OverlayProblem) {
	var out []InstanceType
	var clashes []*clash
	conflict := func(loser, winner *Overlay, typeName string) *clash {
		i := slices.IndexFunc(clashes, func(c *clash) bool { return c.loser == loser.Name && c.winner == winner.Name })
		if i < 0 {
			i = len(clashes)
			clashes = append(clashes, &clash{loser: loser.Name, winner: winner.Name})
		}
		if n := len(clashes[i].types); n == 0 || clashes[i].types[n-1] != typeName {
			clashes[i].types = append(clashes[i].types, typeName)
		}
		return clashes[i]
	}
	var byOffering []*Overlay // who set the price of offering i of the present type
	for ti := range types {
		t := &types[ti]
		changed := t // becomes a copy
		edit := func() {
			if changed == t {
				if out == nil {
					out = slices.Clone(types)
				}
				changed = &out[ti]
			}
		}
		byOffering = append(byOffering[:0], make([]*Overlay, len(t.Offerings))...)
		byResource := map[corev1.ResourceName]*Overlay(nil)
		editedOfferings := false
		m := matcher{nodes: nodes, t: t, varying: varyingKeys(t)}
		for _, o := range active {
			if !m.matchesType(o.wanted) {
				continue
			}
			any := false
			for oi := range t.Offerings {
				if !m.matchesOffering(o.wanted, &t.Offerings[oi]) {
					continue
				}
				any = true
				if o.change == nil {
					break
				}
				if by := byOffering[oi]; by != nil {
					if by.Weight == o.Weight {
						conflict(o.Overlay, by, t.Name).prices++
					}
					continue
				}
				edit()
				if !editedOfferings {
					changed.Offerings, editedOfferings = slices.Clone(t.Offerings), true
				}
				byOffering[oi] = o.Overlay
				changed.Offerings[oi].Price = o.change.apply(t.Offerings[oi].Price)
				changed.Offerings[oi].PriceOverlay = true
			}
			if !any || len(o.Capacity) == 0 {
				continue
			}
			for _, name := range o.Capacity.Names() {
				if by := byResource[name]; by != nil {
					if by.Weight == o.Weight {
						cl := conflict(o.Overlay, by, t.Name)
						if !slices.Contains(cl.resources, string(name)) {
							cl.resources = append(cl.resources, string(name))
						}
					}
					continue
				}
				edit()
				if byResource == nil {
					byResource = make(map[corev1.ResourceName]*Overlay)
					changed.Capacity, changed.Allocatable = maps.Clone(t.Capacity), maps.Clone(t.Allocatable)
				}
				byResource[name] = o.Overlay
				overhead := t.Capacity[name] - t.Allocatable[name]
				changed.Capacity[name] = o.Capacity[name]
				changed.Allocatable[name] = max(o.Capacity[name]-overhead, 0)
				changed.CapacityOverlay = true
			}
		}
	}
	problems := make([]OverlayProblem, 0, len(clashes))
	for _, c := range clashes {
		problems = append(problems, OverlayProblem{Overlay: c.loser, Reason: OverlayConflict, With: c.winner, Message: c.message()})
	}
	return out, problems
}

func (c *clash) message() string {
	var what []string
	if c.prices > 0 {
		what = append(what, fmt.Sprintf("prices (%d in all)", c.prices))
	}
	if len(c.resources) > 0 {
		slices.Sort(c.resources)
		what = append(what, "capacity of "+strings.Join(c.resources, ", "))
	}
	names := c.types
	if len(names) > 3 {
		names = append(slices.Clone(names[:3]), fmt.Sprintf("%d others", len(c.types)-3))
	}
	return fmt.Sprintf("overlay %q of the same weight sets %s too (instance types %s); it decides there: give one of them more weight",
		c.winner, strings.Join(what, " and "), strings.Join(names, ", "))
}

const capacityTypeLabel = "karpenter.sh/capacity-type"

// matcher tells which offerings of a type an overlay selects.
type matcher struct {
	nodes requirements.Set // what the pool gives its nodes
	t     *InstanceType
	// varying are the keys that the Requirements of some offering settle.
	varying []string
}

func varyingKeys(t *InstanceType) []string {
	var out []string
	for i := range t.Offerings {
		for key := range t.Offerings[i].Requirements {
			if !slices.Contains(out, key) {
				out = append(out, key)
			}
		}
	}
	return out
}

func (m *matcher) atOffering(key string) bool {
	return key == corev1.LabelTopologyZone || key == capacityTypeLabel || key == ReservationIDLabel || slices.Contains(m.varying, key)
}

// matchesType reports whether wanted can hold for the type, as far as offerings do not
// decide it.
func (m *matcher) matchesType(wanted []requirements.Requirement) bool {
	for i := range wanted {
		if key := wanted[i].Key(); !m.atOffering(key) && !m.allows(key, &wanted[i], nil) {
			return false
		}
	}
	return true
}

// matchesOffering reports whether wanted can hold for o, as far as it depends on
// offerings.
func (m *matcher) matchesOffering(wanted []requirements.Requirement, o *Offering) bool {
	for i := range wanted {
		if key := wanted[i].Key(); m.atOffering(key) && !m.allows(key, &wanted[i], o) {
			return false
		}
	}
	return true
}

// allows reports whether a node may satisfy want, seen by the pool, the type and, unless
// nil, the offering. An undefined key satisfies what its absence satisfies.
func (m *matcher) allows(key string, want *requirements.Requirement, o *Offering) bool {
	have, defined := m.nodes[key]
	narrow := func(r requirements.Requirement) {
		if defined {
			r = have.Intersect(r)
		}
		have, defined = r, true
	}
	if o != nil {
		switch key {
		case corev1.LabelTopologyZone:
			return want.Has(o.Zone) && (!defined || have.Has(o.Zone))
		case capacityTypeLabel:
			return want.Has(o.CapacityType) && (!defined || have.Has(o.CapacityType))
		case ReservationIDLabel:
			if o.ReservationID != "" {
				return want.Has(o.ReservationID) && (!defined || have.Has(o.ReservationID))
			}
			return want.AllowsAbsent() && (!defined || have.AllowsAbsent())
		}
		if r, ok := o.Requirements[key]; ok {
			narrow(r)
		}
	}
	if r, ok := m.t.Requirements[key]; ok {
		narrow(r)
	}
	if !defined {
		return want.AllowsAbsent()
	}
	return have.Intersects(*want)
}
