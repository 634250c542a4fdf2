package disrupt

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// phase is how far a command is; see the package.
type phase int

const (
	confirming phase = iota
	launching
	closing
	closed
	deleting
	draining
	undoing
	over
)

func (p phase) String() string {
	return [...]string{"confirming", "launching", "closing", "closed", "deleting", "draining", "undoing", "over"}[p]
}

// command is a move that is being made.
type command struct {
	id     string
	reason karpv1.DisruptionReason
	// expired is true if the nodes go for their age; reason is then Drifted.
	expired bool
	// static commands replace a node of a static NodePool by one of its template.
	static bool
	// first is true if the node goes before its successor is there.
	first   bool
	targets []target
	// leaving were targets until somebody else deleted them.
	leaving []target
	// want is the number of replacements, which are those created.
	want         int
	replacements []replacement
	// destinations are running nodes that are planned to take pods.
	destinations []string
	// plan is what to buy; nil once that is done, and for static commands.
	plan   *plan
	saving catalog.Price

	phase phase
	// since is when the phase began, begun when replacements were created.
	since, begun time.Time
	// ready is when all replacements were first seen initialized.
	ready time.Time
}

// plan is what a command was decided on: move number i of a round.
type plan struct {
	round *gate.Disruption
	i     int
}

func (p *plan) move() *consolidate.Move { return &p.round.Moves[p.i] }

// target is a node that goes.
type target struct {
	node, claim string
	uid         types.UID
	pool        string
	// fault is what was broken about it when it was last looked at; nil unless that is why it
	// goes.
	fault *candidate.Fault
	// gone is true once the claim is being deleted.
	gone bool
}

// replacement is a claim that was created for a command.
type replacement struct {
	name     string
	uid      types.UID
	pool     string
	offers   []cloud.Offering
	launched bool
}

func (c *command) set(p phase, now time.Time) { c.phase, c.since = p, now }

// renews reports whether the nodes go for what they are, whatever is saved.
func (c *command) renews() bool {
	return c.reason == karpv1.DisruptionReasonDrifted || c.reason == karpv1.DisruptionReasonUnhealthy
}

// nodes are the names of the targets.
func (c *command) nodes() []string {
	out := make([]string, len(c.targets))
	for i := range c.targets {
		out[i] = c.targets[i].node
	}
	return out
}

// holds reports whether a command keeps others from its nodes and their destinations.
func (c *command) holds() bool { return c.phase < draining || c.phase == undoing }

// note is the value of [v1alpha1.ReplacesAnnotation].
type note struct {
	Command string                  `json:"command"`
	Reason  karpv1.DisruptionReason `json:"reason"`
	Expired bool                    `json:"expired,omitempty"`
	Static  bool                    `json:"static,omitempty"`
	// Of is the number of replacements of the command.
	Of     int         `json:"of"`
	Claims []noteClaim `json:"claims"`
	// SavingMicroUSD per hour.
	SavingMicroUSD int64 `json:"savingMicroUSD,omitempty"`
}

type noteClaim struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	Node string    `json:"node"`
}

func (c *command) note() string {
	n := note{Command: c.id, Reason: c.reason, Expired: c.expired, Static: c.static, Of: c.want, SavingMicroUSD: int64(c.saving)}
	for _, t := range c.targets {
		n.Claims = append(n.Claims, noteClaim{t.claim, t.uid, t.node})
	}
	b, err := json.Marshal(n)
	if err != nil {
		panic("disrupt: a note is always JSON: " + err.Error())
	}
	return string(b)
}

// readNote is the note of a claim; ok is false if it has none that can be read.
func readNote(claim *karpv1.NodeClaim) (n note, ok bool) {
	text, ok := claim.Annotations[v1alpha1.ReplacesAnnotation]
	if !ok {
		return n, false
	}
	err := json.Unmarshal([]byte(text), &n)
	return n, err == nil && n.Command != "" && n.Of > 0
}

// recover reads back the commands of claims whose command is not known: those of a process
// that is gone, and of creations whose answer was lost. It returns claims with notes that
// cannot be read.
func (c *Controller) recover() (unclear []*karpv1.NodeClaim) {
	known := map[string]bool{}
	for _, cmd := range c.commands {
		known[cmd.id] = true
	}
	found := map[string]*command{}
	for _, claim := range c.state.Claims() {
		if _, ok := claim.Annotations[v1alpha1.ReplacesAnnotation]; !ok || claim.DeletionTimestamp != nil || c.state.Marked(claim.Name) || c.writing(claim) {
			continue
		}
		n, ok := readNote(claim)
		if !ok {
			unclear = append(unclear, claim)
			continue
		}
		if known[n.Command] {
			continue
		}
		cmd := found[n.Command]
		if cmd == nil {
			cmd = &command{
				id: n.Command, reason: n.Reason, expired: n.Expired, static: n.Static, want: n.Of, saving: catalog.Price(n.SavingMicroUSD),
				begun: claim.CreationTimestamp.Time,
			}
			for _, old := range n.Claims {
				cmd.targets = append(cmd.targets, target{node: old.Node, claim: old.Name, uid: old.UID, pool: c.poolOf(old)})
			}
			found[n.Command] = cmd
		}
		cmd.replacements = append(cmd.replacements, replacementOf(claim))
		if claim.CreationTimestamp.Time.Before(cmd.begun) {
			cmd.begun = claim.CreationTimestamp.Time
		}
	}
	var list []*command
	for _, cmd := range found {
		cmd.set(launching, c.Now())
		list = append(list, cmd)
	}
	slices.SortFunc(list, func(a, b *command) int { return strings.Compare(a.id, b.id) })
	c.commands = append(c.commands, list...)
	return unclear
}

// writing reports whether the state does not have the last that was written to a claim.
func (c *Controller) writing(claim *karpv1.NodeClaim) bool { return c.Behind(claim.DeepCopy()) }

func (c *Controller) poolOf(old noteClaim) string {
	if claim := c.state.Claim(old.Name); claim != nil && claim.UID == old.UID {
		return claim.Labels[karpv1.NodePoolLabelKey]
	}
	return ""
}

func replacementOf(claim *karpv1.NodeClaim) replacement {
	return replacement{
		name: claim.Name, uid: claim.UID, pool: claim.Labels[karpv1.NodePoolLabelKey], offers: cloud.Preferred(claim),
		launched: claim.Conditions().IsTrue(karpv1.ConditionLaunched),
	}
}

// name of the next command: unlike those of other processes.
func (c *Controller) name() string {
	c.started++
	return fmt.Sprintf("%x-%d", c.Now().UnixNano(), c.started)
}

// destinationsOf are the running nodes that take pods in a plan.
func destinationsOf(p *schedule.Plan, here func(node string) bool) []string {
	var out []string
	seen := map[string]bool{}
	for _, a := range p.Assignments {
		if !a.New && !seen[a.Node] && here(a.Node) {
			seen[a.Node] = true
			out = append(out, a.Node)
		}
	}
	return out
}
