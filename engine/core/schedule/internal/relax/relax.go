// Package relax values pods and bounds what they cost from below.
//
// The linear relaxation of "buy the cheapest columns that hold all items" lets both
// columns and items be cut into fractions, but an item may only lie on columns that
// hold it whole. Its dual gives every column k a price per unit of each resource,
// lambda(k), that together cost no more than the column itself,
//
//	sum over r of lambda(k,r) * alloc(k,r) <= price(k),
//
// and every item the value pi = min over the columns k that hold it of lambda(k)·req.
// For every such lambda, sum count*pi is a lower bound on the cost of any whole-number
// solution. [Dual.Ascend] raises that bound by exponentiated gradient steps on how
// each column divides its price among its resources.
package relax

import (
	"math"
	"slices"
)

// Problem is a set of items and the columns that may hold them. Slices are flat:
// item i's requests are Req[i*Dims:(i+1)*Dims].
type Problem struct {
	Dims  int
	Req   []float64
	Count []float64
	Alloc []float64
	Price []float64
	// Fits lists for each item the columns that hold one such item. Items without a
	// column are left out of the bound.
	Fits [][]int32
}

// Items is the number of items, Columns that of columns.
func (p *Problem) Items() int { return len(p.Count) }

// Columns is the number of columns.
func (p *Problem) Columns() int { return len(p.Price) }

// Dual is a feasible dual solution. Use [New].
type Dual struct {
	// Lambda is the price per unit of each resource of each column, Pi the value of
	// one of each item; +Inf for an item without columns.
	Lambda, Pi []float64

	share, best, use []float64
	choice           []int32
	// used are the columns that some item chose last: a step changes these alone.
	used   []int32
	chosen []bool
}

// New returns the dual in which all columns divide their prices alike: by the prices
// of resources that would be right if every item fitted every column.
func New(p *Problem) *Dual {
	D := p.Dims
	n := p.Columns() * D
	d := &Dual{
		Lambda: make([]float64, n), Pi: make([]float64, p.Items()),
		share: make([]float64, n), best: make([]float64, n), use: make([]float64, n), choice: make([]int32, p.Items()), chosen: make([]bool, p.Columns()),
	}
	demand := make([]float64, D)
	for i, c := range p.Count {
		for r, q := range p.Req[i*D : (i+1)*D] {
			demand[r] += c * q
		}
	}
	y := commonPrices(p, demand)
	for k, price := range p.Price {
		share, alloc := d.share[k*D:(k+1)*D], p.Alloc[k*D:(k+1)*D]
		sum := 0.0
		for r := range share {
			if alloc[r] > 0 {
				share[r] = floor // steps multiply: nothing may start at zero
				if price > 0 {
					share[r] = max(floor, y[r]*alloc[r]/price)
				}
				sum += share[r]
			}
		}
		for r := range share {
			if sum > 0 {
				share[r] /= sum
			}
		}
	}
	d.settle(p)
	return d
}

// floor is the least share of its price that a column gives to a resource it has.
const floor = 1e-3

// Clone returns a copy that ascends by itself.
func (d *Dual) Clone() *Dual {
	return &Dual{
		Lambda: slices.Clone(d.Lambda), Pi: slices.Clone(d.Pi), share: slices.Clone(d.share),
		best: slices.Clone(d.best), use: slices.Clone(d.use), choice: slices.Clone(d.choice), used: slices.Clone(d.used), chosen: slices.Clone(d.chosen),
	}
}

// rate is the first step's length; steps shrink with the square root of their number.
const rate = 1.0

// Ascend takes steps from d's present shares, keeps the best and returns its bound, in
// the unit of Price.
func (d *Dual) Ascend(p *Problem, steps int) float64 {
	D := p.Dims
	best := -1.0
	d.price(p)
	for it := 0; ; it++ {
		if bound := d.assign(p); bound > best {
			best = bound
			copy(d.best, d.share)
		}
		if it == steps {
			break
		}
		eta := rate / math.Sqrt(float64(it+1))
		for _, at := range d.used {
			k := int(at)
			use, alloc, share := d.use[k*D:(k+1)*D], p.Alloc[k*D:(k+1)*D], d.share[k*D:(k+1)*D]
			peak := 0.0
			for r, u := range use {
				if u > 0 {
					peak = max(peak, u/alloc[r])
				}
			}
			if peak == 0 {
				continue
			}
			sum := 0.0
			for r := range share {
				if share[r] > 0 {
					share[r] = max(share[r]*math.Exp(eta*(use[r]/(alloc[r]*peak)-1)), 1e-7)
					sum += share[r]
				}
			}
			for r := range share {
				share[r] /= sum
			}
			d.priceOf(p, k)
		}
	}
	copy(d.share, d.best)
	return d.settle(p)
}

// settle makes Lambda and Pi those of the present shares and returns the bound.
func (d *Dual) settle(p *Problem) float64 {
	d.price(p)
	return d.assign(p)
}

func (d *Dual) price(p *Problem) {
	for k := range p.Price {
		d.priceOf(p, k)
	}
}

// priceOf makes the prices of column k those of its shares.
func (d *Dual) priceOf(p *Problem, k int) {
	for i := k * p.Dims; i < (k+1)*p.Dims; i++ {
		if d.Lambda[i] = 0; p.Alloc[i] > 0 {
			d.Lambda[i] = p.Price[k] * d.share[i] / p.Alloc[i]
		}
	}
}

// assign gives every item to the column where it costs least, and returns the bound.
func (d *Dual) assign(p *Problem) float64 {
	D := p.Dims
	for _, k := range d.used {
		clear(d.use[int(k)*D : int(k)*D+D])
		d.chosen[k] = false
	}
	d.used = d.used[:0]
	bound := 0.0
	for i, n := range p.Count {
		req := p.Req[i*D : (i+1)*D]
		least, at := math.Inf(1), int32(-1)
		for _, k := range p.Fits[i] {
			lambda := d.Lambda[int(k)*D : int(k)*D+D]
			v := 0.0
			for r, q := range req {
				v += q * lambda[r]
			}
			if v < least {
				least, at = v, k
			}
		}
		d.Pi[i], d.choice[i] = least, at
		if at < 0 || n == 0 {
			continue
		}
		bound += n * least
		if !d.chosen[at] {
			d.chosen[at] = true
			d.used = append(d.used, at)
		}
		use := d.use[int(at)*D : int(at)*D+D]
		for r, q := range req {
			use[r] += n * q
		}
	}
	return bound
}

// Load is how many of column k the fractional solution behind the last step would buy:
// zero for columns on which no item is cheapest.
func (d *Dual) Load(p *Problem, k int) float64 {
	load := 0.0
	for i := k * p.Dims; i < (k+1)*p.Dims; i++ {
		if p.Alloc[i] > 0 {
			load = max(load, d.use[i]/p.Alloc[i])
		}
	}
	return load
}
