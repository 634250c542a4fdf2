package nodeclaim

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// maxLaunchMessage is how much of a provider's error a condition shows.
const maxLaunchMessage = 1024

// launch asks the cloud for the claim's machine, and notes in the claim what it is.
func (l *lifecycle) launch(ctx context.Context, s *step) error {
	c := s.claim
	if launched := s.cond.Get(karpv1.ConditionLaunched); launched.Status != "Unknown" {
		l.attempts.done(c.Name)
		return nil
	}
	m := l.attempts.machine(c.Name)
	if m == nil {
		if wait := l.attempts.wait(c.Name, s.now); wait > 0 {
			s.within(wait)
			return nil
		}
		var err error
		if m, err = l.Provider.Launch(ctx, c.DeepCopy()); err == nil && m.ProviderID == "" {
			err = errors.New("the provider tells no provider ID of the machine")
		}
		if err != nil {
			return l.refused(ctx, s, err)
		}
		l.attempts.launched(c, m)
		ctrl.LoggerFrom(ctx).Info("launched", "nodeclaim", c.Name, "providerID", m.ProviderID, "instanceType", m.Labels[corev1.LabelInstanceTypeStable],
			"zone", m.Labels[corev1.LabelTopologyZone], "capacityType", m.Labels[karpv1.CapacityTypeLabelKey])
	}
	describe(c, m)
	s.cond.SetTrue(karpv1.ConditionLaunched)
	return nil
}

// refused judges a failed launch.
func (l *lifecycle) refused(ctx context.Context, s *step, err error) error {
	c := s.claim
	text := shorten(err.Error())
	switch {
	case cloud.IsInsufficientCapacity(err):
		l.Events.Publish(l.missed(ctx, c, text)...)
		return l.giveUp(ctx, s, observe.ReasonInsufficientCapacity, observe.Event{About: c, Warning: true, Reason: observe.InsufficientCapacity, Message: "Launch failed: " + text})
	case cloud.IsNodeClassNotReady(err):
		return l.giveUp(ctx, s, observe.ReasonNodeClassNotReady, observe.Event{About: c, Warning: true, Reason: observe.NodeClassNotReady, Message: "Launch failed: " + text})
	}
	reason := observe.LaunchFailed
	var create *cloud.CreateError
	if errors.As(err, &create) {
		text = shorten(create.Message)
		if create.Reason != "" {
			reason = create.Reason
		}
	}
	s.cond.SetUnknown(karpv1.ConditionLaunched, reason, text)
	l.Events.Publish(observe.Event{About: c, Warning: true, Reason: observe.LaunchFailed, Message: reason + ": " + text, Key: reason})
	// The cause is different text each time with some clouds, so that writing it brings the
	// claim back at once: the next try has to be timed here.
	wait := l.attempts.failed(c, s.now)
	s.within(wait)
	ctrl.LoggerFrom(ctx).Info("launch failed, and is repeated", "nodeclaim", c.Name, "in", wait.String(), "error", text)
	return nil
}

// missed are the events for the pods that a claim without capacity was bought for.
func (l *lifecycle) missed(ctx context.Context, c *karpv1.NodeClaim, text string) []observe.Event {
	var out []observe.Event
	for _, key := range l.opts.Expected(c.Name) {
		p := &corev1.Pod{}
		if err := l.Client.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, p); err != nil || p.Spec.NodeName != "" || !fleet.Active(p) {
			continue
		}
		out = append(out, observe.Event{
			About: p, Warning: true, Limited: true, Reason: observe.InsufficientCapacity,
			Message: "NodeClaim " + c.Name + " could not be launched, the pod is planned again: " + text, Key: c.Name,
		})
	}
	return out
}

// describe copies what is known of the machine into its claim. What the claim asks for
// wins over the machine's labels, the machine over the claim's annotations.
func describe(c *karpv1.NodeClaim, m *cloud.Machine) {
	labels := maps.Clone(m.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	rules := karpv1.DefaultLabelRules()
	for _, r := range c.Spec.Requirements {
		if _, ok := labels[r.Key]; !ok && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1 && rules.Refusal(r.Key) == "" {
			labels[r.Key] = r.Values[0]
		}
	}
	maps.Copy(labels, c.Labels)
	c.Labels = labels
	if len(m.Annotations) > 0 {
		annotations := maps.Clone(c.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, m.Annotations)
		c.Annotations = annotations
	}
	c.Status.ProviderID, c.Status.ImageID = m.ProviderID, m.ImageID
	c.Status.Capacity, c.Status.Allocatable = m.Capacity.DeepCopy(), m.Allocatable.DeepCopy()
}

func shorten(text string) string {
	if len(text) <= maxLaunchMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxLaunchMessage-3], "") + "..."
}

// recordLate notes in a claim that is going already the machine that was launched for it
// meanwhile, so that its end is seen to.
func (l *lifecycle) recordLate(ctx context.Context, c *karpv1.NodeClaim) (ctrl.Result, error) {
	m := l.attempts.machine(c.Name)
	if m == nil || c.Status.ProviderID != "" {
		l.attempts.done(c.Name)
		return ctrl.Result{}, nil
	}
	before := c.DeepCopy()
	describe(c, m)
	c.Conditions().At(l.Now()).SetTrue(karpv1.ConditionLaunched)
	if err := l.WriteClaim(ctx, before, c); err != nil {
		return fleet.Retry(ctrl.Result{}, err)
	}
	l.attempts.done(c.Name)
	return ctrl.Result{}, nil
}

// undo ends the machine that was launched for a claim of this name which is gone now; uid
// is that of the present claim of the name, if there is one.
func (l *lifecycle) undo(ctx context.Context, name string, uid types.UID) error {
	c, m := l.attempts.stray(name, uid)
	if m == nil {
		return nil
	}
	c = c.DeepCopy()
	describe(c, m)
	if err := l.Provider.Terminate(ctx, c); err != nil && !cloud.IsNotFound(err) {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("terminated a machine whose NodeClaim went while it was launched", "nodeclaim", name, "providerID", m.ProviderID)
	l.attempts.done(name)
	return nil
}

// attempts are launches that no claim's status tells of yet.
type attempts struct {
	mu     sync.Mutex
	byName map[string]*attempt
}

type attempt struct {
	claim *karpv1.NodeClaim
	// machine is nil while launches fail.
	machine  *cloud.Machine
	failures int
	next     time.Time
}

func newAttempts() *attempts { return &attempts{byName: map[string]*attempt{}} }

// machine is what was launched for a claim, or nil.
func (a *attempts) machine(name string) *cloud.Machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.byName[name]; t != nil {
		return t.machine
	}
	return nil
}

func (a *attempts) launched(c *karpv1.NodeClaim, m *cloud.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.byName[c.Name] = &attempt{claim: c.DeepCopy(), machine: m}
}

// failed notes a failed launch, and returns how long to wait for the next.
func (a *attempts) failed(c *karpv1.NodeClaim, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.byName[c.Name]
	if t == nil {
		t = &attempt{claim: c.DeepCopy()}
		a.byName[c.Name] = t
	}
	wait := min(firstRetry<<min(t.failures, 10), lastRetry)
	t.failures++
	t.next = now.Add(wait)
	return wait
}

// wait is how long no launch may be tried.
func (a *attempts) wait(name string, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.byName[name]; t != nil {
		return min(t.next.Sub(now), lastRetry)
	}
	return 0
}

// stray is what was launched for a claim of the name with another UID. Failed attempts for
// one are dropped.
func (a *attempts) stray(name string, uid types.UID) (*karpv1.NodeClaim, *cloud.Machine) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.byName[name]
	switch {
	case t == nil || t.claim.UID == uid:
		return nil, nil
	case t.machine == nil:
		delete(a.byName, name)
		return nil, nil
	}
	return t.claim, t.machine
}

func (a *attempts) done(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byName, name)
}
