package judge

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/test/oracle/problem"
)

// firstFit places pods on the first existing node that the filters accept, in name
// order and over again until nothing changes.
func firstFit(t *testing.T, j *Judge, p *problem.Problem) schedule.Plan {
	t.Helper()
	s, err := j.scheduler(p.Options.DefaultSpread)
	if err != nil {
		t.Fatal(err)
	}
	r := &replay{s: s, k: newCluster(p), p: p, plan: &schedule.Plan{}}
	if err := r.place(nil); err != nil {
		t.Fatal(err)
	}
	var plan schedule.Plan
	queue := slices.SortedFunc(maps.Keys(r.k.pending), comparePods)
	for progress := true; progress; {
		progress = false
		var rest []snapshot.PodKey
	pods:
		for _, id := range queue {
			c := s.begin(r.pod(id))
			for _, n := range r.k.nodes {
				if s.accepts(c, n.Name) == nil {
					if err := r.bind(r.pod(id), n.Name); err != nil {
						t.Fatal(err)
					}
					plan.Assignments = append(plan.Assignments, schedule.Assignment{Pod: id, Node: n.Name})
					progress = true
					continue pods
				}
			}
			rest = append(rest, id)
		}
		queue = rest
	}
	for _, id := range queue {
		plan.Unscheduled = append(plan.Unscheduled, schedule.Unscheduled{Pod: id, Reasons: []schedule.Reason{{Code: "none"}}})
	}
	return plan
}

// TestJudge_FirstFit judges plans made with the filters themselves: none may be refused,
// and no existing node may be missed.
func TestJudge_FirstFit(t *testing.T) {
	j := New(t.Context())
	placed, left, more := 0, 0, 0
	for seed := range uint64(300) {
		p := problem.Generate(seed)
		plan := firstFit(t, j, p)
		v, err := j.Judge(p, &plan, true)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		placed, left = placed+len(plan.Assignments), left+len(plan.Unscheduled)
		for _, f := range slices.Concat(v.Refused, v.Broken) {
			t.Errorf("seed %d: %s", seed, f)
		}
		for _, f := range v.Missed {
			t.Errorf("seed %d: missed %s", seed, f)
		}
		more += len(v.Unbought)
	}
	t.Logf("placed %d, left %d, of which one more node would take %d", placed, left, more)
	if placed < 300 || more < 300 {
		t.Errorf("placed %d pods, a new node would take %d more: the problems are too hard to show anything", placed, more)
	}
}

func TestJudge_BoundPodsAreNotPending(t *testing.T) {
	k := newCluster(&problem.Problem{Objects: snapshot.Objects{Pods: []*corev1.Pod{{Spec: corev1.PodSpec{NodeName: "gone"}}}}})
	if len(k.pending)+len(k.bound) != 0 {
		t.Errorf("pending %d, bound %d, want none: the node is not there", len(k.pending), len(k.bound))
	}
}
