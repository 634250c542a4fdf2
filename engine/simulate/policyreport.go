package simulate

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/gate"
)

// PolicyReport says what policies made of a plan. Money is in US dollars per hour.
type PolicyReport struct {
	// Plans are the plan without policies, the one with them, and the one with the
	// shadow policies too, if there are any.
	Plans []ComparedPlan `json:"plans"`
	// Pools are the verdicts on the NodePools, by name; missing without admit policies.
	Pools  []PoolVerdict `json:"pools,omitempty"`
	Launch LaunchVerdict `json:"launch"`
	// Policies say what each policy did, in the order in which they were asked.
	Policies []PolicyEffect `json:"policies"`
	// Unscored are the NodePools whose costs lack the part of a failing policy.
	Unscored []string      `json:"unscored,omitempty"`
	Shadow   *ShadowReport `json:"shadow,omitempty"`
	// NotLoaded are the policies that could not be loaded; they were not asked.
	NotLoaded []string `json:"notLoaded,omitempty"`
}

// ComparedPlan is one of several plans for the same pods.
type ComparedPlan struct {
	Name        string `json:"name"`
	Nodes       int    `json:"nodes"`
	Unscheduled int    `json:"unscheduled"`
	// List is what the nodes cost at list prices, Cost what they cost as the policies see
	// it: for the plan without policies as well, which did not know.
	List float64 `json:"list"`
	Cost float64 `json:"cost"`
	Bias float64 `json:"bias,omitempty"`
	// Excluded is the number of nodes of offerings that a policy excludes.
	Excluded int            `json:"excluded,omitempty"`
	Types    map[string]int `json:"types"`
}

// PoolVerdict is what admit policies say of a NodePool. A denied one buys nothing.
type PoolVerdict struct {
	Pool     string      `json:"pool"`
	Denied   bool        `json:"denied"`
	Reasons  []gate.Said `json:"reasons"`
	Warnings []gate.Said `json:"warnings"`
}

// LaunchVerdict is what launch policies say of the plan.
type LaunchVerdict struct {
	// Rounds is the number of plans made.
	Rounds int `json:"rounds"`
	// Refused are the planned nodes that were planned anew or given up, of all rounds;
	// Objections are those of the plan that is reported, whose pods get no node.
	Refused    []Objection `json:"refused,omitempty"`
	Objections []Objection `json:"objections,omitempty"`
	Warnings   []gate.Said `json:"warnings,omitempty"`
}

// Objection is what stands against a planned node.
type Objection struct {
	Claim string `json:"claim"`
	Offer Offer  `json:"offer"`
	Pods  int    `json:"pods"`
	// Verdict is deny, defer or restrict.
	Verdict string      `json:"verdict"`
	Reasons []gate.Said `json:"reasons"`
	// Seconds after which to ask again.
	Seconds int64 `json:"seconds,omitempty"`
}

func poolVerdicts(in []gate.PoolVerdict) []PoolVerdict {
	var out []PoolVerdict
	for _, v := range in {
		out = append(out, PoolVerdict{Pool: v.Pool, Denied: v.Denied, Reasons: v.Deny, Warnings: v.Warnings})
	}
	return out
}

func launchVerdict(in *gate.Launch) LaunchVerdict {
	convert := func(in []gate.Objection) []Objection {
		var out []Objection
		for _, o := range in {
			out = append(out, Objection{Claim: o.Claim, Offer: newOffer(o.Offer), Pods: len(o.Pods), Verdict: o.Verdict, Reasons: o.Reasons, Seconds: o.Seconds})
		}
		return out
	}
	return LaunchVerdict{Rounds: in.Rounds, Refused: convert(in.Refused), Objections: convert(in.Objections), Warnings: in.Warnings}
}

// PolicyEffect is what one policy did in one decision.
type PolicyEffect struct {
	Policy  string      `json:"policy"`
	Hook    policy.Hook `json:"hook"`
	Subject string      `json:"subject"`
	Verdict string      `json:"verdict"`
	Rows    int         `json:"rows,omitempty"`
	// Changed is the number of offerings with another cost or bias, Changes some of them.
	Changed int      `json:"changed,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	// Denied counts excluded offerings by code.
	Denied     map[string]int `json:"denied,omitempty"`
	Reasons    []string       `json:"reasons"`
	Error      string         `json:"error,omitempty"`
	ErrorClass policy.Class   `json:"errorClass,omitempty"`
}

// same says whether e and o tell the same of a policy; a launch is asked again for each
// plan.
func (e *PolicyEffect) same(o *PolicyEffect) bool {
	return e.Policy == o.Policy && e.Hook == policy.Launch && o.Hook == policy.Launch && e.Verdict == o.Verdict &&
		slices.Equal(e.Reasons, o.Reasons) && e.Error == o.Error
}

// Change is what a policy did to the cost of an offering; Bias is what it added.
type Change struct {
	Offering string  `json:"offering"`
	Before   float64 `json:"before"`
	After    float64 `json:"after"`
	Bias     float64 `json:"bias,omitempty"`
}

// ShadowReport is what shadow policies would have done.
type ShadowReport struct {
	Pools    []PoolVerdict  `json:"pools,omitempty"`
	Launch   LaunchVerdict  `json:"launch"`
	Policies []PolicyEffect `json:"policies"`
	// Nodes is how many nodes more, or less, of each offering would be bought.
	Nodes map[string]int `json:"nodes"`
}

func (p *PolicyReport) write(b *bytes.Buffer, wide bool) {
	fmt.Fprintln(b, "\nPolicies:")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	row := func(name string, of func(*ComparedPlan) string) {
		fmt.Fprint(t, name)
		for i := range p.Plans {
			fmt.Fprint(t, "\t"+of(&p.Plans[i]))
		}
		fmt.Fprintln(t)
	}
	row("", func(c *ComparedPlan) string { return strings.ToUpper(c.Name) })
	row("new nodes", func(c *ComparedPlan) string { return strconv.Itoa(c.Nodes) })
	row("unscheduled pods", func(c *ComparedPlan) string { return strconv.Itoa(c.Unscheduled) })
	row("$/hour at list prices", func(c *ComparedPlan) string { return money(c.List) })
	row("$/hour as policies see it", func(c *ComparedPlan) string { return money(c.Cost) })
	if slices.ContainsFunc(p.Plans, func(c ComparedPlan) bool { return c.Bias != 0 }) {
		row("bias", func(c *ComparedPlan) string { return money(c.Bias) })
	}
	if slices.ContainsFunc(p.Plans, func(c ComparedPlan) bool { return c.Excluded > 0 }) {
		row("nodes that policies exclude", func(c *ComparedPlan) string { return strconv.Itoa(c.Excluded) })
	}
	flush(t)
	for i := range p.Plans {
		fmt.Fprintf(b, "  %s: %s\n", p.Plans[i].Name, counts(p.Plans[i].Types))
	}
	writeEffects(b, p.Policies, wide)
	for _, s := range p.NotLoaded {
		fmt.Fprintf(b, "  not loaded: %s\n", s)
	}
	for _, name := range p.Unscored {
		fmt.Fprintf(b, "  NodePool %s is unscored: costs lack the part of a failing policy\n", name)
	}
	writePools(b, p.Pools)
	p.Launch.write(b)
	if s := p.Shadow; s != nil {
		fmt.Fprintln(b, "\nShadow policies would have:")
		writeEffects(b, s.Policies, wide)
		if len(s.Nodes) == 0 {
			fmt.Fprintln(b, "  bought the same nodes")
		}
		for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
			fmt.Fprintf(b, "  bought %+d %s\n", s.Nodes[name], name)
		}
		writePools(b, s.Pools)
		s.Launch.write(b)
	}
}

// counts is m as "3 a, 1 b", by name.
func counts(m map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
	}
	return dash(strings.Join(parts, ", "))
}

func writeEffects(b *bytes.Buffer, list []PolicyEffect, wide bool) {
	const few = 3
	silent := 0
	for i := range list {
		e := &list[i]
		if e.Verdict == policy.VerdictNone && !wide {
			silent++
			continue
		}
		subject := e.Subject
		if n := strings.Count(subject, ","); n >= few && e.Hook != policy.Score {
			subject = fmt.Sprintf("%d nodes", n+1)
		}
		fmt.Fprintf(b, "  %s %s (%s): ", e.Hook, e.Policy, dash(subject))
		switch {
		case e.Error != "":
			fmt.Fprintf(b, "%s: %s\n", e.Verdict, e.Error)
			continue
		case e.Hook == policy.Score:
			denied := 0
			for _, n := range e.Denied {
				denied += n
			}
			fmt.Fprintf(b, "%s: %d of %d offerings have another cost or bias, %d are excluded", e.Verdict, e.Changed, e.Rows, denied)
			if len(e.Denied) > 0 {
				codes := map[string]int{}
				for code, n := range e.Denied {
					if code == "" {
						code = "without a code"
					}
					codes[code] = n
				}
				fmt.Fprintf(b, " (%s)", counts(codes))
			}
			fmt.Fprintln(b)
		default:
			fmt.Fprintln(b, e.Verdict)
		}
		shown, reasons := e.Changes, e.Reasons
		if !wide {
			shown, reasons = shown[:min(len(shown), few)], reasons[:min(len(reasons), few)]
		}
		for _, c := range shown {
			fmt.Fprintf(b, "    %s: $%s → $%s", c.Offering, money(c.Before), money(c.After))
			if c.Bias != 0 {
				fmt.Fprintf(b, ", bias %s", money(c.Bias))
			}
			fmt.Fprintln(b)
		}
		for _, r := range reasons {
			fmt.Fprintf(b, "    %s\n", r)
		}
	}
	if silent > 0 {
		fmt.Fprintf(b, "  and %d answers without an opinion; --wide lists them\n", silent)
	}
}

func writePools(b *bytes.Buffer, pools []PoolVerdict) {
	for i := range pools {
		p := &pools[i]
		what := "admitted"
		if p.Denied {
			what = "denied, it buys nothing"
		}
		fmt.Fprintf(b, "  NodePool %s: %s\n", p.Pool, what)
		for _, s := range p.Reasons {
			fmt.Fprintf(b, "    denied by %s\n", s)
		}
		for _, s := range p.Warnings {
			fmt.Fprintf(b, "    warning of %s\n", s)
		}
	}
}

func (l *LaunchVerdict) write(b *bytes.Buffer) {
	if l.Rounds > 1 {
		fmt.Fprintf(b, "  planned %d times, as launch policies object to:\n", l.Rounds)
	} else if len(l.Refused) > 0 {
		fmt.Fprintln(b, "  launch policies object to:")
	}
	for i := range l.Refused {
		o := &l.Refused[i]
		fmt.Fprintf(b, "    %s/%s/%s for %s: %s", o.Offer.InstanceType, dash(o.Offer.Zone), dash(o.Offer.CapacityType), plural(o.Pods, "pod"), o.Verdict)
		if o.Seconds > 0 {
			fmt.Fprintf(b, " for %d s", o.Seconds)
		}
		for j, s := range o.Reasons {
			if j == 0 {
				fmt.Fprint(b, ": ")
			} else {
				fmt.Fprint(b, "; ")
			}
			fmt.Fprint(b, s)
		}
		fmt.Fprintln(b)
	}
	for _, s := range l.Warnings {
		fmt.Fprintf(b, "  warning of %s\n", s)
	}
}
