package rego

import (
	"encoding/json"
	"math"
	"reflect"
	"strconv"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// names holds a term for each field name, made once.
var names sync.Map // string -> *ast.Term

func nameTerm(s string) *ast.Term {
	if t, ok := names.Load(s); ok {
		return t.(*ast.Term)
	}
	t, _ := names.LoadOrStore(s, ast.StringTerm(s))
	return t.(*ast.Term)
}

type structField struct {
	policy.Field
	key *ast.Term
}

var structs sync.Map // reflect.Type -> []structField

func structFields(t reflect.Type) []structField {
	if v, ok := structs.Load(t); ok {
		return v.([]structField)
	}
	var out []structField
	for _, f := range policy.Fields(t) {
		out = append(out, structField{f, nameTerm(f.Name)})
	}
	structs.Store(t, out)
	return out
}

// term is the part of v that t selects, as JSON would show it.
func term(v reflect.Value, t *policy.Tree) *ast.Term {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return ast.InternedNullTerm
		}
		return term(v.Elem(), t)
	case reflect.Struct:
		return ast.NewTerm(structObject(v, t, nil))
	case reflect.Map:
		pairs := make([][2]*ast.Term, 0, v.Len())
		for it := v.MapRange(); it.Next(); {
			k := it.Key().String()
			if c := t.Child(k); c != nil {
				pairs = append(pairs, [2]*ast.Term{ast.StringTerm(k), term(it.Value(), c)})
			}
		}
		return ast.ObjectTerm(pairs...)
	case reflect.Slice, reflect.Array:
		e := t.Elem()
		if e == nil {
			// Rows selected by number: the whole list.
			e = policy.Reads(nil).Tree()
		}
		elems := make([]*ast.Term, v.Len())
		for i := range elems {
			elems[i] = term(v.Index(i), e)
		}
		return ast.ArrayTerm(elems...)
	case reflect.String:
		if v.Type() == reflect.TypeFor[json.Number]() {
			return ast.NumberTerm(canonical(json.Number(v.String())))
		}
		return ast.StringTerm(v.String())
	case reflect.Bool:
		return ast.InternedTerm(v.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return intTerm(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return ast.NumberTerm(json.Number(strconv.FormatUint(v.Uint(), 10)))
	case reflect.Float32, reflect.Float64:
		f := v.Float()
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return ast.InternedNullTerm
		}
		return ast.NumberTerm(canonical(json.Number(strconv.FormatFloat(f, 'g', -1, 64))))
	}
	return ast.InternedNullTerm
}

// canonical writes integers as integers, so that 5.0 in JSON and an int 5 look alike.
func canonical(n json.Number) json.Number {
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return n
	}
	if f, err := n.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return json.Number(strconv.FormatInt(int64(f), 10))
	}
	return n
}

func intTerm(i int64) *ast.Term {
	if i >= 0 && i <= 512 {
		return ast.InternedTerm(int(i))
	}
	return ast.NumberTerm(json.Number(strconv.FormatInt(i, 10)))
}

// structObject is the part of struct v that t selects; give may supply fields by name.
func structObject(v reflect.Value, t *policy.Tree, give func(name string, c *policy.Tree) *ast.Term) ast.Object {
	fields := structFields(v.Type())
	pairs := make([][2]*ast.Term, 0, len(fields))
	for _, f := range fields {
		c := t.Child(f.Name)
		if c == nil {
			continue
		}
		if give != nil {
			if x := give(f.Name, c); x != nil {
				pairs = append(pairs, [2]*ast.Term{f.key, x})
				continue
			}
		}
		fv := v.FieldByIndex(f.Index)
		if f.OmitEmpty && fv.IsZero() {
			continue
		}
		if k := fv.Kind(); (k == reflect.Slice || k == reflect.Map) && fv.IsNil() {
			// Policies iterate over lists and maps; a nil one is an empty one.
			if k == reflect.Slice {
				pairs = append(pairs, [2]*ast.Term{f.key, ast.InternedEmptyArray})
			} else {
				pairs = append(pairs, [2]*ast.Term{f.key, ast.InternedEmptyObject})
			}
			continue
		}
		pairs = append(pairs, [2]*ast.Term{f.key, term(fv, c)})
	}
	return ast.NewObject(pairs...)
}

// rowTable is the rows of a table as terms.
type rowTable struct {
	of    *policy.Offerings
	terms *ast.Term
}

// rowTerms are the candidates of in as terms. Those of the last table are kept, as far as
// the policy reads them; the costs that policies before it have changed are put in place
// at each call.
func (m *Module) rowTerms(in *policy.ScoreInput, t *policy.Tree) *ast.Term {
	e := t.Elem()
	if e == nil {
		e = policy.Reads(nil).Tree()
	}
	kept := m.rows.Load()
	if kept == nil || kept.of != in.Candidates {
		kept = &rowTable{in.Candidates, buildRows(in.Candidates, e)}
		m.rows.Store(kept)
	}
	base := kept.terms
	if !in.Chained() || e.Child("cost") == nil && e.Child("bias") == nil {
		return base
	}
	arr := base.Value.(*ast.Array)
	rows := make([]*ast.Term, arr.Len())
	cost, bias := nameTerm("cost"), nameTerm("bias")
	for i := range rows {
		obj := arr.Elem(i).Value.(ast.Object)
		pairs := make([][2]*ast.Term, 0, obj.Len())
		obj.Foreach(func(k, v *ast.Term) {
			switch {
			case k.Equal(cost):
				v = intTerm(in.CostAt(i))
			case k.Equal(bias):
				v = intTerm(in.BiasAt(i))
			}
			pairs = append(pairs, [2]*ast.Term{k, v})
		})
		rows[i] = ast.ObjectTerm(pairs...)
	}
	return ast.ArrayTerm(rows...)
}

func buildRows(table *policy.Offerings, e *policy.Tree) *ast.Term {
	types := map[*policy.InstanceType]*ast.Term{}
	rows := make([]*ast.Term, len(table.Rows))
	for i := range rows {
		row := &table.Rows[i]
		rows[i] = ast.NewTerm(structObject(reflect.ValueOf(row).Elem(), e, func(name string, c *policy.Tree) *ast.Term {
			switch name {
			case "instanceType":
				if row.InstanceType == nil {
					return nil
				}
				x := types[row.InstanceType]
				if x == nil {
					x = term(reflect.ValueOf(row.InstanceType), c)
					types[row.InstanceType] = x
				}
				return x
			case "cost":
				return intTerm(row.Offering.ListPrice)
			case "bias":
				return intTerm(0)
			}
			return nil
		}))
	}
	return ast.ArrayTerm(rows...)
}
