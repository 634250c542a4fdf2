package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Facts are what a snapshot does not say. The zero value is ready to use: what it does
// not know is missing or zero in the inputs.
type Facts struct {
	Cluster Cluster
	// PlanID and SnapshotRevision name the plan and the snapshot.
	PlanID, SnapshotRevision string
	Commitments              []Commitment
	Signals                  Signals
	History                  History
	InFlight                 InFlight
	// Pod returns a pod's object; nil if it is not known. Labels, age and namespace come
	// from it.
	Pod func(snapshot.PodKey) *corev1.Pod
	// Namespace returns a namespace's object; nil if it is not known.
	Namespace func(string) *corev1.Namespace
	// Budget returns the PodDisruptionBudget of a pod; nil if it has none. Nil knows none.
	Budget func(*corev1.Pod) *PDB
	// Evictions is how often pods of a pod's controller were evicted in the last 24 hours.
	// Nil knows of none.
	Evictions func(*corev1.Pod) int64
	// TeamLabel is the label of pods and nodes that names a team. Defaults to "team".
	TeamLabel string
	// TotalLabels are the node labels by which Totals.ByLabel sums up. Defaults to
	// TeamLabel.
	TotalLabels []string
	// Offering adds what is known of an offering besides the catalogue: capacity errors,
	// quotas, free addresses, interruption rates, prices' age. Nil adds nothing.
	Offering func(pool string, it *catalog.InstanceType, o *catalog.Offering, out *Offering)
	// OfferingRevision names the state of what Offering adds; a new one makes new rows.
	OfferingRevision string
	// Round bounds the time of the policies that are asked with these facts, together, and
	// keeps their records. Nil is no bound but those of each policy.
	Round *Round
}

func (f Facts) withDefaults() Facts {
	f.TeamLabel = cmp.Or(f.TeamLabel, "team")
	if f.TotalLabels == nil {
		f.TotalLabels = []string{f.TeamLabel}
	}
	if f.Commitments == nil {
		f.Commitments = []Commitment{}
	}
	return f
}

// Inputs builds inputs from snapshots and keeps the tables of offerings while nothing in
// them changes. The zero value is ready to use; methods may be called at the same time.
type Inputs struct {
	mu     sync.Mutex
	tables map[string]table
	sums   sums
	kinds  []*kinds
}

// kinds are the instance types of a catalogue as policies see them, by their index in it.
type kinds struct {
	catalog *catalog.Catalog
	types   []*InstanceType
	// resolved is what NodePools may buy of it, those asked about last at the end.
	resolved []resolution
}

// resolution is what a NodePool with these requirements may buy.
type resolution struct {
	requirements requirements.Set
	resolved     Resolved
}

// maxKinds is how many catalogues' types are kept: as many as there are NodeClasses, mostly.
const maxKinds = 8

// maxResolved is how many NodePools' choices of one catalogue are kept.
const maxResolved = 8

// kindsOf are the instance types of c, with b locked. They must not be changed.
func (b *Inputs) kindsOf(c *catalog.Catalog) *kinds {
	for _, k := range b.kinds {
		if k.catalog == c {
			return k
		}
	}
	types := c.Types()
	k := &kinds{catalog: c, types: make([]*InstanceType, len(types))}
	for i := range types {
		k.types[i] = instanceType(&types[i])
	}
	if len(b.kinds) == maxKinds {
		b.kinds = b.kinds[1:]
	}
	b.kinds = append(b.kinds, k)
	return k
}

// sums are what questions about one snapshot share. They must not be changed.
type sums struct {
	snap   *snapshot.Snapshot
	labels string
	totals Totals
	pools  map[string]NodePool
}

// sumsOf sums up snap, once for all questions about it that follow one another.
func (b *Inputs) sumsOf(snap *snapshot.Snapshot, facts Facts) sums {
	b.mu.Lock()
	defer b.mu.Unlock()
	if labels := strings.Join(facts.TotalLabels, ","); b.sums.snap != snap || b.sums.labels != labels {
		b.sums = sums{snap: snap, labels: labels, totals: facts.totals(snap), pools: make(map[string]NodePool, len(snap.Pools))}
		for _, p := range snap.Pools {
			b.sums.pools[p.Name] = nodePool(snap, p)
		}
	}
	return b.sums
}

type table struct {
	key  string
	rows *Offerings
}

// Score is the question about the offerings of pool p.
func (b *Inputs) Score(snap *snapshot.Snapshot, p *snapshot.Pool, facts Facts) *ScoreInput {
	facts = facts.withDefaults()
	pending := make([]snapshot.PodKey, len(snap.Pending))
	for i, n := range snap.Pending {
		pending[i] = snap.Pods[n].Key
	}
	return &ScoreInput{
		Meta: facts.meta(snap), NodePool: nodePool(snap, p), Pods: facts.pods(snap, pending),
		Commitments: facts.Commitments, Totals: facts.totals(snap), History: &facts.History,
		Candidates: b.offerings(snap, p, facts),
	}
}

func (f Facts) meta(snap *snapshot.Snapshot) Meta {
	return Meta{
		APIVersion: APIVersion, Cluster: f.Cluster, SnapshotRevision: f.SnapshotRevision, PlanID: f.PlanID,
		Now: At(snap.Now), Signals: f.Signals, Parameters: map[string]any{},
		round: f.Round,
	}
}

// At is t as a policy sees it.
func At(t time.Time) Now {
	t = t.UTC()
	return Now{UTC: t.Format(time.RFC3339), Unix: t.Unix(), Weekday: t.Weekday().String(), Hour: t.Hour(), Minute: t.Minute()}
}

// offerings is the table of what p may buy, in the order of its catalogue. Offerings that
// the pool's own requirements rule out are not among them.
func (b *Inputs) offerings(snap *snapshot.Snapshot, p *snapshot.Pool, facts Facts) *Offerings {
	d := newDigester()
	d.str(p.Catalog.Hash())
	d.str(facts.OfferingRevision)
	d.str(p.Requirements.String())
	for _, ds := range snap.Daemons {
		d.str(ds.Key.String())
		d.str(ds.Class.ProfileKey)
		for _, name := range ds.Class.Requests.Names() {
			d.str(string(name))
			d.int('r', ds.Class.Requests[name])
		}
	}
	key := d.sum()
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.tables[p.Name]; ok && t.key == key {
		return t.rows
	}
	rows := offerings(snap, p, facts)
	if b.tables == nil {
		b.tables = map[string]table{}
	}
	b.tables[p.Name] = table{key, rows}
	return rows
}

func offerings(snap *snapshot.Snapshot, p *snapshot.Pool, facts Facts) *Offerings {
	var rows []OfferingRow
	types := p.Catalog.Types()
	index := make(map[string][]int32, len(types))
	zones, kinds := p.Requirements.Get(corev1.LabelTopologyZone), p.Requirements.Get(karpv1.CapacityTypeLabelKey)
	for i := range types {
		it := &types[i]
		if p.Requirements.Intersects(it.Requirements) != nil {
			continue
		}
		at := make([]int32, len(it.Offerings))
		index[it.Name] = at
		var shown *InstanceType
		var overhead Daemons
		onDemand, spot := map[string]int64{}, map[string]int64{}
		for _, o := range it.Offerings {
			switch o.CapacityType {
			case catalog.OnDemand:
				onDemand[o.Zone] = int64(o.Price)
			case catalog.Spot:
				spot[o.Zone] = int64(o.Price)
			}
		}
		for j := range it.Offerings {
			o := &it.Offerings[j]
			if !zones.Has(o.Zone) || !kinds.Has(o.CapacityType) {
				at[j] = -1
				continue
			}
			if shown == nil {
				shown, overhead = instanceType(it), daemons(snap, p, it)
			}
			at[j] = int32(len(rows))
			rows = append(rows, OfferingRow{InstanceType: shown, Offering: offering(p.Name, it, o, onDemand, spot, facts), DaemonOverhead: overhead})
		}
	}
	t := NewOfferings("", rows)
	t.index = index
	t.StaticRevision = t.digest(staticRows())
	return t
}

func offering(pool string, it *catalog.InstanceType, o *catalog.Offering, onDemand, spot map[string]int64, facts Facts) Offering {
	out := Offering{Zone: o.Zone, CapacityType: o.CapacityType, Available: !o.Unavailable, ListPrice: int64(o.Price), PriceSource: "catalogue"}
	if v, ok := onDemand[o.Zone]; ok {
		out.OnDemandPrice = &v
	}
	if v, ok := spot[o.Zone]; ok {
		out.SpotPrice = &v
	}
	if o.PriceOverlay {
		out.PriceSource = "overlay"
	}
	if o.ReservationID != "" {
		out.Reservation = &Reservation{ID: o.ReservationID, Remaining: int64(o.ReservationCapacity)}
	}
	if facts.Offering != nil {
		facts.Offering(pool, it, o, &out)
	}
	return out
}

// staticRows is the tree of all fields of a row that change with the catalogue only.
func staticRows() *Tree {
	r := Reads{}
	for _, f := range fieldsOf(reflect.TypeFor[InstanceType]()) {
		r = append(r, "candidates.*.instanceType."+f.name)
	}
	for _, f := range fieldsOf(reflect.TypeFor[Offering]()) {
		if f.tag == "" {
			r = append(r, "candidates.*.offering."+f.name)
		}
	}
	return r.Tree().rowTree()
}

const mib = 1 << 20

// inMiB rounds up.
func inMiB(bytes int64) int64 { return (bytes + mib - 1) / mib }

var (
	burstable = regexp.MustCompile(`^t[0-9]`)
	number    = regexp.MustCompile(`[0-9]+`)
)

// instanceType is it as policies see it. Clouds label their types with family, size and
// so on under their own prefix; names such as m7i.2xlarge say the rest.
func instanceType(it *catalog.InstanceType) *InstanceType {
	keys := it.Requirements.Keys()
	label := func(suffix string) string {
		for _, key := range keys {
			if strings.HasSuffix(key, "/instance-"+suffix) {
				if v, ok := it.Requirements[key].IsSingle(); ok {
					return v
				}
			}
		}
		return ""
	}
	count := func(suffix string) int64 {
		n, err := strconv.ParseInt(label(suffix), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	family, size, _ := strings.Cut(it.Name, ".")
	out := &InstanceType{
		Name: it.Name, Family: cmp.Or(label("family"), family), Size: cmp.Or(label("size"), size), Manufacturer: label("cpu-manufacturer"),
		CPU: it.Capacity[corev1.ResourceCPU], Memory: it.Capacity[corev1.ResourceMemory] / mib, Pods: it.Capacity[corev1.ResourcePods],
		LocalDisk: count("local-nvme") * 1024, Network: count("network-bandwidth"),
		AttachLimits: it.AttachLimits, Labels: it.Requirements.Labels(), OS: []string{},
	}
	if g := cmp.Or(label("generation"), number.FindString(out.Family)); g != "" {
		out.Generation, _ = strconv.Atoi(g)
	}
	if arch, ok := it.Requirements[corev1.LabelArchStable]; ok {
		out.Arch, _ = arch.IsSingle()
	}
	if os, ok := it.Requirements[corev1.LabelOSStable]; ok {
		out.OS = os.Values()
	}
	out.Burstable = burstable.MatchString(out.Family)
	out.BareMetal = strings.HasPrefix(out.Size, "metal")
	for _, name := range it.Capacity.Names() {
		if s := string(name); strings.HasSuffix(s, "/gpu") && it.Capacity[name] > 0 {
			out.GPU = &GPU{Name: cmp.Or(label("gpu-name"), strings.TrimSuffix(s, "/gpu")), Count: it.Capacity[name], Memory: count("gpu-memory")}
		}
	}
	return out
}

// daemons is what DaemonSets need on a new node of it in p.
func daemons(snap *snapshot.Snapshot, p *snapshot.Pool, it *catalog.InstanceType) Daemons {
	out := Daemons{Names: []string{}}
	var at requirements.Set
	for _, d := range snap.Daemons {
		if snapshot.Untolerated(d.Class.Tolerations, p.Taints) != nil {
			continue
		}
		fits := len(d.Class.Terms) == 0
		for _, term := range d.Class.Terms {
			if len(term) == 0 {
				fits = true
				break
			}
			if at == nil {
				at = p.Requirements.Clone()
				at.AddSet(it.Requirements)
			}
			if at.Intersects(term) == nil {
				fits = true
				break
			}
		}
		if !fits {
			continue
		}
		out.CPU += d.Class.Requests[corev1.ResourceCPU]
		out.Memory += inMiB(d.Class.Requests[corev1.ResourceMemory])
		out.Pods++
		out.Names = append(out.Names, d.Key.String())
	}
	return out
}

func amounts(l resources.List) Amounts {
	var out Amounts
	for name, v := range l {
		switch {
		case name == corev1.ResourceCPU:
			out.CPU = &v
		case name == corev1.ResourceMemory:
			m := inMiB(v)
			out.Memory = &m
		case name == snapshot.NodesResource:
			out.Nodes = &v
		case strings.HasSuffix(string(name), "/gpu"):
			if out.GPU == nil {
				out.GPU = new(int64)
			}
			*out.GPU += v
		}
	}
	return out
}

// nodePool is p with what its nodes use.
func nodePool(snap *snapshot.Snapshot, p *snapshot.Pool) NodePool {
	out := PoolOf(p.Object)
	out.Name, out.Weight = p.Name, int64(p.Weight)
	out.Limits, out.Usage = amounts(p.Limits), amounts(p.Usage)
	left := p.Limits.Clone()
	for name := range left {
		left[name] = max(left[name]-p.Usage[name], 0)
	}
	out.Remaining = amounts(left)
	for _, n := range snap.Nodes {
		if n.Pool != p.Name {
			continue
		}
		out.Nodes++
		if n.InFlight {
			out.UnregisteredClaims++
		}
		out.HourlyCost += listPrice(p, n)
	}
	return out
}

// PoolOf is what a NodePool object says of itself; nil gives the zero value.
func PoolOf(np *karpv1.NodePool) NodePool {
	out := NodePool{Labels: map[string]string{}, Annotations: map[string]string{}, Budgets: []Budget{}}
	if np == nil {
		return out
	}
	out.Name = np.Name
	if np.Labels != nil {
		out.Labels = np.Labels
	}
	if np.Annotations != nil {
		out.Annotations = np.Annotations
	}
	if np.Spec.Weight != nil {
		out.Weight = int64(*np.Spec.Weight)
	}
	if l, err := resources.FromQuantities(np.Spec.Limits); err == nil {
		out.Limits = amounts(l)
	}
	out.Disruption.ConsolidationPolicy = string(np.Spec.Disruption.ConsolidationPolicy)
	out.Disruption.ConsolidateAfterSeconds = seconds(np.Spec.Disruption.ConsolidateAfter)
	out.Disruption.ExpireAfterSeconds = seconds(np.Spec.Template.Spec.ExpireAfter)
	for _, b := range np.Spec.Disruption.Budgets {
		x := Budget{Nodes: b.Nodes, Reasons: []string{}}
		for _, r := range b.Reasons {
			x.Reasons = append(x.Reasons, string(r))
		}
		if b.Schedule != nil {
			x.Schedule = *b.Schedule
		}
		if b.Duration != nil {
			x.DurationSeconds = int64(b.Duration.Seconds())
		}
		out.Budgets = append(out.Budgets, x)
	}
	return out
}

func seconds(d karpv1.NillableDuration) *int64 {
	v, ok := d.Value()
	if !ok {
		return nil
	}
	s := int64(v / time.Second)
	return &s
}

// listPrice of the offering that n is of; 0 if the catalogue does not have it.
func listPrice(p *snapshot.Pool, n *snapshot.Node) int64 {
	it, ok := p.Catalog.ByName(n.Labels[corev1.LabelInstanceTypeStable])
	if !ok {
		return 0
	}
	for _, o := range it.Offerings {
		if o.Zone == n.Labels[corev1.LabelTopologyZone] && o.CapacityType == n.Labels[karpv1.CapacityTypeLabelKey] {
			return int64(o.Price)
		}
	}
	return 0
}

func (f Facts) totals(snap *snapshot.Snapshot) Totals {
	out := Totals{NodesByZone: map[string]int64{}, NodesByCapacityType: map[string]int64{}, ByLabel: map[string]map[string]LabelTotals{}}
	pools := map[string]*snapshot.Pool{}
	for _, p := range snap.Pools {
		pools[p.Name] = p
	}
	for _, n := range snap.Nodes {
		cpu, memory, cost := n.Capacity[corev1.ResourceCPU], n.Capacity[corev1.ResourceMemory]/mib, int64(0)
		if p := pools[n.Pool]; p != nil {
			cost = listPrice(p, n)
		}
		out.Nodes++
		out.CPU += cpu
		out.Memory += memory
		out.HourlyCost += cost
		if z := n.Labels[corev1.LabelTopologyZone]; z != "" {
			out.NodesByZone[z]++
		}
		if c := n.Labels[karpv1.CapacityTypeLabelKey]; c != "" {
			out.NodesByCapacityType[c]++
		}
		for _, key := range f.TotalLabels {
			v, ok := n.Labels[key]
			if !ok {
				continue
			}
			if out.ByLabel[key] == nil {
				out.ByLabel[key] = map[string]LabelTotals{}
			}
			t := out.ByLabel[key][v]
			t.Nodes++
			t.CPU += cpu
			t.HourlyCost += cost
			out.ByLabel[key][v] = t
		}
	}
	return out
}

// pods sums up the named pods.
func (f Facts) pods(snap *snapshot.Snapshot, keys []snapshot.PodKey) Pods {
	out := Pods{Namespaces: []string{}, Teams: []string{}, Priorities: []int64{}}
	byKey := podIndex(snap)
	namespaces, teams, priorities := map[string]bool{}, map[string]bool{}, map[int64]bool{}
	for _, k := range keys {
		i, ok := byKey(k)
		if !ok {
			continue
		}
		c := snap.Classes[snap.Pods[i].Class]
		out.Count++
		out.SumRequests.CPU += c.Requests[corev1.ResourceCPU]
		out.SumRequests.Memory += inMiB(c.Requests[corev1.ResourceMemory])
		for name, v := range c.Requests {
			if strings.HasSuffix(string(name), "/gpu") {
				out.SumRequests.GPU += v
			}
		}
		namespaces[k.Namespace] = true
		priorities[int64(c.Priority)] = true
		if team := c.Labels[f.TeamLabel]; team != "" {
			teams[team] = true
		}
		if f.Pod == nil {
			continue
		}
		if pod := f.Pod(k); pod != nil {
			if team := pod.Labels[f.TeamLabel]; team != "" {
				teams[team] = true
			}
			if age := snap.Now.Sub(pod.CreationTimestamp.Time); !pod.CreationTimestamp.IsZero() && age > 0 {
				out.MaxPendingSeconds = max(out.MaxPendingSeconds, int64(age/time.Second))
			}
		}
	}
	out.Namespaces = append(out.Namespaces, slices.Sorted(maps.Keys(namespaces))...)
	out.Teams = append(out.Teams, slices.Sorted(maps.Keys(teams))...)
	out.Priorities = append(out.Priorities, slices.Sorted(maps.Keys(priorities))...)
	if f.Namespace != nil {
		for _, n := range out.Namespaces {
			if ns := f.Namespace(n); ns != nil {
				if out.NamespaceLabels == nil {
					out.NamespaceLabels = map[string]map[string]string{}
				}
				out.NamespaceLabels[n] = ns.Labels
			}
		}
	}
	return out
}

// podIndex finds pods, which are in order of namespace and name.
func podIndex(snap *snapshot.Snapshot) func(snapshot.PodKey) (int, bool) {
	return func(k snapshot.PodKey) (int, bool) {
		return slices.BinarySearchFunc(snap.Pods, k, func(p snapshot.Pod, k snapshot.PodKey) int {
			return cmp.Or(strings.Compare(p.Key.Namespace, k.Namespace), strings.Compare(p.Key.Name, k.Name))
		})
	}
}

// Launch is the question about the new nodes of plan, made with costs.
func (b *Inputs) Launch(snap *snapshot.Snapshot, plan *schedule.Plan, costs *Costs, facts Facts) *LaunchInput {
	facts = facts.withDefaults()
	out := &LaunchInput{
		Meta: facts.meta(snap), Claims: []Claim{}, NodePools: map[string]NodePool{}, Commitments: facts.Commitments,
		Totals: facts.totals(snap), History: facts.History, InFlight: &facts.InFlight,
	}
	pools := map[string]*snapshot.Pool{}
	for _, p := range snap.Pools {
		pools[p.Name] = p
	}
	var all []snapshot.PodKey
	types := map[string]int64{}
	before := newFallbacks(snap, plan, costs)
	choices := map[any]claimTypes{}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		p := pools[n.Pool]
		if p == nil {
			continue
		}
		if _, ok := out.NodePools[n.Pool]; !ok {
			out.NodePools[n.Pool] = nodePool(snap, p)
		}
		c := b.claim(snap, p, n, costs, facts, choices)
		c.FallbackFrom = before.of(n)
		if out.Plan.FallbackFrom == nil {
			out.Plan.FallbackFrom = c.FallbackFrom
		}
		out.Claims = append(out.Claims, c)
		all = append(all, n.Pods...)
		out.Plan.Nodes++
		out.Plan.AddedHourlyCost += c.HourlyCost
		out.Plan.RequestedCPU += c.RequestedCPU
		out.Plan.RequestedMemory += c.RequestedMemory
		out.Plan.WasteRatio = max(out.Plan.WasteRatio, c.WasteRatio)
		out.Plan.MaxPrice = max(out.Plan.MaxPrice, c.MaxPrice)
		if out.Plan.MinPrice == 0 || c.MinPrice < out.Plan.MinPrice {
			out.Plan.MinPrice = c.MinPrice
		}
		for _, t := range c.Types {
			if have, ok := types[t.Name]; !ok || t.Price < have {
				types[t.Name] = t.Price
			}
		}
	}
	out.Plan.Attempt = 1
	out.Plan.Types = priced(types)
	out.Plan.TypesCount = int64(len(types))
	out.Pods = facts.pods(snap, all)
	if len(out.NodePools) == 1 {
		for _, p := range out.NodePools {
			out.NodePool = &p
		}
	}
	return out
}

// maxTypes is how many types of a claim are listed; TypesCount counts all.
const maxTypes = 60

func priced(types map[string]int64) []PricedType {
	out := make([]PricedType, 0, len(types))
	for name, price := range types {
		out = append(out, PricedType{Name: name, Price: price})
	}
	slices.SortFunc(out, func(a, b PricedType) int {
		return cmp.Or(cmp.Compare(a.Price, b.Price), strings.Compare(a.Name, b.Name))
	})
	return out[:min(len(out), maxTypes)]
}

// claimTypes are the types that a claim may be launched as.
type claimTypes struct {
	types    []PricedType
	count    int64
	min, max int64
}

func typesOf(offers []schedule.Offer) claimTypes {
	var out claimTypes
	types := map[string]int64{}
	for i, o := range offers {
		cost := int64(o.Cost)
		if i == 0 {
			out.min = cost
		}
		out.min, out.max = min(out.min, cost), max(out.max, cost)
		if have, ok := types[o.InstanceType]; !ok || cost < have {
			types[o.InstanceType] = cost
		}
	}
	out.types, out.count = priced(types), int64(len(types))
	return out
}

// claim is n as policies see it; choices keeps what is the same for nodes of one kind.
func (b *Inputs) claim(snap *snapshot.Snapshot, p *snapshot.Pool, n *schedule.NewNode, costs *Costs, facts Facts, choices map[any]claimTypes) Claim {
	c := Claim{
		Name: n.Name, Pool: n.Pool, HourlyCost: int64(n.Planned.Cost), Labels: n.Labels, Pods: facts.pods(snap, n.Pods),
		Commitment:   costs.commitment(n.Pool, n.Planned),
		Purchase:     Purchase{RequestedCPU: n.Requests[corev1.ResourceCPU], RequestedMemory: inMiB(n.Requests[corev1.ResourceMemory]), Attempt: 1},
		InstanceType: &InstanceType{Name: n.Planned.InstanceType, OS: []string{}},
		Offering:     Offering{Zone: n.Planned.Zone, CapacityType: n.Planned.CapacityType, ListPrice: int64(n.Planned.Cost)},
	}
	table := b.offerings(snap, p, facts)
	for _, i := range table.index[n.Planned.InstanceType] {
		if i < 0 {
			continue
		}
		if row := &table.Rows[i]; row.Offering.Zone == n.Planned.Zone && row.Offering.CapacityType == n.Planned.CapacityType && row.reservation() == n.Planned.ReservationID {
			c.InstanceType, c.Offering, c.DaemonOverhead = row.InstanceType, row.Offering, row.DaemonOverhead
			break
		}
	}
	kind := n.Kind()
	choice, ok := choices[kind]
	if !ok {
		choice = typesOf(n.Alternatives())
		choices[kind] = choice
	}
	c.Types, c.TypesCount, c.MinPrice, c.MaxPrice = choice.types, choice.count, choice.min, choice.max
	asked := n.Requests.Clone()
	asked.AddTo(n.Daemons)
	c.WasteRatio = waste(asked, n.Allocatable)
	return c
}

// waste is the share in permille of have that is not asked for: of CPU or memory, whichever
// is less.
func waste(asked, have resources.List) int64 {
	used := int64(0)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if have[name] > 0 {
			used = max(used, int64(float64(asked[name])/float64(have[name])*1000))
		}
	}
	return max(0, 1000-used)
}

// Review is what the caller knows of a change of a NodePool.
type Review struct {
	// Operation is CREATE or UPDATE. Defaults to CREATE.
	Operation string
	// Object and OldObject are the NodePool as JSON; OldObject is nil for CREATE.
	Object, OldObject map[string]any
	User              User
	DryRun            bool
	Impact            Impact
	BudgetWeek        BudgetWeek
}

// Admit is the question about NodePool np. If snap has a pool of that name, what it
// resolves to is shown as well.
func (b *Inputs) Admit(snap *snapshot.Snapshot, np *karpv1.NodePool, r Review, facts Facts) *AdmitInput {
	facts = facts.withDefaults()
	out := &AdmitInput{
		Meta: facts.meta(snap), Operation: cmp.Or(r.Operation, "CREATE"), Object: r.Object, OldObject: r.OldObject,
		User: r.User, DryRun: r.DryRun, NodePool: PoolOf(np), Impact: r.Impact, BudgetWeek: r.BudgetWeek,
		Siblings: []Sibling{}, Totals: facts.totals(snap),
	}
	out.Resolved = Resolved{Types: []InstanceType{}, Zones: []string{}, CapacityTypes: []string{}}
	var self *snapshot.Pool
	for _, p := range snap.Pools {
		if p.Name == np.Name {
			self = p
			out.NodePool = nodePool(snap, p)
		}
	}
	if self == nil {
		return out
	}
	out.Resolved = b.resolve(self)
	for _, p := range snap.Pools {
		if p != self {
			out.Siblings = append(out.Siblings, Sibling{Name: p.Name, Weight: int64(p.Weight), Overlap: overlap(self, p)})
		}
	}
	return out
}

// overlap says whether one pod may be meant for both pools: their requirements have
// something in common, and neither has a taint that the other lacks.
func overlap(a, b *snapshot.Pool) bool {
	own := func(p *snapshot.Pool) requirements.Set {
		s := p.Requirements.Clone()
		delete(s, karpv1.NodePoolLabelKey)
		return s
	}
	if own(a).Intersects(own(b)) != nil {
		return false
	}
	has := func(p *snapshot.Pool, t corev1.Taint) bool {
		return slices.ContainsFunc(p.Taints, func(o corev1.Taint) bool { return o.MatchTaint(&t) })
	}
	for _, t := range a.Taints {
		if !has(b, t) {
			return false
		}
	}
	for _, t := range b.Taints {
		if !has(a, t) {
			return false
		}
	}
	return true
}

// resolve lists what p may buy.
//
// A NodePool is asked about again and again, while what it may buy seldom changes; the
// result must not be changed.
func (b *Inputs) resolve(p *snapshot.Pool) Resolved {
	if p.Catalog == nil {
		return Resolved{Types: []InstanceType{}, Zones: []string{}, CapacityTypes: []string{}}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.kindsOf(p.Catalog)
	i := slices.IndexFunc(k.resolved, func(r resolution) bool { return r.requirements.Equal(p.Requirements) })
	var r resolution
	if i >= 0 {
		r = k.resolved[i]
		k.resolved = slices.Delete(k.resolved, i, i+1)
	} else {
		r = resolution{p.Requirements.Clone(), resolve(p, k.types)}
		if len(k.resolved) == maxResolved {
			k.resolved = slices.Delete(k.resolved, 0, 1)
		}
	}
	k.resolved = append(k.resolved, r)
	return r.resolved
}

// resolve is the same, with seen the types of p's catalogue as policies see them.
func resolve(p *snapshot.Pool, seen []*InstanceType) Resolved {
	out := Resolved{Types: []InstanceType{}, Zones: []string{}, CapacityTypes: []string{}}
	zones, kinds := map[string]bool{}, map[string]bool{}
	types := p.Catalog.Types()
	out.Types = make([]InstanceType, 0, len(types))
	inZone, asKind := p.Requirements.Get(corev1.LabelTopologyZone), p.Requirements.Get(karpv1.CapacityTypeLabelKey)
	for i := range types {
		it := &types[i]
		if p.Requirements.Intersects(it.Requirements) != nil {
			continue
		}
		any := false
		for _, o := range it.Offerings {
			if !inZone.Has(o.Zone) || !asKind.Has(o.CapacityType) {
				continue
			}
			if price := int64(o.Price); !any && len(out.Types) == 0 {
				out.PriceMin, out.PriceMax = price, price
			} else {
				out.PriceMin, out.PriceMax = min(out.PriceMin, price), max(out.PriceMax, price)
			}
			any, zones[o.Zone], kinds[o.CapacityType] = true, true, true
		}
		if any {
			out.Types = append(out.Types, *seen[i])
		}
	}
	out.TypesCount = int64(len(out.Types))
	out.Zones = append(out.Zones, slices.Sorted(maps.Keys(zones))...)
	out.CapacityTypes = append(out.CapacityTypes, slices.Sorted(maps.Keys(kinds))...)
	return out
}

// CandidateOf is node n as a candidate for a command; what only the caller knows (age,
// drift, blockers) is left out. An unknown node is an error.
func (b *Inputs) CandidateOf(snap *snapshot.Snapshot, name string, facts Facts) (Candidate, error) {
	facts = facts.withDefaults()
	i, ok := slices.BinarySearchFunc(snap.Nodes, name, func(n *snapshot.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return Candidate{}, fmt.Errorf("node %q: not in the snapshot", name)
	}
	n := snap.Nodes[i]
	c := Candidate{
		Node: n.Name, Pool: n.Pool, Type: n.Labels[corev1.LabelInstanceTypeStable], Zone: n.Labels[corev1.LabelTopologyZone],
		CapacityType: n.Labels[karpv1.CapacityTypeLabelKey], Labels: n.Labels, Blockers: []string{}, Conditions: []string{},
	}
	c.Utilization = utilization(n, nil)
	for _, p := range snap.Pools {
		if p.Name != n.Pool || p.Catalog == nil {
			continue
		}
		c.HourlyCost = listPrice(p, n)
		for _, row := range b.offerings(snap, p, facts).Rows {
			if row.InstanceType.Name == c.Type && row.Offering.Zone == c.Zone && row.Offering.CapacityType == c.CapacityType {
				c.InstanceType, c.Offering, c.DaemonOverhead = row.InstanceType, &row.Offering, &row.DaemonOverhead
				break
			}
		}
	}
	return c, nil
}

// UtilizationOf is the utilization of a node as it is and with add requested besides. An
// unknown node is an error.
func (b *Inputs) UtilizationOf(snap *snapshot.Snapshot, name string, add resources.List) (before, after Utilization, err error) {
	i, ok := slices.BinarySearchFunc(snap.Nodes, name, func(n *snapshot.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return before, after, fmt.Errorf("node %q: not in the snapshot", name)
	}
	return utilization(snap.Nodes[i], nil), utilization(snap.Nodes[i], add), nil
}

// utilization is that of n with add requested besides.
func utilization(n *snapshot.Node, add resources.List) Utilization {
	share := func(name corev1.ResourceName) int64 {
		if n.Allocatable[name] <= 0 {
			return 0
		}
		return int64(float64(n.Used[name]+add[name]) / float64(n.Allocatable[name]) * 1000)
	}
	out := Utilization{CPU: share(corev1.ResourceCPU), Memory: share(corev1.ResourceMemory)}
	for _, name := range n.Allocatable.Names() {
		if strings.HasSuffix(string(name), "/gpu") && n.Allocatable[name] > 0 {
			out.GPU = new(share(name))
		}
	}
	return out
}

// Disrupt is the question about a command, whose candidates may be made with
// CandidateOf. Pods and owners are those on the candidates.
func (b *Inputs) Disrupt(snap *snapshot.Snapshot, cmd Command, owners []Owner, facts Facts) *DisruptInput {
	facts = facts.withDefaults()
	sums := b.sumsOf(snap, facts)
	out := &DisruptInput{
		Meta: facts.meta(snap), Command: cmd, NodePools: map[string]NodePool{}, Pods: []Pod{}, Owners: owners,
		Commitments: facts.Commitments, Totals: sums.totals, InFlight: facts.InFlight, History: facts.History,
	}
	if out.Owners == nil {
		out.Owners = []Owner{}
	}
	gone := map[string]bool{}
	want := map[string]bool{}
	for i := range cmd.Candidates {
		gone[cmd.Candidates[i].Node], want[cmd.Candidates[i].Pool] = true, true
	}
	for i := range cmd.Replacements {
		want[cmd.Replacements[i].Pool] = true
	}
	for _, p := range snap.Pools {
		if want[p.Name] {
			out.NodePools[p.Name] = sums.pools[p.Name]
		}
	}
	if len(out.NodePools) == 1 {
		for _, p := range out.NodePools {
			out.NodePool = &p
		}
	}
	var keys []snapshot.PodKey
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		at, ok := slices.BinarySearchFunc(snap.Nodes, name, func(n *snapshot.Node, name string) int { return strings.Compare(n.Name, name) })
		if !ok {
			continue
		}
		n := snap.Nodes[at]
		for _, i := range n.Pods {
			p := &snap.Pods[i]
			if p.Daemon {
				continue
			}
			keys = append(keys, p.Key)
			if len(out.Pods) == maxPods {
				out.PodsTruncated = true
				continue
			}
			out.Pods = append(out.Pods, facts.pod(snap, p, n.Name))
		}
	}
	out.PodTotals = facts.pods(snap, keys)
	return out
}

// DisposableAnnotation is "true" on a pod that may be killed at any time.
const DisposableAnnotation = v1alpha1.DisposableAnnotation

// maxPods is how many pods of a command are listed; PodTotals counts all.
const maxPods = 1000

func (f Facts) pod(snap *snapshot.Snapshot, p *snapshot.Pod, node string) Pod {
	c := snap.Classes[p.Class]
	out := Pod{
		Namespace: p.Key.Namespace, Name: p.Key.Name, Node: node, Priority: int64(c.Priority), Labels: c.Labels,
		RequestedCPU: c.Requests[corev1.ResourceCPU], RequestedMemory: inMiB(c.Requests[corev1.ResourceMemory]),
	}
	if f.Namespace != nil {
		if ns := f.Namespace(p.Key.Namespace); ns != nil {
			out.NamespaceLabels, out.NamespaceAnnotations = ns.Labels, ns.Annotations
		}
	}
	if f.Pod == nil {
		return out
	}
	pod := f.Pod(p.Key)
	if pod == nil {
		return out
	}
	out.Labels, out.Annotations = pod.Labels, pod.Annotations
	if age := snap.Now.Sub(pod.CreationTimestamp.Time); !pod.CreationTimestamp.IsZero() && age > 0 {
		out.AgeSeconds = int64(age / time.Second)
	}
	for _, o := range pod.OwnerReferences {
		if o.Controller != nil && *o.Controller {
			out.OwnerKind, out.OwnerName, out.OwnerUID = o.Kind, o.Name, string(o.UID)
		}
	}
	if n, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 64); err == nil {
		out.DeletionCost = n
	}
	out.Disposable = pod.Annotations[DisposableAnnotation] == "true"
	if f.Budget != nil {
		out.PDB = f.Budget(pod)
	}
	if f.Evictions != nil {
		out.EvictionsLast24h = f.Evictions(pod)
	}
	for _, v := range pod.Spec.Volumes {
		out.HasLocalData = out.HasLocalData || v.EmptyDir != nil && v.EmptyDir.Medium == "" || v.HostPath != nil
	}
	return out
}
