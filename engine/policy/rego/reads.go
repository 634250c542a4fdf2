package rego

import (
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// readsOf finds out which parts of the input the rules of a compiled policy look at. It
// errs on the side of more: a value that is handed on as a whole is read as a whole.
func readsOf(c *ast.Compiler) policy.Reads {
	a := &analysis{compiler: c, vars: map[*ast.Rule]map[ast.Var]*alias{}, reads: map[string]bool{}}
	var rules []*ast.Rule
	names := make([]string, 0, len(c.Modules))
	for n := range c.Modules {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		for _, r := range c.Modules[n].Rules {
			for ; r != nil; r = r.Else {
				rules = append(rules, r)
			}
		}
	}
	for _, r := range rules {
		a.define(r)
	}
	for {
		a.changed = false
		// What is known of aliases grows, and uses are judged by it; so they are found
		// anew in each round, and those of the last round count.
		for _, vars := range a.vars {
			for _, v := range vars {
				v.used = false
			}
		}
		for _, r := range rules {
			a.rule(r)
		}
		if !a.changed {
			break
		}
	}
	for _, vars := range a.vars {
		for _, v := range vars {
			if !v.used {
				a.read(v.paths)
			}
		}
	}
	if a.reads[""] {
		return nil
	}
	out := policy.Reads{}
	for p := range a.reads {
		out = append(out, p)
	}
	slices.Sort(out)
	return out.Tree().Reads()
}

// alias is a variable that may stand for parts of the input.
type alias struct {
	paths map[string]bool
	// defs is the number of places that could give the variable its value. With more
	// than one the variable may be compared with the input and not only stand for it.
	defs int
	used bool
}

type analysis struct {
	compiler *ast.Compiler
	vars     map[*ast.Rule]map[ast.Var]*alias
	reads    map[string]bool
	changed  bool
}

func (a *analysis) of(r *ast.Rule, v ast.Var) *alias {
	m := a.vars[r]
	if m == nil {
		m = map[ast.Var]*alias{}
		a.vars[r] = m
	}
	al := m[v]
	if al == nil {
		al = &alias{paths: map[string]bool{}}
		m[v] = al
	}
	return al
}

func (a *analysis) read(paths map[string]bool) {
	for p := range paths {
		if !a.reads[p] {
			a.reads[p] = true
			a.changed = true
		}
	}
}

func (a *analysis) add(al *alias, paths map[string]bool) {
	for p := range paths {
		if !al.paths[p] {
			al.paths[p] = true
			a.changed = true
		}
	}
}

// sides returns the operands of an equation.
func sides(e *ast.Expr) (l, r *ast.Term, ok bool) {
	if !e.IsEquality() && !e.IsAssignment() {
		return nil, nil, false
	}
	return e.Operand(0), e.Operand(1), true
}

// define counts the definitions of variables in r.
func (a *analysis) define(r *ast.Rule) {
	for _, t := range r.Head.Args {
		if v, ok := t.Value.(ast.Var); ok {
			a.of(r, v).defs++
		}
	}
	ast.WalkExprs(r, func(e *ast.Expr) bool {
		if l, rt, ok := sides(e); ok {
			for _, t := range []*ast.Term{l, rt} {
				if v, ok := t.Value.(ast.Var); ok {
					a.of(r, v).defs++
				}
			}
		}
		if every, ok := e.Terms.(*ast.Every); ok {
			if v, ok := every.Value.Value.(ast.Var); ok {
				a.of(r, v).defs++
			}
		}
		return false
	})
}

func (a *analysis) rule(r *ast.Rule) {
	if r.Head.Key != nil {
		a.term(r, r.Head.Key)
	}
	if r.Head.Value != nil {
		a.term(r, r.Head.Value)
	}
	for _, t := range r.Head.Args {
		if _, ok := t.Value.(ast.Var); !ok {
			a.term(r, t)
		}
	}
	if len(r.Head.Reference) > 0 {
		for _, t := range r.Head.Reference[1:] {
			a.term(r, t)
		}
	}
	a.body(r, r.Body)
}

func (a *analysis) body(r *ast.Rule, b ast.Body) {
	for _, e := range b {
		a.expr(r, e)
	}
}

func (a *analysis) expr(r *ast.Rule, e *ast.Expr) {
	for _, w := range e.With {
		a.term(r, w.Value)
	}
	switch t := e.Terms.(type) {
	case *ast.Term:
		a.term(r, t)
	case *ast.SomeDecl:
		for _, s := range t.Symbols {
			a.term(r, s)
		}
	case *ast.Every:
		paths := a.paths(r, t.Domain)
		if v, ok := t.Value.Value.(ast.Var); ok && a.of(r, v).defs == 1 && len(paths) > 0 {
			a.add(a.of(r, v), below(paths, "*"))
			a.operands(r, t.Domain)
		} else {
			a.term(r, t.Domain)
		}
		a.body(r, t.Body)
	case []*ast.Term:
		if l, rt, ok := sides(e); ok {
			a.equation(r, l, rt)
			return
		}
		args := t[1:]
		if op, ok := t[0].Value.(ast.Ref); ok && op[0].Equal(ast.DefaultRootDocument) {
			for _, fn := range a.compiler.GetRulesExact(op.GroundPrefix()) {
				for ; fn != nil; fn = fn.Else {
					for i, arg := range args {
						if i >= len(fn.Head.Args) {
							a.term(r, arg) // the output
							continue
						}
						a.argument(r, arg, fn, i)
					}
				}
			}
			return
		}
		for _, arg := range args {
			a.term(r, arg)
		}
	}
}

// argument hands arg of a call in r on to parameter i of fn.
func (a *analysis) argument(r *ast.Rule, arg *ast.Term, fn *ast.Rule, i int) {
	v, ok := fn.Head.Args[i].Value.(ast.Var)
	paths := a.paths(r, arg)
	if !ok || len(paths) == 0 || a.of(fn, v).defs != 1 {
		a.term(r, arg)
		return
	}
	a.add(a.of(fn, v), paths)
	a.operands(r, arg)
}

func (a *analysis) equation(r *ast.Rule, l, rt *ast.Term) {
	for _, p := range [][2]*ast.Term{{l, rt}, {rt, l}} {
		v, ok := p[0].Value.(ast.Var)
		if !ok {
			continue
		}
		if _, ok := p[1].Value.(ast.Ref); !ok {
			continue
		}
		paths := a.paths(r, p[1])
		if al := a.of(r, v); len(paths) > 0 && al.defs == 1 {
			a.add(al, paths)
			a.operands(r, p[1])
			return
		}
	}
	a.term(r, l)
	a.term(r, rt)
}

// paths are the parts of the input that t stands for, if it is a reference or variable.
func (a *analysis) paths(r *ast.Rule, t *ast.Term) map[string]bool {
	switch v := t.Value.(type) {
	case ast.Var:
		if v.Equal(ast.InputRootDocument.Value) {
			return map[string]bool{"": true}
		}
		return a.of(r, v).paths
	case ast.Ref:
		out := a.paths(r, v[0])
		for _, x := range v[1:] {
			if len(out) == 0 {
				return nil
			}
			name := "*"
			if s, ok := x.Value.(ast.String); ok && !strings.Contains(string(s), ".") && s != "" {
				name = string(s)
			}
			out = below(out, name)
		}
		return out
	}
	return nil
}

func below(paths map[string]bool, name string) map[string]bool {
	out := make(map[string]bool, len(paths))
	for p := range paths {
		if p == "" {
			out[name] = true
		} else {
			out[p+"."+name] = true
		}
	}
	return out
}

// operands visits the variables of a reference that select from it, and marks its head
// as used.
func (a *analysis) operands(r *ast.Rule, t *ast.Term) {
	switch v := t.Value.(type) {
	case ast.Var:
		a.of(r, v).used = true
	case ast.Ref:
		if h, ok := v[0].Value.(ast.Var); ok {
			a.of(r, h).used = true
		}
		for _, x := range v[1:] {
			a.term(r, x)
		}
	}
}

// term visits a term whose value is used.
func (a *analysis) term(r *ast.Rule, t *ast.Term) {
	switch v := t.Value.(type) {
	case ast.Var, ast.Ref:
		a.read(a.paths(r, t))
		a.operands(r, t)
		if ref, ok := v.(ast.Ref); ok {
			if _, ok := ref[0].Value.(ast.Var); !ok {
				a.term(r, ref[0])
			}
		}
	case ast.Call:
		// Calls inside terms are rare after compilation; their arguments are used.
		for _, x := range v[1:] {
			a.term(r, x)
		}
	case *ast.Array:
		v.Foreach(func(x *ast.Term) { a.term(r, x) })
	case ast.Object:
		v.Foreach(func(k, x *ast.Term) { a.term(r, k); a.term(r, x) })
	case ast.Set:
		v.Foreach(func(x *ast.Term) { a.term(r, x) })
	case *ast.ArrayComprehension:
		a.term(r, v.Term)
		a.body(r, v.Body)
	case *ast.SetComprehension:
		a.term(r, v.Term)
		a.body(r, v.Body)
	case *ast.ObjectComprehension:
		a.term(r, v.Key)
		a.term(r, v.Value)
		a.body(r, v.Body)
	case ast.Null, ast.Boolean, ast.Number, ast.String:
	default:
		// A term of a kind this analysis does not know may read anything.
		a.read(map[string]bool{"": true})
	}
}
