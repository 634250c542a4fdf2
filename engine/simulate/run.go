package simulate

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// Options tune [Run]. The zero value has no catalogue, so it can use existing nodes
// only.
type Options struct {
	// Now is the snapshot's clock.
	Now time.Time
	// Catalog is what NodePools may buy.
	Catalog *catalog.Catalog
	// DefaultSpread are kube-scheduler's default spread constraints.
	DefaultSpread []corev1.TopologySpreadConstraint
	// Solve tunes the plan.
	Solve schedule.Options
	// Problems are those of the catalogue; they become part of the report.
	Problems []load.Problem
	// Alternatives asks for those of every new node in the report.
	Alternatives bool
	// Policies are asked about NodePools, costs and the plan. The zero value asks none.
	Policies Policies
	// Progress is told what begins, if it is not nil.
	Progress func(stage string)
}

// Outcome is a simulation's result.
type Outcome struct {
	Snapshot *snapshot.Snapshot
	Plan     schedule.Plan
	Report   Report
	// Costs are what policies made of the prices; nil without policies.
	Costs *policy.Costs
}

// Run plans the input once. Without a NodePool in it, [DefaultNodePool] is used and a
// note says so. With policies the plan is made without them as well, to
// compare. in is not changed. The error is that of [schedule.Solve].
func Run(ctx context.Context, in *load.Result, opts Options) (*Outcome, error) {
	progress := opts.Progress
	if progress == nil {
		progress = func(string) {}
	}
	objs, problems := in.Objects, slices.Concat(in.Problems, opts.Problems)
	progress("reading the cluster")
	snap, left := build(&objs, opts)
	if len(in.Objects.NodePools) == 0 {
		problems = append(problems, load.Problem{Severity: load.Note, Kind: "NodePool", Name: defaultPoolName,
			Message: "the input has no NodePool; this one is assumed: " + DescribePool(objs.NodePools[0])})
	}
	problems = append(problems, waiting(objs.Pods)...)
	for _, p := range slices.Concat(left, emptyPools(snap)) {
		problems = append(problems, in.Locate(p))
	}
	progress(fmt.Sprintf("planning %s on %s and %s", plural(len(snap.Pending), "pod"), plural(len(snap.Nodes), "existing node"), plural(len(snap.Pools), "NodePool")))
	labels := Labels{Workload: in.Workload, Problems: problems, Alternatives: opts.Alternatives}
	if opts.Policies.none() {
		plan, err := schedule.Solve(ctx, snap, opts.Solve)
		if err != nil {
			return nil, fmt.Errorf("plan: %w", err)
		}
		return &Outcome{Snapshot: snap, Plan: plan, Report: NewReport(snap, plan, labels)}, nil
	}
	with, policies, err := underPolicies(ctx, snap, objs, opts.Policies, opts.Solve, progress)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	out := &Outcome{Snapshot: with.Snapshot, Plan: with.Plan, Report: NewReport(with.Snapshot, with.Plan, labels), Costs: with.Costs}
	out.Report.Policies = policies
	return out, nil
}

// build adds the default NodePool to objs if there is none, and reads them.
func build(objs *snapshot.Objects, opts Options) (*snapshot.Snapshot, []snapshot.Problem) {
	if len(objs.NodePools) == 0 {
		objs.NodePools = []*karpv1.NodePool{DefaultNodePool(opts.Catalog)}
	}
	return snapshot.Build(*objs, snapshot.Options{
		Now: opts.Now, Catalog: opts.Catalog, DefaultSpread: opts.DefaultSpread, AssumeReady: true,
	})
}

// Snapshot is the snapshot that [Run] would plan, with the objects it is made of.
func Snapshot(in *load.Result, opts Options) (*snapshot.Snapshot, snapshot.Objects) {
	objs := in.Objects
	snap, _ := build(&objs, opts)
	return snap, objs
}

// waiting notes the pods that no scheduler looks at yet, which are not planned.
func waiting(pods []*corev1.Pod) []load.Problem {
	count := map[string]int{}
	first := map[string]*corev1.Pod{}
	for _, p := range pods {
		why := ""
		switch {
		case p.Spec.NodeName != "" || p.DeletionTimestamp != nil:
		case len(p.Spec.SchedulingGates) > 0:
			why = "has scheduling gates: it is not planned for until they are gone"
		case p.Status.NominatedNodeName != "":
			why = "waits for room that preemption makes: it is not planned for"
		}
		if why == "" {
			continue
		}
		if f := first[why]; f == nil || p.Namespace+"/"+p.Name < f.Namespace+"/"+f.Name {
			first[why] = p
		}
		count[why]++
	}
	var out []load.Problem
	for why, p := range first {
		out = append(out, load.Problem{Severity: load.Note, Kind: "Pod", Namespace: p.Namespace, Name: p.Name, Message: why, Count: count[why]})
	}
	return out
}

const defaultPoolName = "default"

// DefaultNodePool is the NodePool used when the input has none: on-demand, linux and
// amd64; and where cat knows categories and generations, categories c, m and r of a
// generation above 2, as in Karpenter's own documentation.
func DefaultNodePool(cat *catalog.Catalog) *karpv1.NodePool {
	const category, generation = "karpenter.k8s.aws/instance-category", "karpenter.k8s.aws/instance-generation"
	reqs := []karpv1.Requirement{
		{Key: corev1.LabelOSStable, Operator: corev1.NodeSelectorOpIn, Values: []string{string(corev1.Linux)}},
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"amd64"}},
		{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
	}
	if cat != nil && slices.ContainsFunc(cat.Types(), func(t catalog.InstanceType) bool { _, ok := t.Requirements[category]; return ok }) {
		reqs = append(reqs,
			karpv1.Requirement{Key: category, Operator: corev1.NodeSelectorOpIn, Values: []string{"c", "m", "r"}},
			karpv1.Requirement{Key: generation, Operator: corev1.NodeSelectorOpGt, Values: []string{"2"}})
	}
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: defaultPoolName}}
	np.Spec.Template.Spec.Requirements = reqs
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "dovetail.sh", Kind: "SimNodeClass", Name: "default"}
	np.SetDefaults()
	return np
}

// DescribePool names the requirements of a NodePool.
func DescribePool(np *karpv1.NodePool) string {
	s := ""
	for i, r := range np.Spec.Template.Spec.Requirements {
		if i > 0 {
			s += "; "
		}
		s += fmt.Sprintf("%s %s %v", r.Key, r.Operator, r.Values)
	}
	return s
}
