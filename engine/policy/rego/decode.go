package rego

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// decoder reads answers. It stops when they are too large.
type decoder struct {
	left int64
	rule string
}

func (d *decoder) bad(format string, args ...any) *policy.Error {
	return &policy.Error{Class: policy.ClassBadResult, Rule: d.rule, Msg: fmt.Sprintf(format, args...)}
}

func (d *decoder) take(n int) error {
	d.left -= int64(n)
	if d.left < 0 {
		return d.bad("the answer is larger than allowed")
	}
	return nil
}

var (
	keyI           = ast.StringTerm("i")
	keyCode        = ast.StringTerm("code")
	keyMsg         = ast.StringTerm("msg")
	keyPermille    = ast.StringTerm("permille")
	keyAdd         = ast.StringTerm("addMicroUSD")
	keyMicroUSD    = ast.StringTerm("microUSD")
	keyCommitment  = ast.StringTerm("commitment")
	keyUnits       = ast.StringTerm("units")
	keyID          = ast.StringTerm("id")
	keyNodes       = ast.StringTerm("nodes")
	keyClaims      = ast.StringTerm("claims")
	keySeconds     = ast.StringTerm("seconds")
	keyClaim       = ast.StringTerm("claim")
	keyDropTypes   = ast.StringTerm("dropTypes")
	keyMaxMicroUSD = ast.StringTerm("maxMicroUSD")
)

// each calls f for the elements of rule in answer.
func (d *decoder) each(answer ast.Object, rule string, f func(*ast.Term) error) error {
	d.rule = rule
	t := answer.Get(ast.StringTerm(rule))
	if t == nil {
		return nil
	}
	list := t.Value.(*ast.Array)
	if list.Len() == 0 {
		return nil
	}
	var items []*ast.Term
	switch v := list.Elem(0).Value.(type) {
	case ast.Set:
		items = v.Slice()
	case *ast.Array:
		for i := range v.Len() {
			items = append(items, v.Elem(i))
		}
	default:
		return d.bad("%s; a set of objects is required", show(list.Elem(0)))
	}
	for _, x := range items {
		if err := d.take(16); err != nil {
			return err
		}
		if err := f(x); err != nil {
			return err
		}
	}
	return nil
}

// show is a value for an error message.
func show(t *ast.Term) string {
	kind := ast.ValueName(t.Value)
	switch t.Value.(type) {
	case ast.String, ast.Number, ast.Boolean, ast.Null:
		return kind + " " + cutText(t.Value.String(), 80)
	}
	return kind
}

func (d *decoder) object(t *ast.Term) (ast.Object, error) {
	o, ok := t.Value.(ast.Object)
	if !ok {
		return nil, d.bad("element is %s; an object is required", show(t))
	}
	return o, nil
}

// integer reads o[key]; ok is false if there is none.
func (d *decoder) integer(o ast.Object, key *ast.Term) (n int64, ok bool, err error) {
	t := o.Get(key)
	if t == nil {
		return 0, false, nil
	}
	num, isNum := t.Value.(ast.Number)
	if !isNum {
		return 0, false, d.bad("%s is %s; an integer is required", text(key), show(t))
	}
	n, perr := strconv.ParseInt(string(num), 10, 64)
	if perr != nil {
		// 5.0 and 5e2 are integers as well.
		f, ok := num.Float64()
		if badNumber(string(num)) != nil || !ok || f != float64(int64(f)) || f >= 1<<53 || f <= -(1<<53) {
			return 0, false, d.bad("%s is %s; an integer is required", text(key), show(t))
		}
		n = int64(f)
	}
	return n, true, nil
}

func (d *decoder) must(o ast.Object, key *ast.Term) (int64, error) {
	n, ok, err := d.integer(o, key)
	if err == nil && !ok {
		err = d.bad("%s is missing", text(key))
	}
	return n, err
}

func (d *decoder) row(o ast.Object) (int, error) {
	n, err := d.must(o, keyI)
	if err == nil && (n < 0 || n >= policy.MaxRows) {
		err = d.bad("row %d does not exist", n)
	}
	return int(n), err
}

func (d *decoder) str(o ast.Object, key *ast.Term) (string, error) {
	t := o.Get(key)
	if t == nil {
		return "", nil
	}
	s, ok := t.Value.(ast.String)
	if !ok {
		return "", d.bad("%s is %s; a string is required", text(key), show(t))
	}
	return string(s), d.take(len(s))
}

// strs reads a list or set of strings, or one string.
func (d *decoder) strs(o ast.Object, key *ast.Term) ([]string, error) {
	t := o.Get(key)
	if t == nil {
		return nil, nil
	}
	var items []*ast.Term
	switch v := t.Value.(type) {
	case ast.String:
		items = []*ast.Term{t}
	case ast.Set:
		items = v.Slice()
	case *ast.Array:
		for i := range v.Len() {
			items = append(items, v.Elem(i))
		}
	default:
		return nil, d.bad("%s is %s; a list of strings is required", text(key), show(t))
	}
	out := make([]string, 0, len(items))
	for _, x := range items {
		s, ok := x.Value.(ast.String)
		if !ok {
			return nil, d.bad("%s has %s; strings are required", text(key), show(x))
		}
		if err := d.take(len(s)); err != nil {
			return nil, err
		}
		out = append(out, string(s))
	}
	return out, nil
}

func (d *decoder) score(answer ast.Object, a *policy.ScoreAnswer) error {
	err := d.each(answer, "deny", func(t *ast.Term) error {
		o, err := d.object(t)
		if err != nil {
			return err
		}
		var x policy.RowDeny
		if x.Row, err = d.row(o); err != nil {
			return err
		}
		if x.Msg, err = d.str(o, keyMsg); err != nil {
			return err
		}
		x.Code, err = d.str(o, keyCode)
		a.Deny = append(a.Deny, x)
		return err
	})
	if err != nil {
		return err
	}
	err = d.each(answer, "adjust", func(t *ast.Term) error {
		o, err := d.object(t)
		if err != nil {
			return err
		}
		row, err := d.row(o)
		if err != nil {
			return err
		}
		p, factor, err := d.integer(o, keyPermille)
		if err != nil {
			return err
		}
		add, amount, err := d.integer(o, keyAdd)
		if err != nil {
			return err
		}
		if !factor && !amount {
			return d.bad("row %d: neither permille nor addMicroUSD", row)
		}
		if factor {
			a.Adjust = append(a.Adjust, policy.RowAdjust{Row: row, Permille: p, Factor: true})
		}
		if amount {
			a.Adjust = append(a.Adjust, policy.RowAdjust{Row: row, AddMicroUSD: add})
		}
		return nil
	})
	if err != nil {
		return err
	}
	amounts := func(rule string, into *[]policy.RowAmount) error {
		return d.each(answer, rule, func(t *ast.Term) error {
			o, err := d.object(t)
			if err != nil {
				return err
			}
			var x policy.RowAmount
			if x.Row, err = d.row(o); err != nil {
				return err
			}
			x.MicroUSD, err = d.must(o, keyMicroUSD)
			*into = append(*into, x)
			return err
		})
	}
	if err := amounts("cost", &a.Cost); err != nil {
		return err
	}
	if err := amounts("bias", &a.Bias); err != nil {
		return err
	}
	err = d.each(answer, "cover", func(t *ast.Term) error {
		o, err := d.object(t)
		if err != nil {
			return err
		}
		x := policy.RowCover{Units: 1}
		if x.Row, err = d.row(o); err != nil {
			return err
		}
		if x.Commitment, err = d.str(o, keyCommitment); err != nil {
			return err
		}
		if n, ok, err := d.integer(o, keyUnits); err != nil {
			return err
		} else if ok {
			x.Units = n
		}
		x.MicroUSD, err = d.must(o, keyMicroUSD)
		a.Cover = append(a.Cover, x)
		return err
	})
	if err != nil {
		return err
	}
	err = d.each(answer, "commitments", func(t *ast.Term) error {
		o, err := d.object(t)
		if err != nil {
			return err
		}
		var x policy.Units
		if x.ID, err = d.str(o, keyID); err != nil {
			return err
		}
		x.Units, err = d.must(o, keyUnits)
		a.Commitments = append(a.Commitments, x)
		return err
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(a.Deny, func(x, y policy.RowDeny) int { return cmp.Compare(x.Row, y.Row) })
	slices.SortStableFunc(a.Adjust, func(x, y policy.RowAdjust) int { return cmp.Compare(x.Row, y.Row) })
	slices.SortStableFunc(a.Cost, func(x, y policy.RowAmount) int { return cmp.Compare(x.Row, y.Row) })
	slices.SortStableFunc(a.Bias, func(x, y policy.RowAmount) int { return cmp.Compare(x.Row, y.Row) })
	slices.SortStableFunc(a.Cover, func(x, y policy.RowCover) int { return cmp.Compare(x.Row, y.Row) })
	return nil
}

func (d *decoder) reason(t *ast.Term) (policy.Reason, error) {
	var r policy.Reason
	if s, ok := t.Value.(ast.String); ok {
		r.Msg = string(s)
		return r, d.take(len(s))
	}
	o, err := d.object(t)
	if err != nil {
		return r, err
	}
	if r.Msg, err = d.str(o, keyMsg); err != nil {
		return r, err
	}
	if r.Code, err = d.str(o, keyCode); err != nil {
		return r, err
	}
	if r.Nodes, err = d.strs(o, keyNodes); err != nil {
		return r, err
	}
	if r.Claims, err = d.strs(o, keyClaims); err != nil {
		return r, err
	}
	r.Seconds, _, err = d.integer(o, keySeconds)
	return r, err
}

func (d *decoder) gate(answer ast.Object, a *policy.GateAnswer) error {
	for _, p := range []struct {
		rule string
		into *[]policy.Reason
	}{{"deny", &a.Deny}, {"defer", &a.Defer}, {"keep", &a.Keep}, {"warn", &a.Warn}} {
		err := d.each(answer, p.rule, func(t *ast.Term) error {
			r, err := d.reason(t)
			*p.into = append(*p.into, r)
			return err
		})
		if err != nil {
			return err
		}
	}
	return d.each(answer, "restrict", func(t *ast.Term) error {
		o, err := d.object(t)
		if err != nil {
			return err
		}
		var r policy.Restriction
		if r.Claim, err = d.str(o, keyClaim); err != nil {
			return err
		}
		if r.DropTypes, err = d.strs(o, keyDropTypes); err != nil {
			return err
		}
		r.MaxMicroUSD, r.HasMax, err = d.integer(o, keyMaxMicroUSD)
		if err == nil && !r.HasMax && len(r.DropTypes) == 0 {
			return d.bad("claim %q: neither dropTypes nor maxMicroUSD", r.Claim)
		}
		a.Restrict = append(a.Restrict, r)
		return err
	})
}
