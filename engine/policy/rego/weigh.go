package rego

import (
	"fmt"
	"maps"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// maxWeight bounds how large a value written in a policy is once all names in it are put
// in place.
const maxWeight = 100_000

// Sizes of a policy's source. The compiler takes more than proportional time over large
// ones, over nested ones most of all, and cannot be interrupted. Honest policies stay far
// below.
const (
	maxRules    = 5_000
	maxNodes    = 100_000
	maxDepth    = 200
	maxClosures = 8 // comprehensions and every inside each other
)

// measure refuses a policy whose source is too large or too deeply nested to compile.
func measure(mods map[string]*ast.Module) error {
	rules, nodes := 0, 0
	for _, name := range slices.Sorted(maps.Keys(mods)) {
		mod := mods[name]
		for _, r := range mod.Rules {
			for ; r != nil; r = r.Else {
				rules++
			}
		}
		depth, deepest, open, closures := 0, 0, 0, 0
		closure := func(x any) int {
			switch x.(type) {
			case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension, *ast.Every:
				return 1
			}
			return 0
		}
		ast.NewBeforeAfterVisitor(
			func(x any) bool {
				nodes++
				depth++
				open += closure(x)
				deepest, closures = max(deepest, depth), max(closures, open)
				return deepest > maxDepth || nodes > maxNodes || closures > maxClosures
			},
			func(x any) {
				depth--
				open -= closure(x)
			},
		).Walk(mod)
		var what string
		switch {
		case rules > maxRules:
			what = fmt.Sprintf("more than %d rules", maxRules)
		case nodes > maxNodes:
			what = fmt.Sprintf("more than %d terms", maxNodes)
		case deepest > maxDepth:
			what = fmt.Sprintf("terms nested in each other more than %d deep", maxDepth)
		case closures > maxClosures:
			what = fmt.Sprintf("comprehensions nested in each other more than %d deep", maxClosures)
		default:
			continue
		}
		return &policy.Error{Class: policy.ClassLoad, File: name, Line: mod.Package.Location.Row, Msg: "the policy has " + what}
	}
	return nil
}

// weigh refuses a policy with a value such as x1 := [x0, x0], x2 := [x1, x1] and so on,
// which doubles with each line: the type checker and the evaluator both write it out in
// one step that cannot be interrupted.
func weigh(mods map[string]*ast.Module) error {
	s := scales{rules: map[string][]*ast.Rule{}, done: map[any]float64{}}
	for _, mod := range mods {
		for _, r := range mod.Rules {
			for ; r != nil; r = r.Else {
				name := mod.Package.Path.String() + "." + r.Head.Ref()[0].Value.String()
				s.rules[name] = append(s.rules[name], r)
			}
		}
	}
	for _, list := range s.rules {
		for _, r := range list {
			if w := s.rule(r); w > maxWeight {
				return &policy.Error{
					Class: policy.ClassLoad, Rule: r.Head.Ref().String(), File: r.Location.File, Line: r.Location.Row,
					Msg: fmt.Sprintf("a value has more than %d parts once all names in it are put in place", maxWeight),
				}
			}
		}
	}
	return nil
}

type scales struct {
	rules map[string][]*ast.Rule
	done  map[any]float64
}

type variable struct {
	rule *ast.Rule
	name ast.Var
}

// rule is the weight of the heaviest value in r.
func (s *scales) rule(r *ast.Rule) float64 {
	if w, ok := s.done[r]; ok {
		return w
	}
	s.done[r] = 1 // of a rule that refers to itself, which the compiler refuses
	defs := map[ast.Var][]*ast.Term{}
	ast.WalkExprs(r, func(e *ast.Expr) bool {
		if l, rt, ok := sides(e); ok {
			if v, ok := l.Value.(ast.Var); ok {
				defs[v] = append(defs[v], rt)
			}
			if v, ok := rt.Value.(ast.Var); ok {
				defs[v] = append(defs[v], l)
			}
		}
		return false
	})
	heaviest := 1.0
	for v := range defs {
		heaviest = max(heaviest, s.name(r, v, defs))
	}
	for _, t := range []*ast.Term{r.Head.Key, r.Head.Value} {
		if t != nil {
			heaviest = max(heaviest, s.term(r, t, defs))
		}
	}
	s.done[r] = heaviest
	return heaviest
}

func (s *scales) name(r *ast.Rule, v ast.Var, defs map[ast.Var][]*ast.Term) float64 {
	k := variable{r, v}
	if w, ok := s.done[k]; ok {
		return w
	}
	s.done[k] = 1
	w := 1.0
	for _, t := range defs[v] {
		w = max(w, s.term(r, t, defs))
	}
	if len(defs[v]) == 0 {
		for _, other := range s.rules[r.Module.Package.Path.String()+"."+string(v)] {
			w = max(w, s.rule(other))
		}
	}
	s.done[k] = w
	return w
}

func (s *scales) term(r *ast.Rule, t *ast.Term, defs map[ast.Var][]*ast.Term) float64 {
	w := 1.0
	add := func(x *ast.Term) { w = min(w+s.term(r, x, defs), 1e18) }
	switch v := t.Value.(type) {
	case ast.Var:
		return s.name(r, v, defs)
	case ast.Ref:
		if v[0].Equal(ast.DefaultRootDocument) {
			for n := len(v); n > 1; n-- {
				if list := s.rules[v[:n].String()]; len(list) > 0 {
					for _, other := range list {
						w = max(w, s.rule(other))
					}
					break
				}
			}
			return w
		}
		return s.term(r, v[0], defs)
	case ast.Call:
		return s.call(r, v, defs)
	case *ast.Array:
		v.Foreach(add)
	case ast.Object:
		v.Foreach(func(k, x *ast.Term) { add(k); add(x) })
	case ast.Set:
		v.Foreach(add)
	case *ast.ArrayComprehension:
		add(v.Term)
	case *ast.SetComprehension:
		add(v.Term)
	case *ast.ObjectComprehension:
		add(v.Key)
		add(v.Value)
	}
	return w
}

// call is the weight of what a function of the policy returns: that of its value for light
// arguments, times that of the heaviest argument.
func (s *scales) call(r *ast.Rule, c ast.Call, defs map[ast.Var][]*ast.Term) float64 {
	op, ok := c[0].Value.(ast.Ref)
	if !ok {
		return 1
	}
	name := op.String()
	if !op[0].Equal(ast.DefaultRootDocument) {
		name = r.Module.Package.Path.String() + "." + name
	}
	if len(s.rules[name]) == 0 {
		return 1 // what builtin functions return is bounded when they are called
	}
	w, arg := 1.0, 1.0
	for _, other := range s.rules[name] {
		w = max(w, s.rule(other))
	}
	for _, x := range c[1:] {
		arg = max(arg, s.term(r, x, defs))
	}
	return min(w*arg, 1e18)
}
