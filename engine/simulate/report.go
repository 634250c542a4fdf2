package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// HoursPerMonth turns an hourly cost into a monthly one.
const HoursPerMonth = 730

// Report is the outcome of a simulation. Money is in US dollars.
type Report struct {
	Cost Cost      `json:"cost"`
	Pods PodCounts `json:"pods"`
	// Nodes are the nodes to buy, in the plan's order.
	Nodes []Node `json:"nodes"`
	// Existing are the existing nodes that get pods, by name.
	Existing []Existing `json:"existing"`
	// Unscheduled are the pods without a node, by namespace and name.
	Unscheduled []Unscheduled `json:"unscheduled"`
	// Pools are the NodePools, in the order they are used.
	Pools    []Pool         `json:"pools"`
	Problems []load.Problem `json:"problems"`
	// Policies say what policies made of the plan; nil without policies.
	Policies *PolicyReport `json:"policies,omitempty"`
}

// Cost is what the new nodes cost. Existing nodes are paid for already and not counted.
type Cost struct {
	Hourly  float64 `json:"hourly"`
	Monthly float64 `json:"monthly"`
	// Bound is an hourly cost that no set of new nodes for the same pods can go below.
	Bound float64 `json:"bound"`
	// AboveBound is how much dearer the plan is than Bound, in percent; absent if Bound
	// is zero.
	AboveBound *float64 `json:"aboveBound,omitempty"`
	// Bias is the sum of the ranking terms of scoring policies; it is not money.
	Bias float64 `json:"bias,omitempty"`
}

// PodCounts says where the pending pods went.
type PodCounts struct {
	Pending     int `json:"pending"`
	OnNew       int `json:"onNew"`
	OnExisting  int `json:"onExisting"`
	Unscheduled int `json:"unscheduled"`
}

// Node is a node to buy.
type Node struct {
	Name          string         `json:"name"`
	Pool          string         `json:"pool"`
	InstanceType  string         `json:"instanceType"`
	Zone          string         `json:"zone"`
	CapacityType  string         `json:"capacityType"`
	ReservationID string         `json:"reservationID,omitempty"`
	Price         float64        `json:"price"`
	Bias          float64        `json:"bias,omitempty"`
	Utilisation   map[string]Use `json:"utilisation"`
	Pods          []string       `json:"pods"`
	// Alternatives is the number of other offerings that hold the same pods, and Next the
	// cheapest of another type. They are there only if they were asked for.
	Alternatives *int   `json:"alternatives,omitempty"`
	Next         *Offer `json:"next,omitempty"`
	// MinValuesRelaxed is true if the pool's minValues could not be met.
	MinValuesRelaxed bool `json:"minValuesRelaxed,omitempty"`
}

// Use is how much of a node's resource is taken.
type Use struct {
	// Pods and Daemons are requested, of Allocatable; all are Kubernetes quantities.
	Pods        string `json:"pods"`
	Daemons     string `json:"daemons,omitempty"`
	Allocatable string `json:"allocatable"`
	// Percent is (Pods + Daemons) / Allocatable.
	Percent float64 `json:"percent"`
}

// Offer is an offering with its hourly price.
type Offer struct {
	InstanceType  string  `json:"instanceType"`
	Zone          string  `json:"zone"`
	CapacityType  string  `json:"capacityType"`
	ReservationID string  `json:"reservationID,omitempty"`
	Price         float64 `json:"price"`
	Bias          float64 `json:"bias,omitempty"`
}

// Existing is an existing node that gets pods.
type Existing struct {
	Name string `json:"name"`
	Pool string `json:"pool,omitempty"`
	// InFlight means that its NodeClaim exists and the node does not yet.
	InFlight bool     `json:"inFlight,omitempty"`
	Pods     []string `json:"pods"`
	// Before and After are the utilisation in percent, by resource.
	Before map[string]float64 `json:"before"`
	After  map[string]float64 `json:"after"`
}

// Unscheduled is a pod without a node.
type Unscheduled struct {
	Pod string `json:"pod"`
	// Workload is the kind and name of what the pod belongs to, if anything.
	Workload string   `json:"workload,omitempty"`
	Reasons  []Reason `json:"reasons"`
}

// Reason is a scheduling reason with its sentence.
type Reason struct {
	schedule.Reason `json:",inline"`
	Text            string `json:"text"`
}

// Pool is a NodePool and what it buys.
type Pool struct {
	Name     string  `json:"name"`
	Weight   int32   `json:"weight,omitempty"`
	NewNodes int     `json:"newNodes"`
	Hourly   float64 `json:"hourly"`
	// Unusable says why the pool buys nothing; empty if it may buy.
	Unusable string `json:"unusable,omitempty"`
}

// Labels tell a report what the snapshot does not know.
type Labels struct {
	// Workload is the kind and name of what a pod belongs to; nil knows none.
	Workload func(snapshot.PodKey) (kind, name string)
	Problems []load.Problem
	// Alternatives asks for those of every new node, which takes longer than all else.
	Alternatives bool
}

// NewReport describes plan, made from snap. It changes neither.
func NewReport(snap *snapshot.Snapshot, plan schedule.Plan, labels Labels) Report {
	r := Report{
		Cost:        newCost(plan),
		Nodes:       make([]Node, 0, len(plan.NewNodes)),
		Existing:    existing(snap, plan),
		Unscheduled: make([]Unscheduled, 0, len(plan.Unscheduled)),
		Pools:       make([]Pool, 0, len(snap.Pools)),
		Problems:    load.Sort(labels.Problems),
	}
	if r.Problems == nil {
		r.Problems = []load.Problem{}
	}
	byPool := map[string]*Pool{}
	for _, p := range snap.Pools {
		r.Pools = append(r.Pools, Pool{Name: p.Name, Weight: p.Weight, Unusable: p.Unusable})
	}
	for i := range r.Pools {
		byPool[r.Pools[i].Name] = &r.Pools[i]
	}
	for i := range plan.NewNodes {
		n := &plan.NewNodes[i]
		r.Nodes = append(r.Nodes, newNode(n, labels.Alternatives))
		if p := byPool[n.Pool]; p != nil {
			p.NewNodes++
			p.Hourly = round6(p.Hourly + n.Planned.Cost.Dollars())
		}
	}
	for _, a := range plan.Assignments {
		if a.New {
			r.Pods.OnNew++
		} else {
			r.Pods.OnExisting++
		}
	}
	for _, u := range plan.Unscheduled {
		out := Unscheduled{Pod: u.Pod.String(), Reasons: reasons(u.Reasons)}
		if labels.Workload != nil {
			if kind, name := labels.Workload(u.Pod); kind != "" {
				out.Workload = kind + " " + u.Pod.Namespace + "/" + name
			}
		}
		r.Unscheduled = append(r.Unscheduled, out)
	}
	r.Pods.Unscheduled = len(r.Unscheduled)
	r.Pods.Pending = r.Pods.OnNew + r.Pods.OnExisting + r.Pods.Unscheduled
	return r
}

func newCost(plan schedule.Plan) Cost {
	c := Cost{
		Hourly:  plan.Cost.Dollars(),
		Monthly: math.Round(plan.Cost.Dollars()*HoursPerMonth*100) / 100,
		Bound:   plan.Bound.Dollars(),
		Bias:    plan.Bias.Dollars(),
	}
	if plan.Bound > 0 {
		above := math.Round((float64(plan.Cost)/float64(plan.Bound)-1)*1e4) / 100
		c.AboveBound = &above
	}
	return c
}

func round6(f float64) float64 { return math.Round(f*1e6) / 1e6 }

func reasons(in []schedule.Reason) []Reason {
	out := make([]Reason, len(in))
	for i, r := range in {
		out[i] = Reason{Reason: r, Text: r.String()}
	}
	return out
}

func newNode(n *schedule.NewNode, alternatives bool) Node {
	out := Node{
		Name: n.Name, Pool: n.Pool, InstanceType: n.Planned.InstanceType, Zone: n.Planned.Zone,
		CapacityType: n.Planned.CapacityType, ReservationID: n.Planned.ReservationID,
		Price: n.Planned.Cost.Dollars(), Bias: n.Planned.Bias.Dollars(),
		Utilisation:      map[string]Use{},
		Pods:             podStrings(n.Pods),
		MinValuesRelaxed: n.MinValuesRelaxed,
	}
	if alternatives {
		all := n.Alternatives()
		out.Alternatives = new(max(len(all)-1, 0))
		if i := slices.IndexFunc(all, func(o schedule.Offer) bool { return o.InstanceType != n.Planned.InstanceType }); i >= 0 {
			out.Next = new(newOffer(all[i]))
		}
	}
	for name, room := range n.Allocatable {
		pods, daemons := n.Requests[name], n.Daemons[name]
		if room == 0 && pods == 0 && daemons == 0 {
			continue
		}
		use := Use{Pods: quantity(name, pods), Allocatable: quantity(name, room), Percent: percent(pods+daemons, room)}
		if daemons != 0 {
			use.Daemons = quantity(name, daemons)
		}
		out.Utilisation[string(name)] = use
	}
	return out
}

func newOffer(o schedule.Offer) Offer {
	return Offer{InstanceType: o.InstanceType, Zone: o.Zone, CapacityType: o.CapacityType, ReservationID: o.ReservationID,
		Price: o.Cost.Dollars(), Bias: o.Bias.Dollars()}
}

func quantity(name corev1.ResourceName, v int64) string {
	q := resources.Quantity(name, v)
	return q.String()
}

func percent(used, room int64) float64 {
	if room <= 0 {
		return 0
	}
	return math.Round(float64(used)/float64(room)*1000) / 10
}

func podStrings(keys []snapshot.PodKey) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = k.String()
	}
	return out
}

func existing(snap *snapshot.Snapshot, plan schedule.Plan) []Existing {
	onto := map[string][]snapshot.PodKey{}
	placed := map[snapshot.PodKey]bool{}
	for _, a := range plan.Assignments {
		if !a.New {
			onto[a.Node] = append(onto[a.Node], a.Pod)
			placed[a.Pod] = true
		}
	}
	requests := map[snapshot.PodKey]resources.List{}
	for i := range snap.Pods {
		if p := &snap.Pods[i]; placed[p.Key] {
			requests[p.Key] = snap.Classes[p.Class].Requests
		}
	}
	out := []Existing{}
	for _, n := range snap.Nodes {
		pods := onto[n.Name]
		if len(pods) == 0 {
			continue
		}
		used := n.Used.Clone()
		used.AddTo(n.DaemonReserve)
		e := Existing{Name: n.Name, Pool: n.Pool, InFlight: n.InFlight, Pods: podStrings(pods), Before: map[string]float64{}, After: map[string]float64{}}
		after := used.Clone()
		for _, p := range pods {
			after.AddTo(requests[p])
		}
		for name, room := range n.Allocatable {
			if room > 0 {
				e.Before[string(name)] = percent(used[name], room)
				e.After[string(name)] = percent(after[name], room)
			}
		}
		out = append(out, e)
	}
	return out
}

// resourceNames are the resources that pods of the report's nodes ask for, the usual
// ones first.
func (r *Report) resourceNames() []string {
	seen := map[string]bool{string(corev1.ResourceCPU): true, string(corev1.ResourceMemory): true}
	for _, n := range r.Nodes {
		for name, u := range n.Utilisation {
			if u.Percent > 0 {
				seen[name] = true
			}
		}
	}
	delete(seen, string(catalog.PodsResource))
	rank := map[string]int{string(corev1.ResourceCPU): 1, string(corev1.ResourceMemory): 2, string(corev1.ResourceEphemeralStorage): 3}
	names := slices.Collect(maps.Keys(seen))
	slices.SortFunc(names, func(a, b string) int {
		ra, rb := rank[a], rank[b]
		if ra == 0 {
			ra = 4
		}
		if rb == 0 {
			rb = 4
		}
		return cmp.Or(cmp.Compare(ra, rb), cmp.Compare(a, b))
	})
	return names
}

// sentence is the outcome in one line.
func (r *Report) sentence() string {
	s := fmt.Sprintf("%s pending: %d on %s", plural(r.Pods.Pending, "pod"), r.Pods.OnNew, plural(len(r.Nodes), "new node"))
	if r.Pods.OnExisting > 0 {
		s += fmt.Sprintf(", %d on %s", r.Pods.OnExisting, plural(len(r.Existing), "existing node"))
	}
	return s + fmt.Sprintf(", %d unscheduled", r.Pods.Unscheduled)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
