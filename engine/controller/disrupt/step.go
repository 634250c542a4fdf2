package disrupt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/fleet"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/health"
	"github.com/dovetail-sh/dovetail/engine/controller/internal/purchase"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/observe"
)

const (
	// patience is how long a command whose replacements are ready waits for what is in the way
	// of its nodes.
	patience = time.Minute
	// writeWithin is how long a command tries to taint its nodes.
	writeWithin = time.Minute
	// perNode, leastLimit and mostLimit bound the time that replacements have: more nodes under
	// way take a cloud longer.
	perNode               = 80 * time.Millisecond
	leastLimit, mostLimit = 10 * time.Minute, time.Hour
	// nominated is how long the destinations of pods are left alone at first.
	nominated = 20 * time.Second
	// answerWithin bounds the writes of one step of a command.
	answerWithin = 20 * time.Second
	// writers is how many nodes are written at the same time.
	writers = 32
)

// Held is the code of nodes that commands keep from other moves.
const Held candidate.Code = "PartOfCommand"

// RetryLater is the code of nodes whose last command failed.
const RetryLater candidate.Code = "LastCommandFailed"

// Step moves all commands on as far as they can. In shadow mode there are none.
func (c *Controller) Step(ctx context.Context) error {
	if c.opts.Shadow || c.state.Unsynced() != "" {
		return nil
	}
	var errs []error
	errs = append(errs, c.clean(ctx))
	var due, writing []*command
	for _, cmd := range c.commands {
		switch {
		case c.due(ctx, cmd):
			due = append(due, cmd)
		case cmd.phase >= closing:
			writing = append(writing, cmd)
		}
	}
	errs = append(errs, each(writing, func(cmd *command) error { return c.advance(ctx, cmd) }))
	// What is tainted comes first, then what is paid for.
	slices.SortStableFunc(due, func(a, b *command) int { return int(b.phase) - int(a.phase) })
	found, err := c.check(ctx, due)
	if errs = append(errs, err); err == nil {
		errs = append(errs, each(due, func(cmd *command) error { return c.follow(ctx, cmd, found[cmd]) }))
	}
	c.commands = slices.DeleteFunc(c.commands, func(cmd *command) bool { return cmd.phase == over })
	c.gauge()
	return errors.Join(errs...)
}

// due reports whether it is time for a second look at a command.
func (c *Controller) due(ctx context.Context, cmd *command) bool {
	now := c.Now()
	if cmd.phase <= closed && c.dropGone(cmd) {
		// Somebody else has taken all of its nodes; their pods need what was bought.
		cmd.set(draining, now)
	}
	switch cmd.phase {
	case confirming:
		return now.Sub(cmd.since) >= c.opts.Confirm
	case launching:
		return c.await(ctx, cmd)
	case closed:
		return now.Sub(cmd.since) >= c.opts.Settle
	}
	return false
}

// advance writes what a command has to write. Commands do at the same time.
func (c *Controller) advance(ctx context.Context, cmd *command) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	switch cmd.phase {
	case closing:
		err := c.close(ctx, cmd)
		switch {
		case err == nil:
			cmd.set(closed, c.Now())
		case c.Now().Sub(cmd.since) > writeWithin:
			c.giveUp(ctx, cmd, finding{cause: causeWrite, message: err.Error()})
		case lost(err):
			err = nil
		}
		return err
	case deleting:
		return c.remove(ctx, cmd)
	case draining:
		return c.drain(ctx, cmd)
	case undoing:
		return c.undo(ctx, cmd)
	}
	return nil
}

// follow acts on what a second look found.
func (c *Controller) follow(ctx context.Context, cmd *command, f finding) error {
	now := c.Now()
	if f.cause != "" {
		if f.passing && cmd.phase == launching {
			if cmd.ready.IsZero() {
				cmd.ready = now
			}
			if now.Sub(cmd.ready) < patience {
				return nil
			}
		}
		c.giveUp(ctx, cmd, f)
		return nil
	}
	switch cmd.phase {
	case confirming:
		return c.begin(ctx, cmd)
	case launching:
		cmd.set(closing, now)
		return c.advance(ctx, cmd)
	case closed:
		cmd.set(deleting, now)
		return c.advance(ctx, cmd)
	}
	return nil
}

// dropGone drops nodes that somebody else is taking away. It reports whether none is left.
func (c *Controller) dropGone(cmd *command) bool {
	kept := cmd.targets[:0:0]
	for _, t := range cmd.targets {
		if claim := c.state.Claim(t.claim); claim == nil || claim.UID != t.uid || claim.DeletionTimestamp != nil {
			cmd.leaving = append(cmd.leaving, t)
		} else {
			kept = append(kept, t)
		}
	}
	cmd.targets = kept
	return len(kept) == 0
}

// begin buys the replacements of a command. One without goes on at once.
func (c *Controller) begin(ctx context.Context, cmd *command) error {
	now := c.Now()
	c.decided(cmd)
	cmd.begun = now
	if cmd.want == 0 {
		cmd.plan = nil
		cmd.set(closing, now)
		return c.advance(ctx, cmd)
	}
	cmd.set(launching, now)
	c.mu.Lock()
	claims := c.claims(cmd)
	c.mu.Unlock()
	if len(claims) < cmd.want {
		c.giveUp(ctx, cmd, finding{cause: causeUnknown, message: "a NodePool of its replacements is not there any more"})
		return nil
	}
	cmd.plan = nil
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var mu sync.Mutex
	errs := each(claims, func(claim *karpv1.NodeClaim) error {
		if err := purchase.Create(ctx, c.Client, claim); err != nil {
			return err
		}
		c.state.Update(claim)
		mu.Lock()
		defer mu.Unlock()
		cmd.replacements = append(cmd.replacements, replacementOf(claim))
		c.Count(func(m *observe.Metrics) {
			m.NodeClaimsCreated.WithLabelValues(cmd.label(), claim.Labels[karpv1.NodePoolLabelKey], claim.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey]).Inc()
		})
		return nil
	})
	if errs != nil {
		c.giveUp(ctx, cmd, finding{cause: causeWrite, message: errs.Error()})
	}
	return errs
}

// claims are those to create for a command.
func (c *Controller) claims(cmd *command) []*karpv1.NodeClaim {
	note := cmd.note()
	var out []*karpv1.NodeClaim
	add := func(claim *karpv1.NodeClaim) {
		claim.Annotations[v1alpha1.ReplacesAnnotation] = note
		out = append(out, claim)
	}
	if cmd.static {
		for _, t := range cmd.targets {
			np := c.state.Pool(t.pool)
			if np == nil {
				return nil
			}
			claim := np.NewClaim()
			claim.GenerateName, claim.Name = "", purchase.Name(np.Name)
			claim.Annotations[karpv1.NodeClaimMinValuesRelaxedAnnotationKey] = "false"
			add(claim)
		}
		return out
	}
	nodes := cmd.plan.move().Plan.NewNodes
	for i := range nodes {
		n := &nodes[i]
		np := c.state.Pool(n.Pool)
		if np == nil {
			return nil
		}
		set, offers := cmd.plan.round.Allowed(cmd.plan.i, n)
		add(purchase.Claim(np, n, set, offers, c.state.Pod))
	}
	return out
}

// await watches the replacements of a command. It reports whether all are initialized.
func (c *Controller) await(ctx context.Context, cmd *command) (ready bool) {
	if len(cmd.replacements) < cmd.want {
		c.giveUp(ctx, cmd, finding{cause: causeLaunch, message: "not all of its replacements were created"})
		return false
	}
	ready = true
	for i := range cmd.replacements {
		r := &cmd.replacements[i]
		claim := c.state.Claim(r.name)
		if claim == nil || claim.UID != r.uid || claim.DeletionTimestamp != nil {
			if !r.launched {
				c.barred.fail(r.pool, r.offers)
				c.history.failures = append(c.history.failures, c.Now())
			}
			c.giveUp(ctx, cmd, finding{cause: causeLaunch, message: fmt.Sprintf("its replacement %s was given up", r.name)})
			return false
		}
		switch r.launched = claim.Conditions().IsTrue(karpv1.ConditionLaunched); {
		case claim.Conditions().IsTrue(karpv1.ConditionInitialized) && c.state.NodeOf(r.name) != nil:
			continue
		case r.launched:
			c.barred.succeed(r.pool, r.offers)
			c.Events.Publish(observe.Event{About: claim, Reason: observe.DisruptionWaiting, Message: "Waiting on readiness to continue disruption of " + cmd.about(), Every: patience, Key: observe.DisruptionWaiting})
		default:
			c.Events.Publish(observe.Event{About: claim, Reason: observe.DisruptionLaunching, Message: "Launching to replace " + cmd.about(), Every: patience, Key: observe.DisruptionLaunching})
		}
		ready = false
	}
	if !ready && c.Now().Sub(cmd.begun) > c.limit() {
		c.giveUp(ctx, cmd, finding{cause: causeTimeout, message: fmt.Sprintf("its replacements were not ready within %s", c.limit())})
	}
	return ready
}

// limit is how long replacements may take.
func (c *Controller) limit() time.Duration {
	n := 0
	for _, cmd := range c.commands {
		n += len(cmd.targets)
	}
	return min(max(time.Duration(n)*perNode, leastLimit), mostLimit)
}

// close taints the nodes of a command and says in their claims why.
func (c *Controller) close(ctx context.Context, cmd *command) error {
	return each(cmd.targets, func(t target) error {
		var n corev1.Node
		if err := c.Client.Get(ctx, client.ObjectKey{Name: t.node}, &n); err != nil {
			return fmt.Errorf("node %q: %w", t.node, err)
		}
		claim, err := c.claim(ctx, t)
		switch {
		case err != nil || claim == nil:
			return err
		case c.Behind(&n) || c.Behind(claim):
			return errBehind
		}
		taint := karpv1.DisruptedTaint()
		if !tainted(&n) {
			before := n.DeepCopy()
			n.Spec.Taints = append(n.Spec.Taints, taint)
			if err := c.WriteNode(ctx, before, &n); err != nil {
				return err
			}
		}
		before := claim.DeepCopy()
		claim.Conditions().At(c.Now()).SetTrueBecause(karpv1.ConditionDisruptionReason, cmd.condition(), cmd.why())
		return c.WriteClaim(ctx, before, claim)
	})
}

// errBehind is an object that a watch has not brought yet.
var errBehind = errors.New("what was written has not been read back yet")

// lost reports whether a write has to be repeated on a newer object, and nothing is wrong.
func lost(err error) bool {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(many.Unwrap(), func(e error) bool { return !lost(e) })
	}
	return errors.Is(err, errBehind) || apierrors.IsConflict(err)
}

// condition is the reason of condition DisruptionReason.
func (c *command) condition() string {
	if c.expired {
		return "Expired"
	}
	return string(c.reason)
}

// why is what a command is for, in words.
func (c *command) why() string {
	s := "Disrupted: " + c.condition()
	if len(c.targets) == 1 && c.targets[0].fault != nil {
		s += ", " + c.targets[0].fault.Message
	}
	if c.saving > 0 {
		s += fmt.Sprintf(", saves $%.4f/h", c.saving.Dollars())
	}
	if c.want > 0 {
		s += fmt.Sprintf(", %d replaced by %d", len(c.targets), c.want)
	}
	return s
}

// claim is that of a target, or nil if it is gone or going.
func (c *Controller) claim(ctx context.Context, t target) (*karpv1.NodeClaim, error) {
	var claim karpv1.NodeClaim
	err := c.Client.Get(ctx, client.ObjectKey{Name: t.claim}, &claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("nodeclaim %q: %w", t.claim, err)
	case claim.UID != t.uid || claim.DeletionTimestamp != nil:
		return nil, nil
	}
	return &claim, nil
}

func tainted(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.DisruptedTaintKey })
}

// remove deletes the claims of a command; what could not be deleted is tried again.
func (c *Controller) remove(ctx context.Context, cmd *command) error {
	first := !slices.ContainsFunc(cmd.targets, func(t target) bool { return t.gone })
	indexes := make([]int, len(cmd.targets))
	for i := range indexes {
		indexes[i] = i
	}
	err := each(indexes, func(i int) error {
		t := &cmd.targets[i]
		if t.gone {
			return nil
		}
		claim, err := c.claim(ctx, *t)
		if err != nil {
			return err
		}
		t.gone = claim == nil
		if claim == nil {
			return nil
		}
		if t.fault != nil && t.fault.Drain != nil {
			// First, since a drain begins by reading it.
			before := claim.DeepCopy()
			health.Bound(claim, c.Now(), *t.fault.Drain)
			if err := c.WriteClaim(ctx, before, claim); err != nil {
				return err
			}
		}
		pods := c.state.PodsOn(t.node)
		asked, err := c.GiveUpUnder(ctx, claim, cmd.label(), c.consolidationPolicy(cmd, t.pool), fleet.Moving(pods), &observe.Event{About: claim, Reason: observe.DisruptionTerminating, Message: cmd.why()})
		if err != nil {
			return err
		}
		t.gone = true
		c.state.Mark(t.claim)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.failures, t.node)
		if asked {
			if t.fault != nil {
				c.CountBroken(claim, t.fault.Condition)
			}
			c.note(cmd, *t, pods, first)
			first = false
		}
		return nil
	})
	if slices.ContainsFunc(cmd.targets, func(t target) bool { return t.gone }) {
		for _, n := range cmd.destinations {
			c.state.Nominate(n, c.Now().Add(nominated))
		}
	}
	if err != nil {
		return err
	}
	c.Count(func(m *observe.Metrics) { m.DisruptionSaved.Add(max(cmd.saving.Dollars(), 0)) })
	ctrl.LoggerFrom(ctx).Info("disrupted nodes", "command", cmd.id, "reason", cmd.condition(), "nodes", cmd.about(), "replacements", len(cmd.replacements), "saving", fmt.Sprintf("$%.4f/h", cmd.saving.Dollars()))
	cmd.set(draining, c.Now())
	return nil
}

// note remembers a node that goes, and tells of it.
func (c *Controller) note(cmd *command, t target, pods []*corev1.Pod, first bool) {
	m := moved{at: c.Now(), pool: t.pool, namespaces: map[string]int64{}}
	for _, p := range pods {
		if fleet.Active(p) && !fleet.Daemon(p) && !fleet.IsMirror(p) {
			m.namespaces[p.Namespace]++
		}
	}
	if first {
		m.saving = cmd.saving
	}
	c.history.moves = append(c.history.moves, m)
	if n := c.state.Node(t.node); n != nil {
		c.Events.Publish(observe.Event{About: n, Reason: observe.DisruptionTerminating, Message: cmd.why()})
	}
}

// consolidationPolicy is the metric label of that name.
func (c *Controller) consolidationPolicy(cmd *command, pool string) string {
	if cmd.renews() {
		return ""
	}
	np := c.state.Pool(pool)
	if np == nil {
		return ""
	}
	return fleet.Snake(string(np.Spec.Disruption.ConsolidationPolicy))
}

// drain waits until the claims are gone: until then the replacements are for their pods.
func (c *Controller) drain(ctx context.Context, cmd *command) error {
	for _, t := range slices.Concat(cmd.targets, cmd.leaving) {
		if claim := c.state.Claim(t.claim); claim != nil && claim.UID == t.uid {
			return nil
		}
	}
	for _, r := range cmd.replacements {
		if err := c.forget(ctx, r); err != nil {
			return ignoreLost(err)
		}
	}
	cmd.set(over, c.Now())
	return nil
}

// forget takes the note off a replacement.
func (c *Controller) forget(ctx context.Context, r replacement) error {
	var claim karpv1.NodeClaim
	if err := c.Client.Get(ctx, client.ObjectKey{Name: r.name}, &claim); err != nil {
		return client.IgnoreNotFound(err)
	}
	if claim.UID != r.uid || claim.DeletionTimestamp != nil {
		return nil
	}
	return c.unnote(ctx, &claim)
}

func (c *Controller) unnote(ctx context.Context, claim *karpv1.NodeClaim) error {
	if c.Behind(claim) {
		return errBehind
	}
	before := claim.DeepCopy()
	delete(claim.Annotations, v1alpha1.ReplacesAnnotation)
	return c.WriteClaim(ctx, before, claim)
}

// giveUp begins to take a command back.
func (c *Controller) giveUp(ctx context.Context, cmd *command, f finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Now()
	log := ctrl.LoggerFrom(ctx).WithValues("command", cmd.id, "reason", cmd.condition(), "nodes", cmd.about(), "cause", f.cause, "message", f.message)
	c.Count(func(m *observe.Metrics) { m.DisruptionRollbacks.WithLabelValues(cmd.label(), f.cause).Inc() })
	unready := 0
	switch f.cause {
	case causeLaunch, causeTimeout, causeWrite:
		for i := range cmd.want {
			if i >= len(cmd.replacements) {
				unready++
			} else if claim := c.state.Claim(cmd.replacements[i].name); claim == nil || !claim.Conditions().IsTrue(karpv1.ConditionInitialized) {
				unready++
			}
		}
		c.Count(func(m *observe.Metrics) {
			m.DisruptionQueueFailures.WithLabelValues(cmd.decision(), cmd.label(), cmd.kind()).Add(float64(max(unready, 1)))
		})
	default:
		c.Count(func(m *observe.Metrics) { m.DisruptionFailedValidations.WithLabelValues(cmd.kind()).Inc() })
	}
	event := observe.ConsolidationRejected
	if cmd.phase != confirming {
		event = observe.DisruptionRolledBack
		c.later(cmd, f)
	}
	for _, t := range cmd.targets {
		c.tell(t.node, t.claim, observe.Event{Reason: event, Message: strings.ToUpper(f.cause[:1]) + f.cause[1:] + ": " + f.message, Key: f.cause})
	}
	if cmd.phase == confirming {
		log.Info("dropped a command that does not hold any more")
		cmd.set(over, now)
		return
	}
	log.Info("taking a command back")
	cmd.set(undoing, now)
}

// later holds the nodes of a command that failed for a while, longer each time.
func (c *Controller) later(cmd *command, f finding) {
	most := 0
	for _, t := range cmd.targets {
		c.failures[t.node]++
		most = max(most, c.failures[t.node])
	}
	d := backoff(most)
	if len(cmd.replacements) == 0 && f.cause != causeWrite && f.cause != causeLaunch {
		d /= 4 // nothing was spent on it
	}
	r := candidate.Reason{Code: RetryLater, Message: "its last command was taken back: " + f.message, Until: c.Now().Add(d)}
	for _, t := range cmd.targets {
		c.held[t.node] = r
	}
}

// undo leaves nothing of a command: no taint, no condition, and no replacement that nobody
// needs. Nodes that are being deleted already go on, and keep the replacements.
func (c *Controller) undo(ctx context.Context, cmd *command) error {
	err := each(cmd.targets, func(t target) error {
		if t.gone {
			return nil
		}
		return c.open(ctx, t.node, t.claim, t.uid)
	})
	gone := append(slices.DeleteFunc(slices.Clone(cmd.targets), func(t target) bool { return !t.gone }), cmd.leaving...)
	if len(gone) == 0 {
		for _, r := range cmd.replacements {
			err = errors.Join(err, c.discard(ctx, cmd, r))
		}
	}
	if err != nil {
		return ignoreLost(err)
	}
	if len(gone) > 0 {
		cmd.targets, cmd.leaving = gone, nil
		cmd.set(draining, c.Now())
		return nil
	}
	cmd.set(over, c.Now())
	return nil
}

// open takes taint and condition off a node that stays.
func (c *Controller) open(ctx context.Context, node, claimName string, uid types.UID) error {
	var claim karpv1.NodeClaim
	err := c.Client.Get(ctx, client.ObjectKey{Name: claimName}, &claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("nodeclaim %q: %w", claimName, err)
	case claim.UID != uid || claim.DeletionTimestamp != nil:
		return nil
	case c.Behind(&claim):
		return errBehind
	}
	var n corev1.Node
	if err := c.Client.Get(ctx, client.ObjectKey{Name: node}, &n); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("node %q: %w", node, err)
	} else if err == nil && n.DeletionTimestamp == nil && tainted(&n) {
		if c.Behind(&n) {
			return errBehind
		}
		before := n.DeepCopy()
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == karpv1.DisruptedTaintKey })
		if err := c.WriteNode(ctx, before, &n); err != nil {
			return err
		}
	}
	c.state.Unmark(claimName)
	if r := claim.Conditions().Get(karpv1.ConditionDisruptionReason); r != nil {
		before := claim.DeepCopy()
		if r.Reason == string(karpv1.DisruptionReasonUnhealthy) {
			// What it bounds the drain by is no concern of the next disruption.
			delete(claim.Annotations, karpv1.NodeClaimTerminationTimestampAnnotationKey)
		}
		claim.Conditions().At(c.Now()).Clear(karpv1.ConditionDisruptionReason)
		return c.WriteClaim(ctx, before, &claim)
	}
	return nil
}

// discard deletes a replacement that has no pods, and has none coming. Another one stays as
// any node does.
func (c *Controller) discard(ctx context.Context, cmd *command, r replacement) error {
	var claim karpv1.NodeClaim
	if err := c.Client.Get(ctx, client.ObjectKey{Name: r.name}, &claim); err != nil {
		return client.IgnoreNotFound(err)
	}
	if claim.UID != r.uid || claim.DeletionTimestamp != nil {
		return nil
	}
	node := c.nodeOf(r.name)
	if len(c.state.Expected(r.name)) > 0 || c.state.Nominated(node) || fleet.Moving(c.state.PodsOn(node)) > 0 {
		return c.unnote(ctx, &claim)
	}
	_, err := c.GiveUp(ctx, &claim, cmd.label(), 0, &observe.Event{About: &claim, Reason: observe.DisruptionRolledBack, Message: "Nobody needs it: the replacement of " + cmd.about() + " was taken back"})
	if err == nil {
		c.state.Mark(r.name)
	}
	return err
}

// nodeOf is the name of a claim's node, or of the claim itself as long as it has none.
func (c *Controller) nodeOf(claim string) string {
	if n := c.state.NodeOf(claim); n != nil {
		return n.Name
	}
	return claim
}

// clean reads back commands that are not known, and takes away taints and conditions that no
// command has put there: a process that is gone may have.
func (c *Controller) clean(ctx context.Context) error {
	var errs []error
	for _, claim := range c.recover() {
		errs = append(errs, ignoreLost(c.unnote(ctx, claim.DeepCopy())))
	}
	mine := map[string]bool{}
	for _, cmd := range c.commands {
		for _, t := range cmd.targets {
			mine[t.claim] = true
		}
	}
	traces := map[string]*karpv1.NodeClaim{}
	for _, claim := range c.state.Claims() {
		if claim.Conditions().Get(karpv1.ConditionDisruptionReason) != nil {
			traces[claim.Name] = claim
		}
	}
	for _, n := range c.state.Nodes() {
		if tainted(n) && n.DeletionTimestamp == nil {
			if claim := c.state.ClaimOf(n.Name); claim != nil {
				traces[claim.Name] = claim
			}
		}
	}
	for name, claim := range traces {
		reason := claim.Conditions().Get(karpv1.ConditionDisruptionReason)
		// Without rules here, another controller is about to delete what is broken.
		forced := c.rules == nil && reason != nil && reason.Reason == string(karpv1.DisruptionReasonUnhealthy)
		if forced || mine[name] || claim.DeletionTimestamp != nil || c.state.Marked(name) {
			continue
		}
		errs = append(errs, ignoreLost(c.open(ctx, c.nodeOf(name), name, claim.UID)))
	}
	return errors.Join(errs...)
}

func ignoreLost(err error) error {
	if err == nil || lost(err) {
		return nil
	}
	return err
}

// each calls f for all of a list, several at the same time, and joins the errors.
func each[T any](list []T, f func(T) error) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, writers)
	for _, x := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(x); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
