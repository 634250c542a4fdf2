package disrupt

import (
	"context"
	"fmt"
	"math"
	"slices"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/candidate"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/consolidate"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/fact"
)

// Causes for which commands are taken back, as metric labels.
const (
	causeBudget     = "budget"
	causeScheduling = "scheduling"
	causeChurn      = "churn"
	causePolicy     = "policy"
	causeLaunch     = "launch"
	causeTimeout    = "timeout"
	causeWrite      = "write"
	causeUnknown    = "unknown"
)

// finding is what a second look at a command found.
type finding struct {
	// cause is empty if the command still holds.
	cause, message string
	// passing is true if the cause may go away soon by itself.
	passing bool
}

// check looks at commands again, on a fresh view and one after the other: whether their nodes
// may go, within budgets, and whether the pods that are on them now have a place. A command
// that is confirming may buy what it was decided to buy, and takes over the plan that is found;
// others may put pods on nodes that are ready only.
func (c *Controller) check(ctx context.Context, cmds []*command) (map[*command]finding, error) {
	if len(cmds) == 0 {
		return nil, nil
	}
	v, err := c.look(ctx, cmds...)
	if err != nil {
		return nil, err
	}
	out := make(map[*command]finding, len(cmds))
	nodes := schedule.PlannerNodes{Leave: map[string]bool{}, Closed: map[string]bool{}}
	var plannable []*command
	for _, cmd := range cmds {
		f := c.may(v, cmd)
		out[cmd] = f
		if f.cause != "" || cmd.static {
			continue
		}
		plannable = append(plannable, cmd)
		for _, t := range cmd.targets {
			nodes.Leave[t.node] = true
		}
	}
	for i := range v.candidates {
		if cand := &v.candidates[i]; !cand.Destination && cand.Claim != "" {
			nodes.Closed[cand.Node] = true
		}
	}
	for _, cmd := range c.commands {
		if !cmd.holds() || slices.Contains(cmds, cmd) {
			continue
		}
		for _, t := range cmd.targets {
			nodes.Closed[t.node] = true
		}
		for _, r := range cmd.replacements {
			nodes.Closed[c.nodeOf(r.name)] = true
		}
	}
	spent := map[string]int{}
	for _, cmd := range cmds {
		if cmd.static && out[cmd].cause == "" {
			out[cmd] = within(v, cmd, spent)
		}
	}
	if len(plannable) == 0 {
		return out, nil
	}
	solve, costs, err := c.solve(ctx, v)
	if err != nil {
		return nil, err
	}
	planner, err := schedule.NewPlanner(ctx, v.snap, nodes, solve)
	if err != nil {
		return nil, err
	}
	for _, cmd := range plannable {
		if out[cmd] = within(v, cmd, spent); out[cmd].cause != "" {
			continue
		}
		f, err := c.fits(ctx, v, cmd, planner, costs)
		if err != nil {
			return nil, err
		}
		if out[cmd] = f; f.cause != "" {
			for pool, n := range counted(v, cmd) {
				spent[pool] -= n
			}
		}
	}
	return out, ctx.Err()
}

// solve are the options of plans, with what score policies say.
func (c *Controller) solve(ctx context.Context, v *view) (schedule.Options, *policy.Costs, error) {
	solve := c.opts.Solve
	e := c.opts.Policies
	if e == nil || len(e.Policies(policy.Score)) == 0 {
		return solve, nil, nil
	}
	costs, err := e.Costs(ctx, &c.inputs, v.snap, c.facts(v))
	if err != nil {
		return solve, nil, err
	}
	solve.Costs = costs
	return solve, costs, nil
}

// may says whether nothing has come in the way of the nodes of a command.
func (c *Controller) may(v *view, cmd *command) finding {
	for i := range cmd.targets {
		t := &cmd.targets[i]
		cand := v.byNode[t.node]
		if cand == nil || cand.Claim != t.claim {
			return finding{cause: causeChurn, message: fmt.Sprintf("node %s is not there any more", t.node)}
		}
		blocked := cand.Blocked(cmd.reason)
		if cmd.phase != confirming {
			// What is bought, or tainted, is not given up for a pod that came and stays.
			blocked = slices.DeleteFunc(slices.Clone(blocked), func(r candidate.Reason) bool {
				return r.Code == candidate.NotConsolidatable || r.Code == candidate.NodeEmpty
			})
		}
		if len(blocked) > 0 {
			r := blocked[0]
			passing := r.Code == candidate.Nominated || r.Code == candidate.PodBudget
			return finding{cause: causeChurn, message: fmt.Sprintf("node %s: %s", t.node, r), passing: passing}
		}
		if cmd.reason == karpv1.DisruptionReasonDrifted && cand.Drifted == "" {
			if cmd.expired {
				return finding{cause: causeChurn, message: fmt.Sprintf("node %s has left the time in which expired nodes are replaced", t.node)}
			}
			return finding{cause: causeChurn, message: fmt.Sprintf("node %s is not drifted any more", t.node)}
		}
		if cmd.reason == karpv1.DisruptionReasonUnhealthy {
			if t.fault = cand.Fault; t.fault == nil {
				return finding{cause: causeChurn, message: fmt.Sprintf("node %s is not broken any more", t.node)}
			}
		}
	}
	return finding{}
}

// within says whether budgets let the nodes of a command go; spent are the nodes by NodePool
// of the commands before.
func within(v *view, cmd *command, spent map[string]int) finding {
	pools := counted(v, cmd)
	for pool, n := range pools {
		i := slices.IndexFunc(v.allowances, func(a candidate.Allowance) bool { return a.Pool == pool && a.Reason == cmd.reason })
		if i >= 0 && (v.allowances[i].Unlimited || v.allowances[i].Left >= spent[pool]+n) {
			continue
		}
		f := finding{cause: causeBudget, message: "NodePool " + pool + " has no budget", passing: true}
		if i >= 0 {
			f.message = v.allowances[i].String()
		}
		return f
	}
	for pool, n := range pools {
		spent[pool] += n
	}
	return finding{}
}

// counted is how many nodes of a command budgets count, by NodePool.
func counted(v *view, cmd *command) map[string]int {
	pools := map[string]int{}
	for _, t := range cmd.targets {
		if cand := v.byNode[t.node]; cand == nil || !cand.Uninitialized() {
			pools[t.pool]++
		}
	}
	return pools
}

// fits says whether the pods of a command have a place, and keeps it for the commands after.
func (c *Controller) fits(ctx context.Context, v *view, cmd *command, planner *schedule.Planner, costs *policy.Costs) (finding, error) {
	ceiling := catalog.Price(0)
	buys := cmd.phase == confirming && cmd.plan != nil && cmd.want > 0
	if buys {
		if ceiling = cmd.plan.move().Ceiling; ceiling == 0 {
			ceiling = math.MaxInt64
		}
	}
	t := planner.Try(cmd.nodes(), ceiling, !buys)
	if !t.Complete {
		planner.Undo(t)
		return finding{cause: causeScheduling, message: fmt.Sprintf("pod %s would have no place", t.Left), passing: true}, nil
	}
	if cmd.phase == confirming && cmd.plan != nil {
		m := *cmd.plan.move()
		m.Plan = planner.Plan(t)
		if len(m.Plan.NewNodes) > cmd.want || ceiling > 0 && t.Cost > ceiling {
			planner.Undo(t)
			return finding{cause: causeScheduling, message: fmt.Sprintf("what would replace the nodes costs $%.4f/h now", t.Cost.Dollars())}, nil
		}
		if was, is := fewestTypes(cmd.plan.move()), fewestTypes(&m); is < min(was, c.spotTypes()) {
			planner.Undo(t)
			return finding{cause: causeScheduling, message: fmt.Sprintf("only %d instance types are left to choose from", is)}, nil
		}
		m.NewCost, m.NewBias = t.Cost, t.Bias
		if f, err := c.ask(ctx, v, cmd, &m, costs); err != nil || f.cause != "" {
			planner.Undo(t)
			return f, err
		}
		*cmd.plan.move(), cmd.want, cmd.saving = m, len(m.Plan.NewNodes), m.Saving()
		cmd.destinations = destinationsOf(&m.Plan, func(n string) bool { return v.nodes[n] })
	}
	planner.Apply(t)
	return finding{}, nil
}

// spotTypes is from how many instance types on a spot node has enough.
func (c *Controller) spotTypes() int {
	if n := c.opts.SpotTypes; n > 0 {
		return n
	}
	return consolidate.DefaultSpotTypes
}

// fewestTypes is the smallest number of instance types that a new spot node of a move has to
// choose from.
func fewestTypes(m *consolidate.Move) int {
	least := math.MaxInt
	for i := range m.Plan.NewNodes {
		n := &m.Plan.NewNodes[i]
		if n.Planned.CapacityType != catalog.Spot {
			continue
		}
		types := map[string]bool{}
		most := m.Share(n)
		for _, o := range n.Alternatives() {
			if most == 0 || o.Cost <= most {
				types[o.InstanceType] = true
			}
		}
		least = min(least, len(types))
	}
	return least
}

// ask asks the disrupt policies again about a command that was decided a while ago.
func (c *Controller) ask(ctx context.Context, v *view, cmd *command, m *consolidate.Move, costs *policy.Costs) (finding, error) {
	e := c.opts.Policies
	if e == nil || len(e.Policies(policy.Disrupt)) == 0 {
		return finding{}, nil
	}
	q, err := c.objects(v).Question(&c.inputs, v.snap, fact.Proposal{Reason: string(cmd.reason), Nodes: m.Nodes, Plan: m.Plan, Costs: costs}, c.facts(v))
	if err != nil {
		return finding{}, err
	}
	verdict, err := e.Disrupt(ctx, q)
	if err != nil {
		return finding{}, err
	}
	if verdict.Allowed && len(verdict.Kept()) == 0 {
		return finding{}, nil
	}
	return finding{cause: causePolicy, message: verdict.Text()}, nil
}
