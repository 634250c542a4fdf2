// Package bound computes a price below which no set of nodes holds a set of pods.
//
// # The relaxation
//
// Pods with equal needs are a class. Nodes may be bought in fractions, and a class
// may be split over every kind of node that holds one of its pods whole:
//
//	min  Σ price(t)·x(t)
//	s.t. Σ_t y(c,t) = count(c)                      for every class c
//	     Σ_c need(c,r)·y(c,t) ≤ room(t,r)·x(t)      for every kind t and resource r
//	     y(c,t) = 0 where one pod of c does not fit on t
//
// So, unlike a relaxation over the sum of all needs, it knows that a pod of 48 cores
// runs on large nodes only.
//
// # How it is solved
//
// By column generation: a column is a mix of pods that fills one node of kind t, and
// a linear program with one row per resource finds the mix worth most under the
// present values of the classes. Those values, divided by the largest worth of a mix
// per price of its node, are a feasible solution of the dual program, so every
// iteration yields a valid bound, whatever the simplex method did to find it. The
// iteration ends when that bound meets the cost of the fractional purchase.
package bound

import (
	"math"
	"slices"
)

// Node is a kind of node that can be bought any number of times.
type Node struct {
	// Price is per hour, in any currency. A node that costs nothing holds its pods for
	// nothing.
	Price float64
	// Room is how much the node takes of each resource. All nodes and classes list the
	// same resources in the same order.
	Room []int64
}

// Class is a number of pods with the same needs.
type Class struct {
	// Need is one pod's need of each resource. A need of zero fits everywhere.
	Need []int64
	// Count is the number of pods.
	Count int
}

// Result is the answer of [Solve].
type Result struct {
	// Bound is a valid lower bound on the price per hour, in the currency of the nodes.
	Bound float64
	// Fractional is the price of the best fractional purchase found. The exact value of
	// the relaxation lies between Bound and Fractional.
	Fractional float64
	// Unheld is the number of pods that fit on no node; they do not count in Bound.
	Unheld int
	// Rounds is the number of iterations used.
	Rounds int
}

// Gap is the relative distance between the two ends of the interval that holds the
// exact value.
func (r Result) Gap() float64 {
	if r.Fractional <= 0 {
		return 0
	}
	return (r.Fractional - r.Bound) / r.Fractional
}

const (
	// maxRounds ends the iteration if the gap does not close; the bound is valid all
	// the same.
	maxRounds = 2000
	// closed is the relative gap at which the value counts as exact.
	closed = 1e-6
	tiny   = 1e-9
)

// Solve computes the bound. It does not change its arguments and is deterministic.
func Solve(nodes []Node, classes []Class) Result {
	nodes = undominated(nodes)
	var res Result
	var held []Class
	for _, c := range classes {
		cheapest := math.Inf(1)
		for _, n := range nodes {
			if fits(c.Need, n.Room) {
				cheapest = min(cheapest, n.Price)
			}
		}
		switch {
		case c.Count <= 0:
		case math.IsInf(cheapest, 1):
			res.Unheld += c.Count
		case cheapest <= 0 || !slices.ContainsFunc(c.Need, func(n int64) bool { return n > 0 }):
			// Pods on free nodes, and pods that need nothing, cost nothing.
		default:
			held = append(held, c)
		}
	}
	nodes = slices.DeleteFunc(nodes, func(n Node) bool { return n.Price <= 0 })
	if len(held) == 0 {
		return res
	}

	m := newMaster(nodes, held)
	mixes := make([]*mix, len(nodes))
	for i, n := range nodes {
		mixes[i] = newMix(n, held)
	}
	for res.Rounds < maxRounds {
		res.Rounds++
		values := m.optimise()
		res.Fractional = m.cost()
		dearest := 0.0
		for i, n := range nodes {
			z, worth := mixes[i].best(values)
			dearest = max(dearest, worth/n.Price)
			if worth > n.Price*(1+tiny) {
				m.add(z, n.Price)
			}
		}
		total := 0.0
		for c := range held {
			total += values[c] * float64(held[c].Count)
		}
		if dearest > 0 && !math.IsInf(dearest, 1) {
			res.Bound = max(res.Bound, total/dearest)
		}
		if res.Gap() <= closed || !m.grown() {
			break
		}
	}
	res.Bound = min(res.Bound, res.Fractional)
	return res
}

// undominated leaves out nodes that another one replaces at no higher price, and
// orders the rest by price.
func undominated(nodes []Node) []Node {
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(a, b Node) int {
		switch {
		case a.Price != b.Price:
			if a.Price < b.Price {
				return -1
			}
			return 1
		default:
			return -slices.Compare(a.Room, b.Room)
		}
	})
	var keep []Node
	for _, n := range sorted {
		if !slices.ContainsFunc(keep, func(k Node) bool { return covers(k.Room, n.Room) }) {
			keep = append(keep, n)
		}
	}
	return keep
}

func covers(a, b []int64) bool {
	for i := range a {
		if a[i] < b[i] {
			return false
		}
	}
	return true
}

func fits(need, room []int64) bool {
	for i, n := range need {
		if n > 0 && n > room[i] {
			return false
		}
	}
	return true
}

// perNode is how many pods of need fill room, in fractions; MaxFloat64 if they need
// nothing.
func perNode(need, room []int64) float64 {
	k := math.MaxFloat64
	for i, n := range need {
		if n > 0 {
			k = min(k, float64(room[i])/float64(n))
		}
	}
	return k
}
