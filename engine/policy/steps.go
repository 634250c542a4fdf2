package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
)

// Kinds of a [Step].
const (
	// StepList is the list price after NodeOverlays, the first step.
	StepList = "list"
	// StepReplace puts MicroUSD in place of the cost.
	StepReplace = "replace"
	// StepFactor multiplies the cost by Permille thousandths.
	StepFactor = "factor"
	// StepAdd adds MicroUSD, which may be negative, to the cost.
	StepAdd = "add"
	// StepBias adds MicroUSD to the bias and leaves the cost.
	StepBias = "bias"
	// StepCover says that a commitment pays: the node costs MicroUSD while it has units.
	StepCover = "cover"
	// StepDeny excludes the offering; Msg says why.
	StepDeny = "deny"
)

// Step is one part of how the cost of an offering came about.
type Step struct {
	Kind string `json:"kind"`
	// Policy that did it; empty for the list price.
	Policy string `json:"policy,omitempty"`
	// Permille is the factor of a StepFactor.
	Permille int64 `json:"permille,omitempty"`
	// MicroUSD is the amount, per hour.
	MicroUSD int64 `json:"microUSD,omitempty"`
	// Msg is the reason of a StepDeny, and the commitment of a StepCover.
	Msg string `json:"msg,omitempty"`
	// Cost is the cost after the step in micro-USD per hour. Factors of one policy are
	// rounded together, so that between two of them it is rounded for show.
	Cost int64 `json:"cost"`
}

// String is the step in words.
func (s Step) String() string {
	var what string
	switch s.Kind {
	case StepList:
		return "list price"
	case StepReplace:
		what = "set to $" + usd(s.MicroUSD)
	case StepFactor:
		what = fmt.Sprintf("x %d.%03d", s.Permille/1000, s.Permille%1000)
	case StepAdd:
		what = "+ $" + usd(s.MicroUSD)
		if s.MicroUSD < 0 {
			what = "- $" + usd(-s.MicroUSD)
		}
	case StepBias:
		what = fmt.Sprintf("bias %s", usd(s.MicroUSD))
	case StepCover:
		what = fmt.Sprintf("$%s while %s has units", usd(s.MicroUSD), s.Msg)
	case StepDeny:
		return fmt.Sprintf("excluded by %s: %s", s.Policy, s.Msg)
	}
	return what + " by " + s.Policy
}

// usd is an amount in dollars with as many places as it needs, two at least.
func usd(micro int64) string {
	s := strconv.FormatFloat(catalog.Price(micro).Dollars(), 'f', 6, 64)
	for range 4 {
		s = strings.TrimSuffix(s, "0")
	}
	return s
}

// said is the answer of an enforced policy in a chain.
type said struct {
	policy string
	answer ScoreAnswer
}

// Steps tell how the cost of a row came about, in the order of the policies; none for a row
// that does not exist.
func (s *Scores) Steps(row int) []Step {
	if s == nil || row < 0 || row >= s.Rows.Len() {
		return nil
	}
	cost := s.Rows.Rows[row].Offering.ListPrice
	out := []Step{{Kind: StepList, MicroUSD: cost, Cost: cost}}
	for i := range s.said {
		a := &s.said[i].answer
		add := func(st Step) {
			st.Policy, st.Cost = s.said[i].policy, cost
			out = append(out, st)
		}
		for _, c := range a.Cost {
			if c.Row == row {
				cost = c.MicroUSD
				add(Step{Kind: StepReplace, MicroUSD: c.MicroUSD})
			}
		}
		var mine []RowAdjust
		for _, x := range a.Adjust {
			if x.Row == row {
				mine = append(mine, x)
			}
		}
		slices.SortStableFunc(mine, func(a, b RowAdjust) int { // factors come first
			switch {
			case a.Factor == b.Factor:
				return 0
			case a.Factor:
				return -1
			}
			return 1
		})
		from := cost
		for j, x := range mine {
			if v, err := adjusted(from, mine[:j+1]); err == nil {
				cost = v
			} else if !x.Factor {
				cost += x.AddMicroUSD // below zero only until the last amount is added
			}
			if x.Factor {
				add(Step{Kind: StepFactor, Permille: x.Permille})
			} else {
				add(Step{Kind: StepAdd, MicroUSD: x.AddMicroUSD})
			}
		}
		for _, b := range a.Bias {
			if b.Row == row {
				add(Step{Kind: StepBias, MicroUSD: b.MicroUSD})
			}
		}
		for _, c := range a.Cover {
			if c.Row == row {
				add(Step{Kind: StepCover, MicroUSD: c.MicroUSD, Msg: c.Commitment})
			}
		}
		for _, d := range a.Deny {
			if d.Row == row {
				add(Step{Kind: StepDeny, Msg: d.Msg})
			}
		}
	}
	return out
}

// Steps tell how the cost of an offering in a NodePool came about; none if it was not scored.
func (c *Costs) Steps(pool string, o schedule.Offer) []Step {
	s := c.Scores(pool)
	if s == nil {
		return nil
	}
	for _, i := range s.Rows.index[o.InstanceType] {
		if i < 0 {
			continue
		}
		if r := &s.Rows.Rows[i]; r.Offering.Zone == o.Zone && r.Offering.CapacityType == o.CapacityType && r.reservation() == o.ReservationID {
			return s.Steps(int(i))
		}
	}
	return nil
}
