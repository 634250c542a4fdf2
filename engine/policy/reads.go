package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Reads says which parts of the input a policy looks at, as paths of field names joined
// by dots, with * for any index or key: "candidates.*.instanceType.cpu". A path stands
// for all that is below it. Nil means everything.
type Reads []string

// everything is what a policy reads of which nothing is known. It is never changed.
var everything = &Tree{All: true, key: "*"}

// Tree is a set of paths as a tree.
type Tree struct {
	// All is true if everything below is read.
	All bool
	// Children by field name, or by "*" for indices and unknown keys.
	Children map[string]*Tree

	key    string // canonical text of the whole tree
	static bool   // of the rows: reads no dynamic field
	chain  bool   // of the rows: reads cost or bias
}

// Tree returns r as a tree.
func (r Reads) Tree() *Tree {
	if r == nil {
		return everything
	}
	root := &Tree{}
	for _, p := range r {
		at := root
		if p != "" {
			for part := range strings.SplitSeq(p, ".") {
				if at.All {
					break
				}
				next := at.Children[part]
				if next == nil {
					next = &Tree{}
					if at.Children == nil {
						at.Children = map[string]*Tree{}
					}
					at.Children[part] = next
				}
				at = next
			}
		}
		at.All, at.Children = true, nil
	}
	root.spread()
	root.settle()
	return root
}

// spread adds what is read below any key to what is read below each named one.
func (t *Tree) spread() {
	if any := t.Children["*"]; any != nil {
		for k, c := range t.Children {
			if k != "*" {
				c.merge(any)
			}
		}
	}
	for _, c := range t.Children {
		c.spread()
	}
}

func (t *Tree) merge(o *Tree) {
	if t.All || o.All {
		t.All, t.Children = true, nil
		return
	}
	for k, c := range o.Children {
		if t.Children == nil {
			t.Children = map[string]*Tree{}
		}
		if t.Children[k] == nil {
			t.Children[k] = &Tree{}
		}
		t.Children[k].merge(c)
	}
}

func (t *Tree) settle() {
	if t.All {
		t.key = "*"
		return
	}
	var b strings.Builder
	b.WriteByte('{')
	for _, k := range slices.Sorted(maps.Keys(t.Children)) {
		c := t.Children[k]
		c.settle()
		b.WriteString(strconv.Quote(k))
		b.WriteString(c.key)
	}
	b.WriteByte('}')
	t.key = b.String()
}

// Key is a canonical text of the tree; equal keys mean equal trees.
func (t *Tree) Key() string { return t.key }

// Child returns what is read below field name; nil if nothing is.
func (t *Tree) Child(name string) *Tree {
	if t.All {
		return t
	}
	if c := t.Children[name]; c != nil {
		return c
	}
	return t.Children["*"]
}

// Elem returns what is read below any index or key; nil if nothing is.
func (t *Tree) Elem() *Tree {
	if t.All {
		return t
	}
	return t.Children["*"]
}

// Reads returns the tree as paths.
func (t *Tree) Reads() Reads {
	if t.All {
		return nil
	}
	out := Reads{}
	var walk func(t *Tree, path string)
	walk = func(t *Tree, path string) {
		if t.All {
			out = append(out, path)
			return
		}
		for _, k := range slices.Sorted(maps.Keys(t.Children)) {
			p := k
			if path != "" {
				p = path + "." + k
			}
			walk(t.Children[k], p)
		}
	}
	walk(t, "")
	return out
}

// rowTree is what t reads of a row of the candidates, with its kind found out; nil if it
// reads none.
func (t *Tree) rowTree() *Tree {
	c := t.Child("candidates")
	if c == nil {
		return nil
	}
	e := c.Elem()
	if e == nil {
		// A policy that names rows by number reads all of them.
		e = everything
	}
	out := *e
	out.static, out.chain = rowKind(reflect.TypeFor[OfferingRow](), e)
	return &out
}

func rowKind(t reflect.Type, tree *Tree) (static, chain bool) {
	static = true
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return static, false
	}
	for _, f := range fieldsOf(t) {
		c := tree.Child(f.name)
		if c == nil {
			continue
		}
		switch f.tag {
		case "dynamic":
			static = false
		case "chain":
			chain = true
		default:
			s, ch := rowKind(f.typ, c)
			static, chain = static && s, chain || ch
		}
	}
	return static, chain
}

// field is a field of a struct as JSON shows it.
type field struct {
	name      string
	index     []int
	omitEmpty bool
	tag       string
	typ       reflect.Type
}

var fieldCache sync.Map // reflect.Type -> []field

// fieldsOf lists the JSON fields of struct type t in order of name; embedded structs are
// part of it.
func fieldsOf(t reflect.Type) []field {
	if v, ok := fieldCache.Load(t); ok {
		return v.([]field)
	}
	var out []field
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous || !f.IsExported() {
			continue
		}
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		out = append(out, field{name: name, index: f.Index, omitEmpty: strings.Contains(opts, "omitempty"), tag: f.Tag.Get("policy"), typ: f.Type})
	}
	slices.SortFunc(out, func(a, b field) int { return strings.Compare(a.name, b.name) })
	fieldCache.Store(t, out)
	return out
}

// Field is one JSON field of an input struct.
type Field struct {
	// Name in JSON.
	Name string
	// Index for reflect.Value.FieldByIndex.
	Index []int
	// OmitEmpty fields are missing in the input if they are zero.
	OmitEmpty bool
}

// Fields lists the JSON fields of struct type t by name, those of embedded structs
// included. Runtimes use it to build their form of an input.
func Fields(t reflect.Type) []Field {
	fs := fieldsOf(t)
	out := make([]Field, len(fs))
	for i, f := range fs {
		out[i] = Field{Name: f.name, Index: f.index, OmitEmpty: f.omitEmpty}
	}
	return out
}

// digester hashes values in a canonical form.
type digester struct {
	h   hash.Hash
	buf []byte
}

func newDigester() *digester { return &digester{h: sha256.New(), buf: make([]byte, 0, 512)} }

func (d *digester) flush() {
	d.h.Write(d.buf)
	d.buf = d.buf[:0]
}

func (d *digester) sum() string {
	d.flush()
	var out [32]byte
	d.h.Sum(out[:0])
	return hexSum(out)
}

func (d *digester) byte(b byte) {
	if len(d.buf) > 400 {
		d.flush()
	}
	d.buf = append(d.buf, b)
}

func (d *digester) int(kind byte, v int64) {
	d.byte(kind)
	d.buf = binary.LittleEndian.AppendUint64(d.buf, uint64(v))
}

func (d *digester) str(s string) {
	d.int('s', int64(len(s)))
	if len(s) > 64 {
		d.flush()
		d.h.Write([]byte(s))
		return
	}
	d.buf = append(d.buf, s...)
}

func (d *digester) rows(rows []OfferingRow, t *Tree) {
	d.int('R', int64(len(rows)))
	var last *InstanceType
	for i := range rows {
		v := reflect.ValueOf(&rows[i]).Elem()
		for _, f := range fieldsOf(v.Type()) {
			c := t.Child(f.name)
			if c == nil || f.tag == "chain" {
				continue
			}
			if f.name == "instanceType" {
				if rows[i].InstanceType == last && i > 0 {
					d.byte('=')
					continue
				}
				last = rows[i].InstanceType
			}
			d.str(f.name)
			d.value(v.FieldByIndex(f.index), c)
		}
	}
}

// texts hashes as value does. Inputs have thousands of maps of labels.
func (d *digester) texts(m map[string]string, t *Tree) {
	d.byte('{')
	var few [32]string
	keys := few[:0]
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if t.Child(k) != nil {
			d.str(k)
			d.str(m[k])
		}
	}
	d.byte('}')
}

// value hashes what t selects of v.
func (d *digester) value(v reflect.Value, t *Tree) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			d.byte('n')
			return
		}
		d.value(v.Elem(), t)
	case reflect.Struct:
		d.byte('{')
		for _, f := range fieldsOf(v.Type()) {
			c := t.Child(f.name)
			if c == nil {
				continue
			}
			fv := v.FieldByIndex(f.index)
			if f.omitEmpty && fv.IsZero() {
				continue
			}
			d.str(f.name)
			d.value(fv, c)
		}
		d.byte('}')
	case reflect.Map:
		if m, ok := v.Interface().(map[string]string); ok {
			d.texts(m, t)
			return
		}
		d.byte('{')
		keys := make([]string, 0, v.Len())
		for it := v.MapRange(); it.Next(); {
			keys = append(keys, it.Key().String())
		}
		slices.Sort(keys)
		for _, k := range keys {
			c := t.Child(k)
			if c == nil {
				continue
			}
			d.str(k)
			d.value(v.MapIndex(reflect.ValueOf(k).Convert(v.Type().Key())), c)
		}
		d.byte('}')
	case reflect.Slice, reflect.Array:
		d.int('[', int64(v.Len()))
		e := t.Elem()
		if e == nil && len(t.Children) > 0 {
			e = everything
		}
		if e == nil {
			return
		}
		for i := range v.Len() {
			d.value(v.Index(i), e)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[json.Number]() {
			d.number(v.String())
			return
		}
		d.str(v.String())
	case reflect.Bool:
		if v.Bool() {
			d.byte('t')
		} else {
			d.byte('f')
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.int('i', v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.number(strconv.FormatUint(v.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		d.number(strconv.FormatFloat(v.Float(), 'g', -1, 64))
	case reflect.Invalid:
		d.byte('n')
	default:
		// Inputs hold only what JSON can say; anything else is a bug of ours.
		panic(fmt.Sprintf("policy input holds a %s", v.Type()))
	}
}

// number hashes a number by its value, so that 5 from JSON and an int64 5 are one.
func (d *digester) number(s string) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		d.int('i', i)
		return
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		s = strconv.FormatFloat(f, 'g', -1, 64)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			d.int('i', i)
			return
		}
	}
	d.byte('d')
	d.str(s)
}

// perPolicy are the fields of Meta that follow from the policy and not from the question.
var perPolicy = []string{"bundle", "mode", "deadlineMs", "parameters"}

// digestInput hashes what t selects of the question in, rows of candidates aside.
func digestInput(in any, t *Tree) string {
	d := newDigester()
	v := reflect.ValueOf(in).Elem()
	for _, f := range fieldsOf(v.Type()) {
		c := t.Child(f.name)
		if c == nil || f.name == "candidates" || slices.Contains(perPolicy, f.name) {
			continue
		}
		d.str(f.name)
		d.value(v.FieldByIndex(f.index), c)
	}
	return d.sum()
}

// decode reads JSON without losing digits of numbers in free-form values.
func decode(b []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	return dec.Decode(into)
}
