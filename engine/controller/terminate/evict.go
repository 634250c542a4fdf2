package terminate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 10 * time.Second
	// heed is how long a pod whose eviction was accepted is not evicted again although
	// the cache shows it as running still.
	heed = 30 * time.Second
	// idle is the longest time between two looks at the queue.
	idle = time.Minute
)

// queue evicts pods: each until it goes, with a back-off of its own, and many at the same
// time.
type queue struct {
	*fleet.Kit
	slots chan struct{}
	wake  chan struct{}

	mu      sync.Mutex
	entries map[types.UID]*entry
}

// entry is a pod that is to go.
type entry struct {
	pod  client.ObjectKey
	uid  types.UID
	node *corev1.Node
	// part is how much of its node the pod takes: large ones go first.
	part float64
	// reason is why; end is when the pod must be gone, zero is never.
	reason   string
	end      time.Time
	failures int
	next     time.Time
	busy     bool
	// heeded is true once the pod has been told to go: the entry only keeps it from being
	// told again.
	heeded bool
}

func newQueue(kit *fleet.Kit, width int) *queue {
	return &queue{Kit: kit, slots: make(chan struct{}, width), wake: make(chan struct{}, 1), entries: map[types.UID]*entry{}}
}

// add queues the pods of a drain that may go now: those of the first group that has any,
// and those of all groups for whom the end is near.
func (q *queue) add(x *exit, groups [4][]*corev1.Pod) {
	reason := forceful
	if x.claim != nil {
		if c := x.claim.Conditions().Get(karpv1.ConditionDisruptionReason); c != nil && c.Status == metav1.ConditionTrue && c.Reason != "" {
			reason = c.Reason
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	first := true
	for _, g := range groups {
		for _, p := range g {
			if forced(p, x.end, x.now) || first && fleet.Active(p) {
				q.put(x, p, reason)
			}
		}
		first = first && len(g) == 0
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) put(x *exit, p *corev1.Pod, reason string) {
	e := q.entries[p.UID]
	if e == nil {
		e = &entry{pod: client.ObjectKeyFromObject(p), uid: p.UID, next: x.now, part: candidate.Part(p, x.node)}
		q.entries[p.UID] = e
	}
	e.node, e.reason = x.node, reason
	if !x.end.IsZero() && (e.end.IsZero() || x.end.Before(e.end)) {
		e.end = x.end // it only ever comes nearer
	}
	if forced(p, e.end, x.now) && x.now.Before(e.next) {
		if e.heeded && !fleet.Terminating(p) {
			return // the cache does not show yet that the pod was told
		}
		e.heeded, e.next = false, x.now
	}
}

// forced reports whether a pod has to be deleted now to be gone at the end, and has not
// been told so yet.
func forced(p *corev1.Pod, end, now time.Time) bool {
	if end.IsZero() || !now.After(end.Add(-fleet.GracePeriod(p))) {
		return false
	}
	return !fleet.Terminating(p) || p.DeletionTimestamp.After(latest(end, now))
}

// latest is when a pod that is deleted by force is to be gone: at the end, but it has a
// second.
func latest(end, now time.Time) time.Time {
	if soon := now.Add(time.Second); soon.After(end) {
		return soon
	}
	return end
}

// drop forgets the pods of a Node that is gone.
func (q *queue) drop(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for uid, e := range q.entries {
		if e.node.Name == node {
			delete(q.entries, uid)
		}
	}
}

// NeedLeaderElection reports true.
func (q *queue) NeedLeaderElection() bool { return true }

// Start evicts until ctx ends.
func (q *queue) Start(ctx context.Context) error {
	ctx = ctrl.LoggerInto(ctx, ctrl.LoggerFrom(ctx).WithName("eviction-queue"))
	timer := time.NewTimer(idle)
	defer timer.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		due, wait := q.due()
		for _, e := range due {
			select {
			case q.slots <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			wg.Go(func() {
				defer func() { <-q.slots }()
				q.work(ctx, e)
			})
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-q.wake:
		}
	}
}

// step works on all that is due, one after the other.
func (q *queue) step(ctx context.Context) {
	due, _ := q.due()
	for _, e := range due {
		q.work(ctx, e)
	}
}

// due takes the entries that are due, and says when the next one is.
func (q *queue) due() (list []*entry, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.Now()
	wait = idle
	for uid, e := range q.entries {
		left := e.next.Sub(now)
		switch {
		case e.busy:
		case left > 0:
			wait = min(wait, left)
		case e.heeded:
			delete(q.entries, uid)
		default:
			e.busy = true
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(-cmp.Compare(a.part, b.part), strings.Compare(a.pod.String(), b.pod.String()))
	})
	return list, wait
}

// verdict is what became of one try.
type verdict int

const (
	again  verdict = iota // and a failure
	blocks                // not now, through no fault
	over                  // the pod is not ours to evict any more
	told                  // the pod was told to go
)

// work tries to make a pod go.
func (q *queue) work(ctx context.Context, e *entry) {
	q.mu.Lock()
	end, reason, node := e.end, e.reason, e.node
	q.mu.Unlock()
	v, until := q.try(ctx, e, node, reason, end)

	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.Now()
	e.busy = false
	switch v {
	case over:
		delete(q.entries, e.uid)
		return
	case told:
		e.heeded, e.next, e.failures = true, now.Add(heed), 0
	case again, blocks:
		e.next = now.Add(min(firstBackoff<<min(e.failures, 20), lastBackoff))
		e.failures++
		if until.After(now) && until.Before(e.next) {
			e.next = until
		}
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// try makes one attempt. until is a time at which the next one may succeed, or zero.
func (q *queue) try(ctx context.Context, e *entry, node *corev1.Node, reason string, end time.Time) (v verdict, until time.Time) {
	p := &corev1.Pod{}
	if err := q.Client.Get(ctx, e.pod, p); err != nil {
		if apierrors.IsNotFound(err) {
			return over, until
		}
		return again, until
	}
	now := q.Now()
	if !end.IsZero() {
		until = end.Add(time.Millisecond - fleet.GracePeriod(p))
	}
	switch {
	case p.UID != e.uid, fleet.Terminal(p):
		return over, until
	case forced(p, end, now):
		return q.remove(ctx, p, reason, end, now), until
	case fleet.Terminating(p):
		return over, until
	}
	guard := fleet.ProtectionOf(p, now)
	if guard.Problem != "" {
		q.Events.Publish(observe.Event{About: p, Warning: true, Reason: observe.InvalidDoNotDisrupt, Message: guard.Problem})
	}
	if guard.On {
		if !guard.Until.IsZero() {
			q.Events.Publish(observe.Event{About: p, Reason: observe.DoNotDisruptUntil, Message: "Not evicted before " + guard.Until.UTC().Format(time.RFC3339)})
			if until.IsZero() || guard.Until.Before(until) {
				until = guard.Until
			}
		}
		return blocks, until
	}
	if !guard.Until.IsZero() {
		q.Events.Publish(observe.Event{About: p, Reason: observe.DoNotDisruptPeriodElapsed, Message: "Protected until " + guard.Until.UTC().Format(time.RFC3339) + ", and may be evicted now"})
	}
	return q.evict(ctx, p, node, reason), until
}

// evict asks for an eviction that PodDisruptionBudgets may forbid.
func (q *queue) evict(ctx context.Context, p *corev1.Pod, node *corev1.Node, reason string) verdict {
	err := q.Client.SubResource("eviction").Create(ctx, p.DeepCopy(), &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}},
	})
	q.Count(func(m *observe.Metrics) { m.EvictionRequests.WithLabelValues(code(err)).Inc() })
	switch {
	case err == nil:
		q.Events.Publish(observe.Event{About: p, Reason: observe.Evicted, Message: "Evicted pod: " + reason})
		q.Count(func(m *observe.Metrics) { m.PodsDrained.WithLabelValues(reason).Inc() })
		return told
	case fleet.Lost(err):
		return over
	case apierrors.IsTooManyRequests(err), strings.Contains(err.Error(), "more than one PodDisruptionBudget"):
		q.Events.Publish(observe.Event{
			About: node, Warning: true, Reason: observe.FailedDraining, Key: p.Namespace + "/" + p.Name,
			Message: fmt.Sprintf("Evicting pod %s/%s is forbidden: %s", p.Namespace, p.Name, err),
		})
		return again
	}
	ctrl.LoggerFrom(ctx).V(1).Info("an eviction failed, and is repeated", "namespace", p.Namespace, "pod", p.Name, "error", err.Error())
	return again
}

// remove deletes a pod whatever protects it, with as much time as there is left.
func (q *queue) remove(ctx context.Context, p *corev1.Pod, reason string, end, now time.Time) verdict {
	grace := max(1, int64(end.Sub(now)/time.Second))
	err := q.Client.Delete(ctx, p, client.GracePeriodSeconds(grace), client.Preconditions{UID: &p.UID})
	switch {
	case err == nil:
		q.Events.Publish(observe.Event{About: p, Reason: observe.Disrupted, Message: "Deleted pod, since the drain of its node ends at " + end.UTC().Format(time.RFC3339) + ": " + reason})
		q.Count(func(m *observe.Metrics) { m.PodsDrained.WithLabelValues(reason).Inc() })
		return told
	case fleet.Lost(err):
		return over
	}
	ctrl.LoggerFrom(ctx).V(1).Info("deleting a pod failed, and is repeated", "namespace", p.Namespace, "pod", p.Name, "error", err.Error())
	return again
}

// code is the HTTP status of an answer, as a metric label.
func code(err error) string {
	if err == nil {
		return strconv.Itoa(http.StatusOK)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return strconv.Itoa(int(cmp.Or(status.Status().Code, http.StatusInternalServerError)))
	}
	return "unknown"
}
