package schedule

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/requirements"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Plan says where every pending pod of a snapshot goes.
type Plan struct {
	// Assignments are the pods that get a node, in an order in which kube-scheduler
	// accepts them one after the other.
	Assignments []Assignment
	// NewNodes are the nodes to buy, in the order of pool and number.
	NewNodes []NewNode
	// Unscheduled are the pods that get no node, in order of namespace and name.
	Unscheduled []Unscheduled
	// Cost is the sum of NewNodes' planned cost, Bias the sum of their bias.
	Cost, Bias catalog.Price
	// Bound is a cost per hour below which no set of new nodes can hold the pods that
	// this plan puts on new nodes. It is valid, not tight.
	Bound catalog.Price
}

// Assignment puts one pod on a node.
type Assignment struct {
	Pod snapshot.PodKey
	// Node is the name of an existing node of the snapshot, or NewNode.Name.
	Node string
	// New is true if Node is one of Plan.NewNodes.
	New bool
}

// NewNode is a node to buy: one NodeClaim.
type NewNode struct {
	// Name identifies the node inside the plan: "<nodepool>/<number>". It is not the
	// name of a Kubernetes object.
	Name string
	Pool string
	// Planned is the offering whose cost the plan counts.
	Planned Offer
	// Pods are the pods planned for this node, in binding order.
	Pods []snapshot.PodKey
	// Requests is the sum of the pods' requests; Daemons what DaemonSets need beside
	// them on the planned type.
	Requests, Daemons resources.List
	// Allocatable is that of the planned type, daemons included.
	Allocatable resources.List
	// Labels are the labels the node is certain to carry under the planned offering.
	// Nodes of one offering share them: they must not be changed.
	Labels map[string]string
	// Taints of the pool's template; StartupTaints are gone before pods bind.
	Taints, StartupTaints []corev1.Taint
	// MinValuesRelaxed is true if the pool's minValues could not be met (BestEffort).
	MinValuesRelaxed bool

	choice *choice
}

// Alternatives are all offerings of the pool that hold this node's pods, Planned
// included, in order of cost + bias, then of name. An alternative is never larger than
// the planned type in a resource that the pool limits. They are computed at each call.
func (n *NewNode) Alternatives() []Offer {
	if n.choice == nil {
		return []Offer{n.Planned}
	}
	return n.choice.offers()
}

// Requirements are those of the NodeClaim: the pool's, narrowed by the pods and to the
// alternatives' instance types, zones and capacity types. They are computed at each
// call.
func (n *NewNode) Requirements() requirements.Set {
	if n.choice == nil {
		return requirements.Set{}
	}
	return n.choice.requirements()
}

// Kind is a comparable value: nodes of one plan with equal kinds have the same alternatives
// and requirements.
func (n *NewNode) Kind() any {
	if n.choice == nil {
		return n.Planned
	}
	return n.choice.kind()
}

// Offer is an offering of an instance type with what it costs here.
type Offer struct {
	InstanceType  string
	Zone          string
	CapacityType  string
	ReservationID string
	// Cost is money per hour: the list price, or what scoring policies made of it.
	// Bias only ranks.
	Cost, Bias catalog.Price
}

// Unscheduled is a pod without a node and why.
type Unscheduled struct {
	Pod     snapshot.PodKey
	Reasons []Reason
}

// MarshalText makes plans comparable as text: equal plans give equal bytes.
func (p Plan) MarshalText() ([]byte, error) {
	type node struct {
		NewNode
		Alternatives []Offer
		Requirements string
	}
	nodes := make([]node, len(p.NewNodes))
	for i := range p.NewNodes {
		n := &p.NewNodes[i]
		nodes[i] = node{*n, n.Alternatives(), ""}
		set := n.Requirements()
		for _, k := range set.Keys() {
			nodes[i].Requirements += set[k].String() + "\n"
		}
	}
	return json.Marshal(struct {
		Assignments       []Assignment
		NewNodes          []node
		Unscheduled       []Unscheduled
		Cost, Bias, Bound catalog.Price
	}{p.Assignments, nodes, p.Unscheduled, p.Cost, p.Bias, p.Bound})
}
