// Package replay plays a cluster through time and tells what came of it: what was decided and
// why, what it cost and when, who had to move and who had to wait.
package replay

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
	"github.com/dovetail-sh/dovetail/engine/simulate/script"
	"github.com/dovetail-sh/dovetail/engine/simulate/world"
)

// After is how long a replay goes on after the last that is told, unless it is told until when.
const After = 15 * time.Minute

// Input is a cluster and what is to happen to it.
type Input struct {
	// Cluster is what there is in the beginning. Without a NodePool one is assumed.
	Cluster *load.Result
	Stays   []load.Stay
	Events  []script.Event
	// World says how things go; its Policies and Still are set by a [Setting].
	World world.Options
	// Until is how long the replay lasts. Defaults to After beyond the last event.
	Until time.Duration
}

// Consolidation policies of a [Setting] beside those of NodePools.
const (
	// Off keeps nodes whatever is on them, until they drift or reach their age.
	Off = "off"
)

// Setting is what two replays of the same input may differ in. The zero value leaves
// everything as it is.
type Setting struct {
	Name string
	// Consolidation replaces the consolidation policy of all NodePools: [Off], or one that
	// NodePools may have. After replaces their consolidateAfter.
	Consolidation string
	After         *time.Duration
	// Policies are in force.
	Policies []policy.Policy
	// Facts are what policies are told beside the objects; OnDecision is told of decisions.
	Facts      policy.Facts
	OnDecision func(policy.Record, any)
}

// Validate names what is wrong.
func (s *Setting) Validate() error {
	allowed := []string{"", Off, string(karpv1.ConsolidationPolicyWhenEmpty), string(karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized), string(karpv1.ConsolidationPolicyBalanced)}
	if !slices.Contains(allowed, s.Consolidation) {
		return fmt.Errorf("consolidation %q: must be one of %q", s.Consolidation, allowed[1:])
	}
	return nil
}

// pools are the NodePools of the input under the setting.
func (s *Setting) pools(in *Input) (pools []*karpv1.NodePool, assumed bool) {
	pools = in.Cluster.Objects.NodePools
	if len(pools) == 0 {
		pools, assumed = []*karpv1.NodePool{defaultPool(in)}, true
	}
	out := make([]*karpv1.NodePool, len(pools))
	for i, np := range pools {
		np = np.DeepCopy()
		np.SetDefaults()
		d := &np.Spec.Disruption
		switch s.Consolidation {
		case "":
		case Off:
			d.ConsolidateAfter = karpv1.NillableDuration{Text: karpv1.Never}
		default:
			d.ConsolidationPolicy = karpv1.ConsolidationPolicy(s.Consolidation)
		}
		if s.After != nil && s.Consolidation != Off {
			d.ConsolidateAfter = karpv1.NillableDuration{Duration: s.After, Text: s.After.String()}
		}
		out[i] = np
	}
	return out, assumed
}

// defaultPool is that of package simulate; if pods ask for GPUs, with categories that have
// them.
func defaultPool(in *Input) *karpv1.NodePool {
	cat := in.World.Catalog
	np := simulate.DefaultNodePool(cat)
	asks := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			q := c.Resources.Requests[load.GPUResource]
			return !q.IsZero()
		})
	}
	if !slices.ContainsFunc(in.Stays, func(s load.Stay) bool { return asks(s.Pod) }) && !slices.ContainsFunc(in.Cluster.Objects.Pods, asks) {
		return np
	}
	for i, r := range np.Spec.Template.Spec.Requirements {
		if r.Key == "karpenter.k8s.aws/instance-category" {
			np.Spec.Template.Spec.Requirements[i].Values = []string{"c", "m", "r", "g", "p"}
		}
	}
	return np
}

// Run plays the input once. Equal arguments give equal reports.
func Run(ctx context.Context, in Input, s Setting) (*Report, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	objs := in.Cluster.Objects
	pools, assumed := s.pools(&in)
	objs.NodePools = pools
	opts := in.World
	opts.Policies, opts.Facts, opts.OnDecision = s.Policies, s.Facts, s.OnDecision
	if len(opts.Classes) == 0 {
		opts.Classes = in.Cluster.Classes
	}
	w, err := world.New(objs, opts)
	if err != nil {
		return nil, err
	}
	w.Know(in.Cluster.Workloads, in.Cluster.Workload)
	start, end := w.Now(), w.Now()
	later := func(t time.Time) {
		if t.After(end) {
			end = t
		}
	}
	for i := range in.Stays {
		stay := &in.Stays[i]
		w.At(start.Add(stay.From), func() error { w.AddPod(stay.Pod); return nil })
		later(start.Add(stay.From))
		if stay.To < load.Forever {
			w.At(start.Add(stay.To), func() error {
				w.RemovePod(snapshot.PodKey{Namespace: stay.Pod.Namespace, Name: stay.Pod.Name})
				return nil
			})
			later(start.Add(stay.To))
		}
	}
	for i := range in.Events {
		in.Events[i].Schedule(w, start)
		later(in.Events[i].Time(start))
	}
	end = end.Add(After)
	if in.Until > 0 {
		end = start.Add(in.Until)
	}
	if err := w.Run(ctx, end); err != nil {
		return nil, err
	}
	r := newReport(w, s.Name)
	if assumed {
		r.Problems = append(r.Problems, load.Problem{Severity: load.Note, Kind: "NodePool", Name: pools[0].Name, Message: "the input has no NodePool; this one is assumed: " + simulate.DescribePool(pools[0])})
	}
	r.Problems = load.Sort(append(r.Problems, in.Cluster.Problems...))
	return r, nil
}
