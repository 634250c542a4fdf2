package fact

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
)

// FallbackAnnotation is on a NodeClaim that was not the first choice when it was bought. Its
// value is what came first, as JSON of [policy.Fallback].
const FallbackAnnotation = "policy.dovetail.sh/fallback-from"

// FormatFallback is the value of [FallbackAnnotation].
func FormatFallback(f policy.Fallback) string {
	b, err := json.Marshal(f)
	if err != nil {
		panic("fact: a fallback is always JSON: " + err.Error())
	}
	return string(b)
}

// HoursPerMonth is what a cost per hour is multiplied by for one per month.
const HoursPerMonth = 730

// Proposal is a command to take nodes away, as the core plans it.
type Proposal struct {
	// Reason is one of those of package policy, such as [policy.Drifted].
	Reason string
	// Nodes are the names of the nodes that would go.
	Nodes []string
	// Plan is for the snapshot without the nodes.
	Plan schedule.Plan
	// Costs are those that Plan was made with; nil is list prices.
	Costs *policy.Costs
	// Balanced is the share of savings over that of disruption in permille, if it is known.
	Balanced *int64
	// Deadline is when the nodes go anyway; zero is never.
	Deadline time.Time
	// Blocked is since when each node has wanted to go, by name.
	Blocked map[string]time.Time
}

// Desk answers many questions about one snapshot: it looks only once at what they share. Its
// methods may not be called at the same time.
type Desk struct {
	o      Objects
	in     *policy.Inputs
	snap   *snapshot.Snapshot
	facts  policy.Facts
	claims map[string]*karpv1.NodeClaim
	nodes  map[string]*corev1.Node
	owners *owners
	// pods is the number of pods that no DaemonSet has.
	pods int64
}

// Desk prepares questions about the nodes of snap.
func (o Objects) Desk(in *policy.Inputs, snap *snapshot.Snapshot, facts policy.Facts) *Desk {
	if facts.Pod == nil {
		facts.Pod = o.Pod
	}
	if facts.Budget == nil {
		facts.Budget = o.Budget()
	}
	d := &Desk{
		o: o, in: in, snap: snap, facts: facts, owners: o.owners(snap),
		claims: make(map[string]*karpv1.NodeClaim, len(o.NodeClaims)), nodes: make(map[string]*corev1.Node, len(o.Nodes)),
	}
	for _, c := range o.NodeClaims {
		d.claims[c.Name] = c
	}
	for _, n := range o.Nodes {
		d.nodes[n.Name] = n
	}
	for _, n := range snap.Nodes {
		for _, i := range n.Pods {
			if !snap.Pods[i].Daemon {
				d.pods++
			}
		}
	}
	return d
}

// Question is what policies are asked about p, whose nodes are those of snap. An unknown node
// is an error. For many questions about one snapshot, use [Objects.Desk].
func (o Objects) Question(in *policy.Inputs, snap *snapshot.Snapshot, p Proposal, facts policy.Facts) (*policy.DisruptInput, error) {
	return o.Desk(in, snap, facts).Question(p)
}

// Question is what policies are asked about p. An unknown node is an error.
func (d *Desk) Question(p Proposal) (*policy.DisruptInput, error) {
	in, snap, facts := d.in, d.snap, d.facts
	cmd := policy.Command{Reason: p.Reason, Decision: "delete", Replacements: []policy.Claim{}, Destinations: []policy.Destination{}, BalancedScore: p.Balanced}
	gone := map[string]bool{}
	before := int64(0)
	for _, name := range p.Nodes {
		c, err := d.candidate(name, p)
		if err != nil {
			return nil, err
		}
		before += c.HourlyCost
		gone[name] = true
		cmd.Candidates = append(cmd.Candidates, c)
	}
	moved := map[snapshot.PodKey]resources.List{}
	for _, name := range p.Nodes {
		for _, i := range d.node(name).Pods {
			if pod := &snap.Pods[i]; !pod.Daemon && !pod.Terminating {
				moved[pod.Key] = snap.Classes[pod.Class].Requests
			}
		}
	}
	if len(p.Plan.NewNodes) > 0 {
		cmd.Decision = "replace"
		cmd.Replacements = in.Launch(snap.Fork(gone), &p.Plan, p.Costs, facts).Claims
	}
	var err error
	if cmd.Destinations, err = d.destinations(p, moved); err != nil {
		return nil, err
	}
	cmd.PodsMoved = int64(len(moved))
	s := &cmd.Savings
	s.Hourly = before - int64(p.Plan.Cost)
	s.Monthly = s.Hourly * HoursPerMonth
	if before > 0 {
		s.Percent, s.Permille = floor(s.Hourly*100, before), floor(s.Hourly*1000, before)
	}
	if cmd.PodsMoved > 0 {
		s.PerPodMoved = new(s.Hourly / cmd.PodsMoved)
	}
	if d.pods > 0 {
		cmd.BlastRadius = cmd.PodsMoved * 1000 / d.pods
	}
	if !p.Deadline.IsZero() {
		cmd.SecondsToDeadline = new(max(int64(p.Deadline.Sub(snap.Now)/time.Second), 0))
	}
	return in.Disrupt(snap, cmd, d.owners.on(gone), facts), nil
}

func floor(a, b int64) int64 {
	q := a / b
	if a%b != 0 && a < 0 {
		q--
	}
	return q
}

// destinations are the running nodes that take pods which move.
func (d *Desk) destinations(p Proposal, moved map[snapshot.PodKey]resources.List) ([]policy.Destination, error) {
	onto := map[string]resources.List{}
	for _, a := range p.Plan.Assignments {
		requests, ok := moved[a.Pod]
		if !ok || a.New {
			continue
		}
		if onto[a.Node] == nil {
			onto[a.Node] = resources.List{}
		}
		onto[a.Node].AddTo(requests)
	}
	out := []policy.Destination{}
	for _, name := range slices.Sorted(maps.Keys(onto)) {
		n, add := d.node(name), onto[name]
		if n == nil {
			continue
		}
		to := policy.Destination{Node: n.Name, Pool: n.Pool, InFlight: n.InFlight || !n.Initialized}
		var err error
		if to.UtilizationBefore, to.UtilizationAfter, err = d.in.UtilizationOf(d.snap, n.Name, add); err != nil {
			return nil, err
		}
		if c := d.claims[n.Claim]; c != nil {
			to.SecondsSinceLastPodEvent = since(d.snap.Now, c.Status.LastPodEventTime)
		}
		out = append(out, to)
	}
	return out, nil
}

func since(now time.Time, t metav1.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	return new(max(int64(now.Sub(t.Time)/time.Second), 0))
}

// node is a node of the snapshot; nil if there is none of that name.
func (d *Desk) node(name string) *snapshot.Node {
	i, ok := slices.BinarySearchFunc(d.snap.Nodes, name, func(n *snapshot.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return d.snap.Nodes[i]
}

// candidate is a node of p with what its objects say.
func (d *Desk) candidate(name string, p Proposal) (policy.Candidate, error) {
	snap, facts := d.snap, d.facts
	c, err := d.in.CandidateOf(snap, name, facts)
	if err != nil {
		return c, err
	}
	n := d.node(name)
	created := metav1.Time{}
	if node := d.nodes[name]; node != nil {
		c.Annotations, created = node.Annotations, node.CreationTimestamp
	}
	if node := c.Annotations[karpv1.DoNotDisruptAnnotationKey]; node == "true" {
		c.Blockers = append(c.Blockers, "the node has the annotation "+karpv1.DoNotDisruptAnnotationKey)
	}
	if claim := d.claims[n.Claim]; claim != nil {
		created = claim.CreationTimestamp
		c.SecondsSinceLastPodEvent = since(snap.Now, claim.Status.LastPodEventTime)
		_, c.Fallback = claim.Annotations[FallbackAnnotation]
		for _, cond := range claim.Status.Conditions {
			if cond.Status != metav1.ConditionTrue {
				continue
			}
			c.Conditions = append(c.Conditions, cond.Type)
			if cond.Type == karpv1.ConditionDrifted {
				c.Drift = &policy.Drift{Field: cmp.Or(cond.Message, cond.Reason), SinceSeconds: *cmp.Or(since(snap.Now, cond.LastTransitionTime), new(int64))}
			}
		}
		slices.Sort(c.Conditions)
	}
	if age := since(snap.Now, created); age != nil {
		c.AgeSeconds = *age
	}
	if at, ok := p.Blocked[name]; ok {
		c.BlockedSeconds = max(int64(snap.Now.Sub(at)/time.Second), 0)
	}
	pods := 0
	for _, i := range n.Pods {
		pod := &snap.Pods[i]
		if pod.Daemon {
			continue
		}
		pods++
		object := (*corev1.Pod)(nil)
		if facts.Pod != nil {
			object = facts.Pod(pod.Key)
		}
		if object == nil {
			continue
		}
		if object.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
			c.Blockers = append(c.Blockers, fmt.Sprintf("pod %s has the annotation %s", pod.Key, karpv1.DoNotDisruptAnnotationKey))
		}
		if b := facts.Budget(object); b != nil && b.Allowed == 0 {
			c.Blockers = append(c.Blockers, fmt.Sprintf("PodDisruptionBudget %s/%s allows no disruption of pod %s", pod.Key.Namespace, b.Name, pod.Key.Name))
		}
	}
	if pods == 0 {
		c.SecondsSinceEmpty = c.SecondsSinceLastPodEvent
	}
	return c, nil
}
