package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/big"
	"math/bits"
	"slices"
)

// lastGoodSeconds is how old an answer may be that stands in for a failing policy.
const lastGoodSeconds = 600

// maxLastGood is how many such answers are kept before old ones are looked for.
const maxLastGood = 512

// Scores is what the score policies made of the offerings of a NodePool. It must not be
// changed.
type Scores struct {
	// Pool is the name of the NodePool.
	Pool string
	// Rows are the offerings scored.
	Rows *Offerings
	// Cost and Bias in micro-USD per hour, by row.
	Cost, Bias []int64
	// Deny is the first reason for which a row is excluded, by row; "" is none.
	Deny []string
	// Cover is the commitment that pays for a row, by row.
	Cover map[int]RowCover
	// Commitments are the units of each commitment.
	Commitments map[string]int64
	// Unscored is true if a policy failed and was ignored, so that costs lack its part.
	Unscored bool
	// Policies are the results one by one.
	Policies []PolicyResult
	// Digest of the costs, biases, denials and covers.
	Digest string

	said []said
}

// chainState is the costs and biases between two policies.
type chainState struct {
	Cost, Bias []int64
	changed    bool
	sum        string
}

// digest is that of the values.
func (st *chainState) digest() string {
	if st.sum == "" {
		d := newDigester()
		for i := range st.Cost {
			d.int('c', st.Cost[i])
			d.int('b', st.Bias[i])
		}
		st.sum = d.sum()
	}
	return st.sum
}

// Score asks the score policies about the offerings of in, unless nothing that they read
// has changed. A failing policy is not an error, see [Scores.Unscored]; the error is
// ctx.Err().
func (e *Engine) Score(ctx context.Context, in *ScoreInput) (*Scores, error) {
	s := e.set.Load()
	d := newDigester()
	d.int('g', s.generation)
	d.str(in.NodePool.Name)
	d.str(digestInput(in, s.question(Score)))
	d.str(in.Candidates.digest(s.rows))
	var applies []*entry
	for _, en := range s.byHook[Score] {
		if en.Applies == nil || en.Applies(&in.NodePool) {
			applies = append(applies, en)
			d.str(en.Name)
		}
	}
	key := d.sum()
	if hit, ok := e.scores.get(key); ok {
		return hit, nil
	}
	out, clean, err := e.score(ctx, in, applies)
	if err != nil {
		return nil, err
	}
	if clean {
		e.putScores(key, out)
	}
	e.record(e.scoreRecord(in, key, out), in, in.round)
	return out, nil
}

func (e *Engine) score(ctx context.Context, in *ScoreInput, policies []*entry) (out *Scores, clean bool, err error) {
	n := in.Candidates.Len()
	out = &Scores{Pool: in.NodePool.Name, Rows: in.Candidates, Deny: make([]string, n), Cover: map[int]RowCover{}, Commitments: map[string]int64{}}
	st := &chainState{Cost: make([]int64, n), Bias: make([]int64, n)}
	for i := range n {
		st.Cost[i] = in.Candidates.Rows[i].Offering.ListPrice
	}
	clean = true
	for _, en := range policies {
		q := *in
		q.Meta = en.meta(in.Meta, Score, n)
		q.chain = st
		res := PolicyResult{Name: en.Name, Revision: en.Revision, Mode: en.Mode}
		a, err := e.ask(ctx, en, &q, &res)
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		var next *chainState
		if err == nil {
			next, err = st.apply(&a)
			if err != nil {
				err = withPolicy(err, en.Name)
			}
		}
		if err != nil {
			clean = false
			res.fail(err)
			if good, ok := e.good(en, &q); ok {
				if next, _ = st.apply(&good); next != nil {
					a, res.LastGood = good, true
				}
			}
			if next == nil {
				if en.Mode == Enforce && en.Failure == Deny {
					for i := range out.Deny {
						out.Deny[i] = cmp.Or(out.Deny[i], fmt.Sprintf("%s: the policy failed: %s", en.Name, err))
					}
					res.Verdict = VerdictDeny
				} else if en.Mode == Enforce {
					out.Unscored = true
				}
				out.Policies = append(out.Policies, res)
				continue
			}
		} else {
			e.keep(en, &q, a)
		}
		res.describe(st, next, &a, in.Candidates)
		out.Policies = append(out.Policies, res)
		if en.Mode != Enforce {
			continue
		}
		st = next
		out.said = append(out.said, said{en.Name, a})
		for _, x := range a.Deny {
			if out.Deny[x.Row] == "" {
				out.Deny[x.Row] = en.Name + ": " + x.Msg
			}
		}
		for _, c := range a.Cover {
			out.Cover[c.Row] = c
		}
		for _, u := range a.Commitments {
			// Two policies may know the same commitment; the smaller number is safe.
			if have, ok := out.Commitments[u.ID]; !ok || u.Units < have {
				out.Commitments[u.ID] = u.Units
			}
		}
	}
	out.Cost, out.Bias = st.Cost, st.Bias
	out.Digest = out.digest()
	return out, clean, nil
}

// ask returns the answer of en to q.
func (e *Engine) ask(ctx context.Context, en *entry, q *ScoreInput, res *PolicyResult) (ScoreAnswer, error) {
	d := newDigester()
	d.str(en.Name)
	d.str(en.Revision)
	d.str(string(en.Mode))
	d.str(digestInput(q, en.tree))
	d.int('n', int64(q.Candidates.Len()))
	if en.rows != nil {
		d.str(q.Candidates.digest(en.rows))
		if en.rows.chain {
			d.str(q.chain.digest())
		}
	}
	key := d.sum()
	res.InputDigest = key
	if a, ok := e.answers.get(key); ok {
		res.Cached = true
		return a, nil
	}
	var a ScoreAnswer
	st, err := e.run(ctx, en, &q.Meta, q.Candidates.Len(), func(ctx context.Context) (Stats, error) {
		var (
			st  Stats
			err error
		)
		a, st, err = en.Evaluator.Score(ctx, q)
		return st, err
	})
	res.took(st)
	if err != nil {
		return ScoreAnswer{}, err
	}
	e.answers.put(key, a, a.weight())
	return a, nil
}

func goodKey(en *entry, q *ScoreInput) string {
	return en.Name + "@" + en.Revision + "\x00" + q.NodePool.Name + "\x00" + q.Candidates.identity()
}

func (e *Engine) keep(en *entry, q *ScoreInput, a ScoreAnswer) {
	k := goodKey(en, q)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastGood[k] = goodAnswer{a, q.Now.Unix}
	if len(e.lastGood) > maxLastGood {
		maps.DeleteFunc(e.lastGood, func(_ string, g goodAnswer) bool { return q.Now.Unix-g.unix > lastGoodSeconds })
	}
}

func (e *Engine) good(en *entry, q *ScoreInput) (ScoreAnswer, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	g, ok := e.lastGood[goodKey(en, q)]
	age := q.Now.Unix - g.unix
	if !ok || age < 0 || age > lastGoodSeconds {
		return ScoreAnswer{}, false
	}
	return g.answer, true
}

func withPolicy(err error, name string) error {
	if pe, ok := err.(*Error); ok {
		c := *pe
		c.Policy = name
		return &c
	}
	return err
}

// apply returns the state after a, and leaves st as it is.
//
// The cost of a row is (cost or its replacement) × all factors, rounded half up once,
// plus all amounts.
func (st *chainState) apply(a *ScoreAnswer) (*chainState, error) {
	next := &chainState{Cost: st.Cost, Bias: st.Bias, changed: st.changed}
	if len(a.Cost)+len(a.Adjust)+len(a.Bias) == 0 {
		next.sum = st.sum
	}
	if len(a.Cost)+len(a.Adjust) > 0 {
		next.Cost = slices.Clone(st.Cost)
		next.changed = true
	}
	if len(a.Bias) > 0 {
		next.Bias = slices.Clone(st.Bias)
		next.changed = true
	}
	for _, c := range a.Cost {
		next.Cost[c.Row] = c.MicroUSD
	}
	for i := 0; i < len(a.Adjust); {
		row := a.Adjust[i].Row
		end := i
		for end < len(a.Adjust) && a.Adjust[end].Row == row {
			end++
		}
		v, err := adjusted(next.Cost[row], a.Adjust[i:end])
		if err != nil {
			err.Msg = fmt.Sprintf("row %d: %s", row, err.Msg)
			return nil, err
		}
		next.Cost[row] = v
		i = end
	}
	for _, b := range a.Bias {
		v := next.Bias[b.Row] + b.MicroUSD
		if v > maxMicroUSD || v < -maxMicroUSD {
			return nil, badResult("bias", "row %d: the sum of biases %d is beyond %d", b.Row, v, maxMicroUSD)
		}
		next.Bias[b.Row] = v
	}
	return next, nil
}

// adjusted applies the factors, then the amounts of list to cost, exactly.
func adjusted(cost int64, list []RowAdjust) (int64, *Error) {
	// Three factors of up to 1e6 times 2^53 fit in 128 bits; more are rare.
	hi, lo := uint64(0), uint64(cost)
	den := uint64(1)
	factors := 0
	for _, a := range list {
		if a.Factor {
			factors++
		}
	}
	v := cost
	switch {
	case factors == 0:
	case factors <= 3:
		for _, a := range list {
			if !a.Factor {
				continue
			}
			h, l := bits.Mul64(lo, uint64(a.Permille))
			hi, lo = hi*uint64(a.Permille)+h, l
			den *= 1000
		}
		var carry uint64
		lo, carry = bits.Add64(lo, den/2, 0)
		hi += carry
		if hi >= den {
			return 0, badResult("adjust", "the cost is above %d micro-USD per hour", maxMicroUSD)
		}
		q, _ := bits.Div64(hi, lo, den)
		if q > uint64(maxMicroUSD) {
			return 0, badResult("adjust", "the cost is above %d micro-USD per hour", maxMicroUSD)
		}
		v = int64(q)
	default:
		num, d := big.NewInt(cost), big.NewInt(1)
		for _, a := range list {
			if a.Factor {
				num.Mul(num, big.NewInt(a.Permille))
				d.Mul(d, big.NewInt(1000))
			}
		}
		num.Add(num, new(big.Int).Rsh(d, 1))
		num.Quo(num, d)
		if !num.IsInt64() || num.Int64() > maxMicroUSD {
			return 0, badResult("adjust", "the cost is above %d micro-USD per hour", maxMicroUSD)
		}
		v = num.Int64()
	}
	for _, a := range list {
		if !a.Factor {
			v += a.AddMicroUSD
			if v > 2*maxMicroUSD || v < -2*maxMicroUSD {
				return 0, badResult("adjust", "the sum of amounts is beyond %d", maxMicroUSD)
			}
		}
	}
	if v < 0 {
		return 0, badResult("adjust", "the cost after all amounts is %d; it must be at least 0", v)
	}
	if v > maxMicroUSD {
		return 0, badResult("adjust", "the cost is above %d micro-USD per hour", maxMicroUSD)
	}
	return v, nil
}

func (s *Scores) digest() string {
	d := newDigester()
	for i := range s.Cost {
		d.int('c', s.Cost[i])
		d.int('b', s.Bias[i])
		d.str(s.Deny[i])
		if c, ok := s.Cover[i]; ok {
			d.str(c.Commitment)
			d.int('u', c.Units)
			d.int('m', c.MicroUSD)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.Commitments)) {
		d.str(id)
		d.int('u', s.Commitments[id])
	}
	return d.sum()
}
