package nodeclaim

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

// Launches and failed writes are tried again after firstRetry, then twice as long, up to
// lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// lifecycle brings a claim from creation to initialization.
type lifecycle struct {
	*fleet.Kit
	opts     Options
	attempts *attempts
	ages     *ages
}

func newLifecycle(kit *fleet.Kit, opts Options) *lifecycle {
	return &lifecycle{Kit: kit, opts: opts, attempts: newAttempts(), ages: newAges(opts.Elapsed)}
}

// step is one pass over a claim.
type step struct {
	claim *karpv1.NodeClaim
	now   time.Time
	cond  karpv1.ConditionWriter
	// result is when to look again.
	result ctrl.Result
	// stored are things to do once the claim is written.
	stored []func()
	// ended is true if the claim has been given up, and first if that was not done before.
	ended, first bool
}

// within asks for another look after d at the latest.
func (s *step) within(d time.Duration) { s.result = fleet.Sooner(s.result, d) }

// Reconcile does for a claim whatever can be done now. The steps do not depend on each
// other's success, and what they found is written even if one of them failed.
func (l *lifecycle) Reconcile(ctx context.Context, req reconcile.Request) (ctrl.Result, error) {
	var claim karpv1.NodeClaim
	if err := l.Client.Get(ctx, req.NamespacedName, &claim); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		claim.Name = req.Name
		l.Forget(&claim)
		l.ages.forget(req.Name)
		return ctrl.Result{}, l.undo(ctx, req.Name, "")
	}
	if !l.ManagesClaim(&claim) {
		return ctrl.Result{}, nil
	}
	if err := l.undo(ctx, claim.Name, claim.UID); err != nil {
		return ctrl.Result{}, err
	}
	if l.Behind(&claim) {
		return ctrl.Result{RequeueAfter: fleet.Again}, nil
	}
	if !claim.DeletionTimestamp.IsZero() {
		l.ages.forget(claim.Name)
		return l.recordLate(ctx, &claim)
	}
	if controllerutil.AddFinalizer(&claim, karpv1.TerminationFinalizer) {
		// Nothing may be launched that no finalizer keeps track of.
		before := claim.DeepCopy()
		controllerutil.RemoveFinalizer(before, karpv1.TerminationFinalizer)
		if err := l.WriteClaim(ctx, before, &claim); err != nil {
			return fleet.Retry(ctrl.Result{}, err)
		}
	}
	before := claim.DeepCopy()
	s := &step{claim: &claim, now: l.Now()}
	s.cond = claim.Conditions().At(s.now)
	fresh := len(claim.Status.Conditions) == 0
	s.cond.Init()
	if !s.cond.IsTrue(karpv1.ConditionRegistered) {
		// Before the cloud is called, which takes as long as it takes.
		l.ages.see(&claim, s.now, fresh, karpv1.ConditionLaunched, karpv1.ConditionRegistered)
	}
	var errs []error
	for _, do := range []func(context.Context, *step) error{l.launch, l.register, l.initialize, l.live} {
		if err := do(ctx, s); err != nil {
			errs = append(errs, err)
		}
		if s.ended {
			return fleet.Retry(ctrl.Result{}, errs...)
		}
	}
	if err := l.WriteClaim(ctx, before, &claim); err != nil {
		return fleet.Retry(s.result, append(errs, err)...)
	}
	for _, do := range s.stored {
		do()
	}
	return fleet.Retry(s.result, errs...)
}

// giveUp deletes the claim of s.
func (l *lifecycle) giveUp(ctx context.Context, s *step, reason string, event observe.Event) error {
	pods, err := l.Moving(ctx, s.claim)
	if err != nil {
		return err
	}
	s.first, err = l.GiveUp(ctx, s.claim, reason, pods, &event)
	s.ended = err == nil
	return err
}

// live gives up a claim whose machine takes too long. A machine that came while nobody
// looked has been seen to before.
func (l *lifecycle) live(ctx context.Context, s *step) error {
	c := s.claim
	if s.cond.IsTrue(karpv1.ConditionRegistered) {
		l.ages.forget(c.Name)
		return nil
	}
	event := observe.Event{About: c, Warning: true}
	if !s.cond.IsTrue(karpv1.ConditionLaunched) {
		left := l.ages.left(c, s.now, karpv1.ConditionLaunched, l.opts.LaunchTimeout)
		if left > 0 {
			s.within(left)
			return nil
		}
		event.Reason, event.Message = observe.LaunchTimeout, "Not launched within "+l.opts.LaunchTimeout.String()+because(s, karpv1.ConditionLaunched)
		return l.timeOut(ctx, s, observe.ReasonLaunchTimeout, event)
	}
	left := l.ages.left(c, s.now, karpv1.ConditionRegistered, l.opts.RegistrationTimeout)
	if left > 0 {
		s.within(left)
		return nil
	}
	event.Reason, event.Message = observe.RegistrationTimeout, "Not registered within "+l.opts.RegistrationTimeout.String()+because(s, karpv1.ConditionRegistered)
	return l.timeOut(ctx, s, observe.ReasonRegistrationTimeout, event)
}

func (l *lifecycle) timeOut(ctx context.Context, s *step, reason string, event observe.Event) error {
	err := l.giveUp(ctx, s, reason, event)
	if s.first {
		l.opts.Outcome(ctx, s.claim, false)
	}
	return err
}

// because is what a condition says of the cause.
func because(s *step, kind string) string {
	c := s.cond.Get(kind)
	switch {
	case c == nil || c.Reason == karpv1.ReasonAwaitingReconciliation:
		return ""
	case c.Message == "":
		return ": " + c.Reason
	}
	return ": " + c.Reason + ": " + c.Message
}

// node is the claim's Node; without one, why not: a reason and message for a condition.
func (l *lifecycle) node(ctx context.Context, c *karpv1.NodeClaim) (n *corev1.Node, reason, message string, err error) {
	nodes, err := fleet.Nodes(ctx, l.Client, c.Status.ProviderID)
	if err != nil {
		return nil, "", "", err
	}
	switch len(nodes) {
	case 0:
		return nil, "NodeNotFound", "No Node has the provider ID of the machine yet", nil
	case 1:
		return &nodes[0], "", "", nil
	}
	return nil, "MultipleNodesFound", "Nodes " + nodes[0].Name + " and " + nodes[1].Name + " have the same provider ID", nil
}
