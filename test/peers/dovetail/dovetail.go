// Package dovetail runs a work through Dovetail's own core.
package dovetail

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/peers/work"
)

// Engine is the name in outcomes.
const Engine = "dovetail"

// Solve plans the pending pods of w with the options' defaults. Outcome.Build is the
// making of the snapshot from Kubernetes objects; the catalogue is made before, as for
// every engine.
func Solve(ctx context.Context, w *work.Work) (*work.Outcome, error) {
	types := make([]catalog.InstanceType, 0, len(w.Types))
	for _, it := range w.Types {
		types = append(types, *it)
	}
	cat, errs := catalog.New(types)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("work %s: dovetail: catalogue: %w", w.Name, err)
	}
	objs := snapshot.Objects{Nodes: w.Nodes, NodeClaims: w.NodeClaims, NodePools: []*karpv1.NodePool{w.Pool}}
	objs.Pods = append(append(objs.Pods, w.Bound...), w.Pods...)

	out := &work.Outcome{Engine: Engine, Existing: map[string][]*corev1.Pod{}}
	start := time.Now()
	snap, problems := snapshot.Build(objs, snapshot.Options{Now: start, Catalog: cat})
	out.Build = time.Since(start)
	for _, p := range problems {
		return nil, fmt.Errorf("work %s: dovetail: snapshot: %s", w.Name, p)
	}
	start = time.Now()
	plan, err := schedule.Solve(ctx, snap, schedule.Options{})
	out.Solve = time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("work %s: dovetail: %w", w.Name, err)
	}
	out.OwnBound = plan.Bound

	byKey := make(map[snapshot.PodKey]*corev1.Pod, len(w.Pods))
	for _, p := range w.Pods {
		byKey[snapshot.PodKey{Namespace: p.Namespace, Name: p.Name}] = p
	}
	index := make(map[string]int, len(plan.NewNodes))
	for i, n := range plan.NewNodes {
		index[n.Name] = i
		out.New = append(out.New, work.Node{InstanceType: n.Planned.InstanceType, Zone: n.Planned.Zone, CapacityType: n.Planned.CapacityType})
	}
	for _, a := range plan.Assignments {
		p := byKey[a.Pod]
		if p == nil {
			return nil, fmt.Errorf("work %s: dovetail: plan places pod %s, which is not pending", w.Name, a.Pod)
		}
		if !a.New {
			out.Existing[a.Node] = append(out.Existing[a.Node], p)
			continue
		}
		i, ok := index[a.Node]
		if !ok {
			return nil, fmt.Errorf("work %s: dovetail: plan places pod %s on node %s, which it does not buy", w.Name, a.Pod, a.Node)
		}
		out.New[i].Pods = append(out.New[i].Pods, p)
	}
	for _, u := range plan.Unscheduled {
		p := byKey[u.Pod]
		if p == nil {
			return nil, fmt.Errorf("work %s: dovetail: plan leaves out pod %s, which is not pending", w.Name, u.Pod)
		}
		if out.Unscheduled = append(out.Unscheduled, p); len(out.Unscheduled) == 1 {
			out.Why = fmt.Sprint(u.Reasons)
		}
	}
	if plan.Cost != w.Cost(out) {
		return nil, fmt.Errorf("work %s: dovetail: plan says it costs %d micro-dollars, its nodes cost %d", w.Name, plan.Cost, w.Cost(out))
	}
	return out, nil
}
