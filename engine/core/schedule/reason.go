package schedule

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Code names why something was not possible, or why it was chosen. Codes are stable:
// they are metric labels and part of the JSON output.
type Code string

// Codes of reasons.
const (
	// NoPool: there is no NodePool that could buy a node.
	NoPool Code = "NoNodePool"
	// PoolUnusable: the pool buys nothing now; Have says why.
	PoolUnusable Code = "NodePoolUnusable"
	// UntoleratedTaint: the pod does not tolerate the taint Key.
	UntoleratedTaint Code = "UntoleratedTaint"
	// LabelMismatch: the pod wants label Key to be Want, the pool or node has Have.
	LabelMismatch Code = "LabelMismatch"
	// NoOffering: no offering that is available has all the labels that the pod wants.
	NoOffering Code = "NoOffering"
	// NotEnough: the pod wants Want of resource Key; the roomiest choice has Have.
	NotEnough Code = "InsufficientResource"
	// NotTogether: every resource would do by itself, but none has all of them.
	NotTogether Code = "InsufficientResources"
	// DaemonsTooLarge: the DaemonSets that run on every type that would do need more than
	// the type has.
	DaemonsTooLarge Code = "DaemonSetsTooLarge"
	// AttachLimit: the pod attaches Want volumes of CSI driver Key; a node takes Have.
	AttachLimit Code = "VolumeAttachLimit"
	// PortTaken: host port Key is taken on every node, by Have.
	PortTaken Code = "HostPortTaken"
	// LimitReached: the pool's limit of Key is Want, and Have is in use or planned.
	LimitReached Code = "NodePoolLimit"
	// TooFewValues: the pool's minValues of Key cannot be met for this pod.
	TooFewValues Code = "MinValues"
	// SpreadTooUneven: topology spread over Key has no domain that keeps within maxSkew.
	SpreadTooUneven Code = "TopologySpread"
	// TooFewDomains: the spread over Key wants Want domains and Have can be reached.
	TooFewDomains Code = "MinDomains"
	// NothingNear: no domain of Key has a pod that the pod's affinity asks for.
	NothingNear Code = "PodAffinity"
	// TooNear: every domain of Key has a pod that the pod's anti-affinity forbids.
	TooNear Code = "PodAntiAffinity"
	// KeptAway: every domain of Key has a pod whose anti-affinity forbids this pod.
	KeptAway Code = "PodAntiAffinityOfOthers"
	// AffinityNodeFull: the node on which affinity wants the pod has no room for it.
	AffinityNodeFull Code = "PodAffinityNodeFull"
	// VolumeUnready: the pod's claim Key does not allow it to run anywhere; Have says why.
	VolumeUnready Code = "VolumeNotReady"
	// InvalidPod: the pod's specification cannot be planned for; Have says why.
	InvalidPod Code = "InvalidPod"
	// VolumeInUse: the pod's volume Key is ReadWriteOncePod, and another pod uses it.
	VolumeInUse Code = "VolumeInUse"
	// VolumeZone: the pod's volume fixes a zone in which there is no room.
	VolumeZone Code = "VolumeZone"
	// NotReached: the pod's place was given up because the rules of pods bound before it
	// no longer allow it.
	NotReached Code = "OrderOfBinding"
	// PolicyDenied: policy Key denies the node planned for the pod; Have says why.
	PolicyDenied Code = "PolicyDenied"
	// PolicyDeferred: policy Key wants the node planned for the pod later, after Want; Have
	// says why.
	PolicyDeferred Code = "PolicyDeferred"
)

// Reason is one cause, as data. Only the operands that the code uses are set.
type Reason struct {
	Code Code `json:"code"`
	// Pool, Node and InstanceType say what the reason is about.
	Pool         string `json:"pool,omitempty"`
	Node         string `json:"node,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	// Key is the resource, label, taint, driver or topology key concerned.
	Key string `json:"key,omitempty"`
	// Want is what the pod needs, Have what there is.
	Want string `json:"want,omitempty"`
	Have string `json:"have,omitempty"`
	// Count is the number of nodes, types or offerings the reason holds for.
	Count int `json:"count,omitempty"`
	// Hint is the smallest change that would help, if one is known.
	Hint string `json:"hint,omitempty"`
}

// String is the reason in words.
func (r Reason) String() string {
	var b strings.Builder
	switch {
	case r.Pool != "":
		fmt.Fprintf(&b, "NodePool %s: ", r.Pool)
	case r.Node != "":
		fmt.Fprintf(&b, "node %s: ", r.Node)
	case r.Count > 0:
		fmt.Fprintf(&b, "%d existing nodes: ", r.Count)
	}
	switch r.Code {
	case NoPool:
		b.WriteString("there is no NodePool to buy a node from")
	case PoolUnusable:
		b.WriteString(r.Have)
	case UntoleratedTaint:
		fmt.Fprintf(&b, "taint %s is not tolerated", r.Have)
	case LabelMismatch:
		fmt.Fprintf(&b, "label %s: wants %s, has %s", r.Key, r.Want, r.Have)
	case NoOffering:
		fmt.Fprintf(&b, "no available offering satisfies %s", r.Want)
	case NotEnough:
		if r.Have == "0" {
			fmt.Fprintf(&b, "%s: wants %s, there is none", r.Key, r.Want)
		} else {
			fmt.Fprintf(&b, "%s: wants %s, at most %s is free", r.Key, r.Want, r.Have)
		}
	case NotTogether:
		fmt.Fprintf(&b, "no single choice has all of %s", r.Want)
	case DaemonsTooLarge:
		b.WriteString("DaemonSets alone need more than the instance type has")
	case AttachLimit:
		fmt.Fprintf(&b, "driver %s: wants %s volumes attached, a node takes %s", r.Key, r.Want, r.Have)
	case PortTaken:
		fmt.Fprintf(&b, "host port %s is taken by %s", r.Key, r.Have)
	case LimitReached:
		fmt.Fprintf(&b, "limit of %s is %s, %s of it in use or planned", r.Key, r.Want, r.Have)
	case TooFewValues:
		fmt.Fprintf(&b, "minValues of %s: wants %s, this pod leaves %s", r.Key, r.Want, r.Have)
	case SpreadTooUneven:
		fmt.Fprintf(&b, "topology spread over %s: %s, and %s", r.Key, r.Want, r.Have)
	case TooFewDomains:
		fmt.Fprintf(&b, "topology spread over %s: %s domains needed, %s reachable", r.Key, r.Want, r.Have)
	case NothingNear:
		fmt.Fprintf(&b, "pod affinity: no matching pod in any %s within reach", r.Key)
	case TooNear:
		fmt.Fprintf(&b, "pod anti-affinity: a matching pod is in every %s within reach", r.Key)
	case KeptAway:
		fmt.Fprintf(&b, "the anti-affinity of other pods keeps it off every %s within reach", r.Key)
	case AffinityNodeFull:
		fmt.Fprintf(&b, "pod affinity: wants %s, %s", r.Want, r.Have)
	case InvalidPod:
		if r.Key != "" {
			b.WriteString(r.Key + ": ")
		}
		b.WriteString(r.Have)
	case VolumeInUse:
		fmt.Fprintf(&b, "volume %s is ReadWriteOncePod, and another pod uses it", r.Key)
	case VolumeZone:
		b.WriteString("pods that share its volume are in a zone where it finds no room")
	case VolumeUnready:
		fmt.Fprintf(&b, "%s: %s", r.Key, r.Have)
	case NotReached:
		b.WriteString("pods bound before it leave no domain that its rules allow")
	case PolicyDenied:
		fmt.Fprintf(&b, "policy %s denies %s: %s", r.Key, r.InstanceType, r.Have)
	case PolicyDeferred:
		fmt.Fprintf(&b, "policy %s defers %s for %s: %s", r.Key, r.InstanceType, r.Want, r.Have)
	default:
		b.WriteString(string(r.Code))
	}
	if r.Hint != "" {
		b.WriteString("; " + r.Hint)
	}
	return b.String()
}

// explainUnscheduled adds every pod without a place, with the reasons of its class.
func (s *solver) explainUnscheduled(p *Plan) {
	used := make([]int, len(s.classes))
	for _, pl := range s.placed {
		used[pl.class] += int(pl.n)
	}
	for id, pods := range s.pending {
		if used[id] == len(pods) || s.classes[id] == nil {
			continue
		}
		reasons := s.diagnose(s.classes[id])
		for _, pod := range pods[used[id]:] {
			p.Unscheduled = append(p.Unscheduled, Unscheduled{Pod: s.snap.Pods[pod].Key, Reasons: reasons})
		}
	}
	for _, b := range s.snap.Blocked {
		p.Unscheduled = append(p.Unscheduled, Unscheduled{Pod: b.Pod, Reasons: []Reason{blockedReason(b)}})
	}
	slices.SortFunc(p.Unscheduled, func(a, b Unscheduled) int { return strings.Compare(a.Pod.String(), b.Pod.String()) })
}

func blockedReason(b snapshot.Blocked) Reason {
	if b.Invalid {
		return Reason{Code: InvalidPod, Key: b.Key, Have: b.Message}
	}
	return Reason{Code: VolumeUnready, Key: b.Key, Have: b.Message}
}

// diagnose says for each pool, and for the existing nodes, why no pod of c has a place.
func (s *solver) diagnose(c *class) []Reason {
	var out []Reason
	usable := 0
	for i := range s.snap.Pools {
		out = append(out, s.diagnosePool(c, i)...)
		if s.snap.Pools[i].Unusable == "" {
			usable++
		}
	}
	if len(s.snap.Pools) == 0 {
		out = append(out, Reason{Code: NoPool, Hint: "add a NodePool"})
	}
	for _, v := range c.shared {
		if v.Exclusive && s.exclusive[v.ID] {
			return []Reason{{Code: VolumeInUse, Key: v.ID}}
		}
	}
	out = append(out, s.blame[c.id]...)
	if s.existing > 0 {
		out = append(out, s.diagnoseNodes(c)...)
	}
	if len(out) == 0 {
		out = append(out, Reason{Code: NotReached})
	}
	return dedupe(out)
}

func dedupe(list []Reason) []Reason {
	seen := map[Reason]bool{}
	return slices.DeleteFunc(list, func(r Reason) bool {
		if seen[r] {
			return true
		}
		seen[r] = true
		return false
	})
}

// diagnosePool finds the first thing about a pool that stands in the way of c: taints,
// labels, resources, limits. Nil if it is none of these.
func (s *solver) diagnosePool(c *class, pool int) []Reason {
	p := s.snap.Pools[pool]
	if p.Unusable != "" {
		return []Reason{{Code: PoolUnusable, Pool: p.Name, Have: p.Unusable}}
	}
	if t := snapshot.Untolerated(c.snap.Tolerations, p.Taints); t != nil {
		return []Reason{{Code: UntoleratedTaint, Pool: p.Name, Key: t.Key, Have: t.ToString(), Hint: "a toleration for it would help"}}
	}
	inPool := func(cols bitset) (list []int32) {
		cols.each(func(k int) {
			if s.shops[s.columns[k].shop].pool == pool {
				list = append(list, int32(k))
			}
		})
		return list
	}
	accepted := inPool(c.profile.all)
	if len(accepted) == 0 {
		if r := s.diagnosePorts(c, pool); r != nil {
			return []Reason{*r}
		}
		return []Reason{s.diagnoseLabels(c, p, pool)}
	}
	var fit []int32
	for _, k := range accepted {
		if holds(s.columns[k].whole, c.req) && daemonsFit(s.columns[k].whole) {
			fit = append(fit, k)
		}
	}
	if len(fit) == 0 {
		rs := s.diagnoseRoom(c, func(yield func([]float64) bool) {
			for _, k := range accepted {
				if !yield(s.columns[k].whole) {
					return
				}
			}
		})
		for i := range rs {
			rs[i].Pool = p.Name
			if rs[i].Code == NotEnough {
				rs[i].Hint = s.hintType(c, p)
			}
		}
		return rs
	}
	chosen := slices.DeleteFunc(inPool(c.profile.cols), func(k int32) bool { return !c.fits.has(int(s.columns[k].allocID)) })
	if len(chosen) == 0 {
		for _, key := range sortedKeys(minValuesOf(p)) {
			values := map[string]bool{}
			for _, k := range fit {
				v, _ := s.columnLabel(&s.columns[k], key)
				values[v] = true
			}
			if want := minValuesOf(p)[key]; len(values) < want {
				return []Reason{{Code: TooFewValues, Pool: p.Name, Key: key, Want: fmt.Sprint(want), Have: fmt.Sprint(len(values)), Hint: "min-values policy BestEffort would relax it"}}
			}
		}
		return []Reason{{Code: TooFewValues, Pool: p.Name, Key: strings.Join(sortedKeys(minValuesOf(p)), ", "), Want: "more choice", Have: "too few instance types that hold it"}}
	}
	open := slices.ContainsFunc(chosen, func(k int32) bool { return s.roomFor(k, 1) > 0 })
	if !open {
		return s.diagnoseLimits(p, pool, chosen)
	}
	return nil
}

// hintType names the cheapest type of the pool's catalogue, whatever the pool allows, that
// would hold a pod of c.
func (s *solver) hintType(c *class, p *snapshot.Pool) string {
	name, least := "", catalog.Price(0)
	for _, it := range p.Catalog.Types() {
		if !holds(s.vector(it.Allocatable, it.AttachLimits), c.req) {
			continue
		}
		for _, o := range it.Offerings {
			if name == "" || o.Price < least {
				name, least = it.Name, o.Price
			}
		}
	}
	if name == "" {
		return "no instance type of the catalogue is large enough"
	}
	return "the pool would have to allow a larger type, such as " + name
}

// diagnoseLabels finds the label on which the pool and every term of c disagree.
func (s *solver) diagnoseLabels(c *class, p *snapshot.Pool, pool int) Reason {
	for _, t := range c.snap.Terms {
		for _, key := range t.Keys() {
			want := t[key]
			if key == requirements.FieldName || key == corev1.LabelHostname {
				return Reason{Code: LabelMismatch, Pool: p.Name, Key: key, Want: want.Constraint(), Have: "a name of its own"}
			}
			matched := newBits(len(s.columns))
			for _, sh := range s.shops {
				if sh.pool == pool {
					s.addMatching(matched, sh, requirements.Set{key: want})
				}
			}
			if matched.any() {
				continue
			}
			r := Reason{Code: LabelMismatch, Pool: p.Name, Key: key, Want: want.Constraint(), Have: "no such label"}
			if have, ok := p.Requirements[key]; ok {
				r.Have = have.Constraint()
			} else if values := s.valuesOf(p, key); len(values) > 0 {
				r.Have = "In " + strings.Join(values, ", ")
			}
			if err, ok := p.Requirements.Compatible(requirements.Set{key: want}, nil).(*requirements.IncompatibleError); ok && err.Hint() != "" {
				r.Hint = fmt.Sprintf("is %s meant?", err.Hint())
			}
			return r
		}
	}
	var want []string
	for _, t := range c.snap.Terms {
		for _, key := range t.Keys() {
			want = append(want, t[key].String())
		}
	}
	if len(want) == 0 {
		return Reason{Code: NoOffering, Pool: p.Name, Want: "the pool's own requirements"}
	}
	return Reason{Code: NoOffering, Pool: p.Name, Want: strings.Join(want, " and ") + " together"}
}

// valuesOf are up to five values that a label has on a pool's instance types.
func (s *solver) valuesOf(p *snapshot.Pool, key string) []string {
	values := map[string]bool{}
	for _, t := range p.Catalog.Types() {
		if r, ok := t.Requirements[key]; ok {
			for _, v := range r.Values() {
				values[v] = true
			}
		}
		if key == corev1.LabelTopologyZone {
			for _, o := range t.Offerings {
				values[o.Zone] = true
			}
		}
	}
	list := sortedKeys(values)
	if len(list) > 5 {
		list = append(list[:5], "...")
	}
	return list
}

func (s *solver) diagnosePorts(c *class, pool int) *Reason {
	if len(c.snap.Ports) == 0 {
		return nil
	}
	for _, d := range s.snap.Daemons {
		for _, q := range d.Class.Ports {
			for _, port := range c.snap.Ports {
				if port.Conflicts(q) {
					return &Reason{Code: PortTaken, Pool: s.snap.Pools[pool].Name, Key: fmt.Sprintf("%d/%s", port.Port, port.Protocol), Have: "DaemonSet " + d.Key.String()}
				}
			}
		}
	}
	return nil
}

// diagnoseRoom names the resources of which no choice has enough, or all of them if each
// alone would do.
func (s *solver) diagnoseRoom(c *class, rooms func(yield func([]float64) bool)) []Reason {
	most := make([]float64, s.D)
	rooms(func(room []float64) bool {
		for r, v := range room {
			most[r] = max(most[r], v)
		}
		return true
	})
	var out []Reason
	var all []string
	for r, q := range c.req {
		if q == 0 {
			continue
		}
		if r >= len(s.dims) {
			if q > most[r] {
				out = append(out, Reason{Code: AttachLimit, Key: s.drivers[r-len(s.dims)], Want: fmt.Sprint(q), Have: fmt.Sprint(most[r])})
			}
			continue
		}
		want := amount(s.dims[r], q)
		all = append(all, fmt.Sprintf("%s %s", s.dims[r], want))
		if q > most[r] {
			out = append(out, Reason{Code: NotEnough, Key: string(s.dims[r]), Want: want, Have: amount(s.dims[r], max(most[r], 0))})
		}
	}
	if len(out) == 0 {
		out = append(out, Reason{Code: NotTogether, Want: strings.Join(all, ", ")})
	}
	return out
}

func amount(name corev1.ResourceName, v float64) string {
	q := resources.Quantity(name, int64(v))
	return q.String()
}

// diagnoseLimits names the limit that is in the way of the smallest type that would do.
func (s *solver) diagnoseLimits(p *snapshot.Pool, pool int, columns []int32) []Reason {
	l := s.limits[pool]
	if l == nil {
		return []Reason{{Code: NoOffering, Pool: p.Name, Want: "the reservation: all of its units are in use"}}
	}
	var out []Reason
	for i, name := range l.names {
		least := -1.0
		for _, k := range columns {
			each := s.booked(&s.columns[k], name)
			if least < 0 || each < least {
				least = each
			}
		}
		if least <= l.remaining[i] {
			continue
		}
		limit := float64(p.Limits[name])
		out = append(out, Reason{
			Code: LimitReached, Pool: p.Name, Key: string(name), Want: amount(name, limit), Have: amount(name, limit-l.remaining[i]),
			Hint: fmt.Sprintf("a limit of %s would allow one more node", amount(name, limit-l.remaining[i]+least)),
		})
	}
	if len(out) == 0 { // no single limit, but no type is within all of them
		out = append(out, Reason{Code: LimitReached, Pool: p.Name, Key: "all limits together", Want: "one more node", Have: "no type that would do"})
	}
	return out
}

// diagnoseNodes sums up why the existing nodes do not take c.
func (s *solver) diagnoseNodes(c *class) []Reason {
	counts := map[Reason]int{}
	var room []*node
	for _, n := range s.nodes[:s.existing] {
		switch r := s.nodeReason(c, n); {
		case r != nil:
			counts[*r]++
		case s.roomAllows(c, n) == 0:
			room = append(room, n)
		}
	}
	var out []Reason
	for r, k := range counts {
		r.Count = k
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Reason) int { return strings.Compare(a.String(), b.String()) })
	if len(room) > 0 {
		for _, r := range s.diagnoseRoom(c, func(yield func([]float64) bool) {
			for _, n := range room {
				if !yield(n.room) {
					return
				}
			}
		}) {
			r.Count = len(room)
			out = append(out, r)
		}
	}
	return out
}

// nodeReason is what keeps pods of c off an existing node, room apart; nil if nothing does.
func (s *solver) nodeReason(c *class, n *node) *Reason {
	if t := snapshot.Untolerated(c.snap.Tolerations, n.existing.Taints); t != nil {
		return &Reason{Code: UntoleratedTaint, Key: t.Key, Have: t.ToString()}
	}
	if !s.accepts(c.profile, n) {
		r := s.nodeMismatch(c, n)
		return &r
	}
	if portsConflict(n.ports, c.snap.Ports) {
		return &Reason{Code: PortTaken, Key: fmt.Sprintf("%d/%s", c.snap.Ports[0].Port, c.snap.Ports[0].Protocol), Have: "a pod on the node"}
	}
	if s.roomAllows(c, n) == 0 {
		return nil
	}
	group, ok := s.placeAllowed(c, n)
	if ok {
		_, group = s.hostAllows(c, n)
	}
	if group < 0 {
		return nil
	}
	r := s.groupReason(c, group)
	return &r
}

func (s *solver) nodeMismatch(c *class, n *node) Reason {
	for _, t := range c.snap.Terms {
		for _, key := range t.Keys() {
			if !snapshot.MatchesLabels(requirements.Set{key: t[key]}, n.existing.Labels, n.name) {
				have, ok := n.existing.Labels[key]
				if !ok {
					have = "no such label"
				}
				if key == requirements.FieldName || key == corev1.LabelHostname {
					have = "another name"
				}
				return Reason{Code: LabelMismatch, Key: key, Want: t[key].Constraint(), Have: have}
			}
		}
	}
	return Reason{Code: LabelMismatch, Key: "labels", Want: "one of the pod's terms", Have: "none"}
}

// groupReason says which rule of c a group stands for.
func (s *solver) groupReason(c *class, g int32) Reason {
	gr := s.groups[g]
	key := s.keyName(gr)
	switch gr.kind {
	case spreadGroup:
		for _, r := range c.spread {
			if r.group == g {
				return Reason{Code: SpreadTooUneven, Key: key, Want: fmt.Sprintf("maxSkew is %d", r.skew), Have: "every domain within reach has more pods than that above the least"}
			}
		}
	case jointGroup:
		return Reason{Code: VolumeZone, Key: key}
	case nearGroup:
		return Reason{Code: NothingNear, Key: key}
	case apartGroup:
		for _, r := range c.apart {
			if r.group == g {
				return Reason{Code: TooNear, Key: key}
			}
		}
		return Reason{Code: KeptAway, Key: key}
	}
	return Reason{Code: NotReached}
}

func (s *solver) blameGroup(c *class, g int32) {
	r := s.groupReason(c, g)
	if !slices.Contains(s.blame[c.id], r) {
		s.blame[c.id] = append(s.blame[c.id], r)
	}
}

// blamePlaces notes why no place was left for pods of c.
func (s *solver) blamePlaces(c *class, places []*place, extra [][]int32) {
	for _, r := range c.spread {
		gr := s.groups[r.group]
		if gr.key == hostname || r.minDomains < 2 {
			continue
		}
		n := len(extra[gr.key])
		for d, k := range gr.present {
			if k > 0 && !slices.Contains(extra[gr.key], int32(d)) {
				n++
			}
		}
		if n < int(r.minDomains) {
			s.blame[c.id] = append(s.blame[c.id], Reason{Code: TooFewDomains, Key: s.keyName(gr), Want: fmt.Sprint(r.minDomains), Have: fmt.Sprint(n)})
			return
		}
	}
	for _, p := range places {
		if g, ok := s.allowedIn(c, p.domains, extra); !ok && g >= 0 {
			s.blameGroup(c, g)
		}
	}
}
