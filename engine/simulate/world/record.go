package world

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Causes of evictions beside the reasons of moves. They are in reports, and stable.
const (
	Ended         = "MachineEnded"
	CauseExpired  = "Expired"
	CauseTaken    = "Interrupted"
	CauseFailed   = "Failed"
	CauseRemoved  = "Removed"
	CauseRollBack = "RolledBack"
)

// Kind says what an entry is about.
type Kind string

// Kinds of entries. They are in reports, and stable.
const (
	// Bought: a node is bought for pending pods.
	Bought Kind = "bought"
	// Ready: a node takes pods.
	Ready Kind = "ready"
	// Decided: a move is made.
	Decided Kind = "decided"
	// RolledBack: a move is given up.
	RolledBack Kind = "rolledBack"
	// Refused: policies are against something.
	Refused Kind = "refused"
	// Deleting: a node's end begins; Gone: it has ended.
	Deleting Kind = "deleting"
	Gone     Kind = "gone"
	// LaunchFailed: a claim does not become a node.
	LaunchFailed Kind = "launchFailed"
	// Interrupted: the cloud announces a machine's end.
	Interrupted Kind = "interrupted"
	Expired     Kind = "expired"
	Drifted     Kind = "drifted"
	// Unplaced: a pod gets no node.
	Unplaced Kind = "unplaced"
	// Scaled: a workload's number of pods is changed.
	Scaled Kind = "scaled"
	// Scripted: something else was told to happen.
	Scripted Kind = "scripted"
)

// Entry is one line of what happened.
type Entry struct {
	At   time.Time `json:"at"`
	Kind Kind      `json:"kind"`
	// Object is what it is about: a node, a pod, a workload.
	Object string `json:"object,omitempty"`
	Pool   string `json:"pool,omitempty"`
	Text   string `json:"text,omitempty"`
	// Why is the reason of a decision.
	Why string `json:"why,omitempty"`
	// Pods is the number of pods that it is for, or that move.
	Pods int `json:"pods,omitempty"`
	// Moved is how many of the pods that a node is bought for a move had evicted.
	Moved int `json:"moved,omitempty"`
	// Delta is what it changes of the cost per hour, in US dollars.
	Delta float64 `json:"delta,omitempty"`
	// Reason is that of a move, or the cause for which a node goes; Nodes and Bought are those
	// of a move.
	Reason string   `json:"reason,omitempty"`
	Nodes  []string `json:"nodes,omitempty"`
	Bought []string `json:"bought,omitempty"`
}

// Point is the state from a time on until the next one.
type Point struct {
	At time.Time
	// Cost is what all machines cost per hour.
	Cost catalog.Price
	// Nodes are machines that are paid for; Running and Pending are pods, those of DaemonSets
	// left out.
	Nodes, Running, Pending int
	// Requested and Allocatable are in millicores and bytes, of the nodes that are there.
	CPURequested, CPUAllocatable       int64
	MemoryRequested, MemoryAllocatable int64
	// Spot is the part of Cost that is for spot machines.
	Spot catalog.Price
}

// Record is what happened in a world.
type Record struct {
	Start   time.Time
	Entries []Entry
	Points  []Point
	// Plans and Loops are the numbers of plans for pending pods and of loops that looked for
	// moves.
	Plans, Loops int
	// Evictions are pods that had to leave a running node, by cause; Lost are those among
	// them whose machine ended under them, and Unowned those that nothing made again.
	Evictions map[string]int
	Lost      int
	Unowned   int
	// PendingSeconds is what pods have waited for a node, LongestWait the longest of these.
	PendingSeconds float64
	LongestWait    time.Duration
	// Waits are how long pods have waited that got a node, in seconds.
	Waits []float32
	// Cost is what has been paid, in US dollars, and ByPool, ByType and ByCapacity its parts.
	Cost                       float64
	ByPool, ByType, ByCapacity map[string]float64
	// NodeHours, CPUHours and so on are integrals of what Points have.
	NodeHours                              float64
	CPURequestedHours, CPUAllocatableHours float64
	MemRequestedHours, MemAllocatableHours float64
	PodHours                               float64
	PeakNodes                              int
	PeakCost                               catalog.Price

	reprice   bool
	version   int
	since     map[snapshot.PodKey]time.Time
	why       map[snapshot.PodKey]string
	heirs     map[snapshot.PodKey]snapshot.PodKey
	returning map[snapshot.PodKey]bool
	// moved are the pods that follow one that a move had evicted, until they have a node.
	moved map[snapshot.PodKey]bool
	// moving says that the pod evicted last has to move for a move.
	moving bool
	// parts are what is paid for now.
	parts []part
	// running, cpu and memory are of the pods that are bound.
	running     int
	cpu, memory int64
}

// part is what machines of one kind cost together.
type part struct {
	pool, instanceType, capacityType string
	cost                             catalog.Price
}

func newRecord(start time.Time) *Record {
	return &Record{
		Start: start, Evictions: map[string]int{}, ByPool: map[string]float64{}, ByType: map[string]float64{}, ByCapacity: map[string]float64{},
		reprice: true, version: -1, since: map[snapshot.PodKey]time.Time{}, why: map[snapshot.PodKey]string{},
		heirs: map[snapshot.PodKey]snapshot.PodKey{}, returning: map[snapshot.PodKey]bool{}, moved: map[snapshot.PodKey]bool{},
	}
}

// waits notes that a pod waits for a node.
func (r *Record) waits(key snapshot.PodKey, now time.Time) { r.since[key] = now }

// bound notes that a pod got a node.
func (r *Record) bound(key snapshot.PodKey, now time.Time) {
	if at, ok := r.since[key]; ok {
		r.wait(now.Sub(at))
		r.Waits = append(r.Waits, float32(now.Sub(at).Seconds()))
		delete(r.since, key)
		delete(r.why, key)
	}
	delete(r.moved, key)
}

func (r *Record) wait(d time.Duration) {
	r.PendingSeconds += d.Seconds()
	r.LongestWait = max(r.LongestWait, d)
}

// gone notes that a pod is no more.
func (r *Record) gone(key snapshot.PodKey, now time.Time) {
	if at, ok := r.since[key]; ok {
		r.wait(now.Sub(at))
		delete(r.since, key)
	}
	delete(r.why, key)
}

// evicted notes that a pod has to leave its node.
func (r *Record) evicted(w *World, p *corev1.Pod, lost string) {
	why := cmp.Or(w.causes[w.claimOf(p.Spec.NodeName)], Ended)
	if lost != "" {
		r.Lost++
	}
	if w.workloadOf(p) == nil {
		r.Unowned++
	}
	r.Evictions[why]++
	r.moving = lost == "" && slices.Contains([]string{string(karpv1.DisruptionReasonEmpty), string(karpv1.DisruptionReasonUnderutilized), string(karpv1.DisruptionReasonDrifted)}, why)
}

// EvictedTwice are pods that were evicted more than once, with those that followed them.
func (r *Record) EvictedTwice() []string {
	var out []string
	for from := range r.heirs {
		n, key := 1, r.heirs[from]
		for {
			next, ok := r.heirs[key]
			if !ok {
				break
			}
			n, key = n+1, next
		}
		if n > 1 {
			out = append(out, from.String())
		}
	}
	slices.Sort(out)
	return out
}

// TotalEvictions is the number of all of them.
func (r *Record) TotalEvictions() int {
	n := 0
	for _, k := range r.Evictions {
		n += k
	}
	return n
}

// use counts a pod that is bound, or one that has gone if by is -1.
func (r *Record) use(p *corev1.Pod, by int) {
	l := resources.PodRequests(p)
	r.cpu += int64(by) * l[corev1.ResourceCPU]
	r.memory += int64(by) * l[corev1.ResourceMemory]
	if !candidate.Daemon(p) && !candidate.Mirror(p) {
		r.running += by
	}
}

// pass adds up what is so until t.
func (r *Record) pass(w *World, t time.Time) {
	if len(r.Points) == 0 {
		return
	}
	hours := t.Sub(w.now).Hours()
	p := &r.Points[len(r.Points)-1]
	r.Cost += p.Cost.Dollars() * hours
	r.NodeHours += float64(p.Nodes) * hours
	r.PodHours += float64(p.Running) * hours
	r.CPURequestedHours += float64(p.CPURequested) / 1000 * hours
	r.CPUAllocatableHours += float64(p.CPUAllocatable) / 1000 * hours
	r.MemRequestedHours += float64(p.MemoryRequested) / (1 << 30) * hours
	r.MemAllocatableHours += float64(p.MemoryAllocatable) / (1 << 30) * hours
	for _, part := range r.parts {
		cost := part.cost.Dollars() * hours
		r.ByPool[part.pool] += cost
		r.ByType[part.instanceType] += cost
		r.ByCapacity[part.capacityType] += cost
	}
}

// take takes a point if anything has changed.
func (r *Record) take(w *World) {
	if r.version == w.version && !r.reprice {
		return
	}
	r.version = w.version
	if r.reprice {
		w.price()
		r.reprice = false
	}
	p := Point{At: w.now, Pending: len(w.unbound), Nodes: len(w.machines), Running: r.running, CPURequested: r.cpu, MemoryRequested: r.memory}
	for _, part := range r.parts {
		p.Cost += part.cost
		if part.capacityType == catalog.Spot {
			p.Spot += part.cost
		}
	}
	for _, n := range w.nodes {
		p.CPUAllocatable += n.Status.Allocatable.Cpu().MilliValue()
		p.MemoryAllocatable += n.Status.Allocatable.Memory().Value()
	}
	r.PeakNodes, r.PeakCost = max(r.PeakNodes, p.Nodes), max(r.PeakCost, p.Cost)
	if n := len(r.Points); n > 0 {
		last := r.Points[n-1]
		if last.At.Equal(p.At) {
			r.Points[n-1] = p
			return
		}
		last.At = p.At
		if last == p {
			return
		}
	}
	r.Points = append(r.Points, p)
}

// price looks up what machines cost now. One whose price the catalogue no longer tells keeps
// the one that it had.
func (w *World) price() {
	type key struct{ pool, instanceType, capacityType string }
	sums := map[key]catalog.Price{}
	for _, m := range w.machines {
		if p, ok := w.listPrice(m); ok {
			m.price = p
		}
		sums[key{m.pool, m.offering.InstanceType, m.offering.CapacityType}] += m.price
	}
	w.record.parts = w.record.parts[:0]
	for k, sum := range sums {
		w.record.parts = append(w.record.parts, part{k.pool, k.instanceType, k.capacityType, sum})
	}
	slices.SortFunc(w.record.parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.instanceType, b.instanceType), cmp.Compare(a.capacityType, b.capacityType))
	})
}

// listPrice is what a machine's offering costs now, overlays included.
func (w *World) listPrice(m *machine) (catalog.Price, bool) {
	snap, _ := w.snapshot()
	i := slices.IndexFunc(snap.Pools, func(p *snapshot.Pool) bool { return p.Name == m.pool })
	if i < 0 || snap.Pools[i].Catalog == nil {
		return 0, false
	}
	it, ok := snap.Pools[i].Catalog.ByName(m.offering.InstanceType)
	if !ok {
		return 0, false
	}
	for _, o := range it.Offerings {
		if o.Zone == m.offering.Zone && o.CapacityType == m.offering.CapacityType && o.ReservationID == m.offering.ReservationID {
			return o.Price, true
		}
	}
	return 0, false
}

// Waiting are the pods that have no node, with what is in the way as far as it is known.
func (w *World) Waiting() map[snapshot.PodKey]string {
	out := make(map[snapshot.PodKey]string, len(w.unbound))
	for key := range w.unbound {
		out[key] = w.record.why[key]
	}
	return out
}

// PendingSeconds is what pods have waited so far, those included that still do.
func (w *World) PendingSeconds() float64 {
	var open time.Duration
	for key := range w.unbound {
		if at, ok := w.record.since[key]; ok {
			open += w.now.Sub(at)
		}
	}
	return w.record.PendingSeconds + open.Seconds()
}

// Heir is the pod that has followed one that was evicted, and itself if it was not; ok is
// false if nothing followed it.
func (w *World) Heir(key snapshot.PodKey) (heir snapshot.PodKey, ok bool) {
	for {
		next, more := w.record.heirs[key]
		if !more {
			break
		}
		key = next
	}
	return key, w.pod(key) != nil
}

// Cost is what all machines cost per hour now.
func (w *World) Cost() catalog.Price {
	if n := len(w.record.Points); n > 0 {
		return w.record.Points[n-1].Cost
	}
	return 0
}
