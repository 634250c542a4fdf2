package load

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// decoder fills Go values from parsed documents. Unlike a decoder that stops at the
// first mismatch, it reports each with the line and the field path.
type decoder struct {
	file   string
	offset int
	// strict makes unknown fields errors instead of warnings.
	strict bool
	// obj is what problems are about.
	obj      ref
	aliased  int
	bombed   bool
	problems []Problem
	// listed and more count the object's problems that are in problems and beyond.
	listed, more int
	failed       bool
	fields       map[reflect.Type]map[string][]int
}

// path is a field path, built only when a problem needs it.
type path struct {
	parent *path
	name   string
	index  int
}

func (p *path) String() string {
	if p == nil {
		return ""
	}
	parent := p.parent.String()
	switch {
	case p.name == "":
		return fmt.Sprintf("%s[%d]", parent, p.index)
	case strings.ContainsAny(p.name, "./"):
		return parent + "[" + p.name + "]"
	case parent == "":
		return p.name
	}
	return parent + "." + p.name
}

func (d *decoder) report(s Severity, n *yaml.Node, at *path, format string, args ...any) {
	if s == Error {
		d.failed = true
	}
	if d.listed >= maxObjectProblems {
		d.more++
		return
	}
	d.listed++
	line := 0
	if n != nil {
		line = d.offset + n.Line
	}
	d.problems = append(d.problems, Problem{
		Severity: s, File: d.file, Line: line, Kind: d.obj.kind, Namespace: d.obj.namespace, Name: d.obj.name,
		Field: at.String(), Message: fmt.Sprintf(format, args...),
	})
}

// resolve follows aliases and counts what they add.
func (d *decoder) resolve(n *yaml.Node, at *path) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
		d.aliased += d.size(n, MaxAliased+1-d.aliased, 0)
		if d.aliased > MaxAliased {
			if !d.bombed {
				d.report(Error, n, at, "aliases add more than %d values to this document", MaxAliased)
			}
			d.bombed = true
			return nil
		}
	}
	return n
}

// size is the number of nodes below n up to limit; aliases count as what they stand for.
func (d *decoder) size(n *yaml.Node, limit, depth int) int {
	if depth > MaxDepth {
		return limit
	}
	total := 1
	for _, c := range n.Content {
		if total >= limit {
			return limit
		}
		for c.Kind == yaml.AliasNode {
			c = c.Alias
		}
		total += d.size(c, limit-total, depth+1)
	}
	return min(total, limit)
}

// pairs calls f for each key of the mapping n, merged mappings (<<) included, the
// mapping's own keys first.
func (d *decoder) pairs(n *yaml.Node, at *path, depth int, f func(key, value *yaml.Node)) {
	seen := make(map[string]bool, len(n.Content)/2)
	var walk func(n *yaml.Node, merged bool, depth int)
	walk = func(n *yaml.Node, merged bool, depth int) {
		if depth > MaxDepth {
			d.report(Error, n, at, "nested deeper than %d levels", MaxDepth)
			return
		}
		var merges []*yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.Kind == yaml.AliasNode {
				if k = d.resolve(k, at); k == nil {
					return
				}
			}
			if k.Tag == "!!merge" {
				merges = append(merges, v)
				continue
			}
			if k.Kind != yaml.ScalarNode {
				d.report(Error, k, at, "a key must be a string")
				continue
			}
			if seen[k.Value] {
				if !merged {
					d.report(Error, k, &path{parent: at, name: k.Value}, "is set twice")
				}
				continue
			}
			seen[k.Value] = true
			f(k, v)
		}
		for _, m := range merges {
			m = d.resolve(m, at)
			switch {
			case m == nil:
			case m.Kind == yaml.MappingNode:
				walk(m, true, depth+1)
			case m.Kind == yaml.SequenceNode:
				for _, item := range m.Content {
					if item = d.resolve(item, at); item != nil && item.Kind == yaml.MappingNode {
						walk(item, true, depth+1)
					}
				}
			default:
				d.report(Error, m, at, "<< needs a map")
			}
		}
	}
	walk(n, false, depth)
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	v := n.Value
	if len(v) > 40 {
		v = v[:40] + "…"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "the number " + v
	case "!!bool":
		return "the boolean " + v
	case "!!null":
		return "null"
	}
	return strconv.Quote(v)
}

var (
	unmarshaler  = reflect.TypeFor[json.Unmarshaler]()
	quantityType = reflect.TypeFor[resource.Quantity]()
	managedType  = reflect.TypeFor[[]metav1.ManagedFieldsEntry]()
	rawFieldType = reflect.TypeFor[metav1.FieldsV1]()
)

// decode fills v from n.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, at *path, depth int) {
	if n = d.resolve(n, at); n == nil || d.bombed {
		return
	}
	if depth > MaxDepth {
		d.report(Error, n, at, "nested deeper than %d levels", MaxDepth)
		return
	}
	t := v.Type()
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" || t == managedType || t == rawFieldType {
		return
	}
	if t == quantityType {
		d.quantity(n, v, at)
		return
	}
	if t.Kind() == reflect.Pointer {
		p := reflect.New(t.Elem())
		d.decode(n, p.Elem(), at, depth)
		v.Set(p)
		return
	}
	if v.CanAddr() && v.Addr().Type().Implements(unmarshaler) {
		d.unmarshal(n, v, at, depth)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			d.report(Error, n, at, "must be a map, not %s", describe(n))
			return
		}
		fields := d.fieldsOf(t)
		d.pairs(n, at, depth, func(k, val *yaml.Node) {
			p := &path{parent: at, name: k.Value}
			index, ok := fields[k.Value]
			if !ok {
				d.unknown(k, p, fields)
				return
			}
			d.decode(val, v.FieldByIndex(index), p, depth+1)
		})
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			d.report(Error, n, at, "must be a map, not %s", describe(n))
			return
		}
		m := reflect.MakeMap(t)
		d.pairs(n, at, depth, func(k, val *yaml.Node) {
			e := reflect.New(t.Elem()).Elem()
			d.decode(val, e, &path{parent: at, name: k.Value}, depth+1)
			m.SetMapIndex(reflect.ValueOf(k.Value).Convert(t.Key()), e)
		})
		v.Set(m)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(n.Value))
			if n.Kind != yaml.ScalarNode || err != nil {
				d.report(Error, n, at, "must be base64 text")
				return
			}
			v.SetBytes(raw)
			return
		}
		if n.Kind != yaml.SequenceNode {
			d.report(Error, n, at, "must be a list, not %s", describe(n))
			return
		}
		s := reflect.MakeSlice(t, len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.decode(item, s.Index(i), &path{parent: at, index: i}, depth+1)
		}
		v.Set(s)
	default:
		d.scalar(n, v, at)
	}
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, at *path) {
	if n.Kind != yaml.ScalarNode {
		d.report(Error, n, at, "must be %s, not %s", wanted(v.Kind()), describe(n))
		return
	}
	switch v.Kind() {
	case reflect.String:
		if n.Tag == "!!int" || n.Tag == "!!float" || n.Tag == "!!bool" {
			d.report(Error, n, at, "must be a string, not %s: put it in quotes", describe(n))
			return
		}
		v.SetString(n.Value)
		return
	case reflect.Bool:
		if n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
			switch strings.ToLower(n.Value) {
			case "true", "yes", "on":
				v.SetBool(true)
				return
			case "false", "no", "off":
				return
			}
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if i, ok := integer(n); ok {
			if v.OverflowInt(i) {
				d.report(Error, n, at, "%s is too large: at most %d", n.Value, int64(math.MaxInt64)>>(64-v.Type().Bits()))
				return
			}
			v.SetInt(i)
			return
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if i, ok := integer(n); ok && i >= 0 && !v.OverflowUint(uint64(i)) {
			v.SetUint(uint64(i))
			return
		}
	case reflect.Float32, reflect.Float64:
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && n.Tag != "!!str" {
			v.SetFloat(f)
			return
		}
	case reflect.Interface:
		var plain any
		if raw, err := d.json(n, 0); err == nil && json.Unmarshal(raw, &plain) == nil {
			v.Set(reflect.ValueOf(plain))
			return
		}
	}
	d.report(Error, n, at, "must be %s, not %s", wanted(v.Kind()), describe(n))
}

func integer(n *yaml.Node) (int64, bool) {
	if n.Tag != "!!int" && n.Tag != "!!float" {
		return 0, false
	}
	if i, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
		return i, true
	}
	var i int64
	if n.Tag == "!!int" && n.Decode(&i) == nil {
		return i, true
	}
	f, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

func wanted(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Interface:
		return "a value"
	}
	return "a whole number"
}

// Limits above which an amount is more likely a slip than a machine.
const (
	absurdCores = 1_000_000
	absurdBytes = 1 << 20
)

func (d *decoder) quantity(n *yaml.Node, v reflect.Value, at *path) {
	if n.Kind != yaml.ScalarNode {
		d.report(Error, n, at, "must be a quantity such as 500m, 2 or 1Gi, not %s", describe(n))
		return
	}
	if len(n.Value) > 64 {
		d.report(Error, n, at, "%s is not a quantity", describe(n))
		return
	}
	q, err := resource.ParseQuantity(n.Value)
	if err != nil {
		d.report(Error, n, at, "%s is not a quantity: write it as 500m, 2 or 1Gi", describe(n))
		return
	}
	switch {
	case q.Sign() < 0:
		d.report(Error, n, at, "%s: must not be negative", n.Value)
		return
	case at == nil:
	case at.name == "cpu" && q.CmpInt64(absurdCores) >= 0:
		d.report(Warning, n, at, "%s is %s cores: is it meant to be %sm?", n.Value, q.String(), n.Value)
	case (at.name == "memory" || at.name == "ephemeral-storage") && strings.HasSuffix(n.Value, "m"):
		d.report(Warning, n, at, "%s is %s thousandths of a byte: is it meant to be %si?", n.Value,
			strings.TrimSuffix(n.Value, "m"), strings.TrimSuffix(n.Value, "m")+"M")
	case at.name == "memory" && q.Sign() > 0 && q.CmpInt64(absurdBytes) < 0 && n.Tag == "!!int":
		d.report(Warning, n, at, "%s is a number of bytes: is it meant to be %sMi?", n.Value, n.Value)
	}
	v.Set(reflect.ValueOf(q))
}

// unmarshal hands the value to a type that decodes itself.
func (d *decoder) unmarshal(n *yaml.Node, v reflect.Value, at *path, depth int) {
	raw, err := d.json(n, depth)
	if err == nil {
		err = v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(raw)
	}
	if err != nil {
		msg := strings.TrimPrefix(err.Error(), "json: ")
		d.report(Error, n, at, "%s: %s", describe(n), msg)
	}
}

// json is n as JSON.
func (d *decoder) json(n *yaml.Node, depth int) ([]byte, error) {
	plain, err := d.plain(n, depth)
	if err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

func (d *decoder) plain(n *yaml.Node, depth int) (any, error) {
	if n = d.resolve(n, nil); n == nil {
		return nil, fmt.Errorf("too many aliased values")
	}
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", MaxDepth)
	}
	switch n.Kind {
	case yaml.MappingNode:
		out := map[string]any{}
		var errs error
		d.pairs(n, nil, depth, func(k, v *yaml.Node) {
			val, err := d.plain(v, depth+1)
			if err != nil {
				errs = err
			}
			out[k.Value] = val
		})
		return out, errs
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for _, item := range n.Content {
			val, err := d.plain(item, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, val)
		}
		return out, nil
	}
	switch n.Tag {
	case "!!null":
		return nil, nil
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), nil
	case "!!int", "!!float":
		if i, ok := integer(n); ok {
			return i, nil
		}
		if f, err := strconv.ParseFloat(n.Value, 64); err == nil && !math.IsInf(f, 0) && !math.IsNaN(f) {
			return f, nil
		}
	}
	return n.Value, nil
}

// fieldsOf maps the JSON names of t's fields to their index paths.
func (d *decoder) fieldsOf(t reflect.Type) map[string][]int {
	if f, ok := d.fields[t]; ok {
		return f
	}
	out := map[string][]int{}
	var add func(t reflect.Type, prefix []int)
	add = func(t reflect.Type, prefix []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			index := append(append([]int{}, prefix...), i)
			switch {
			case name == "-" || !f.IsExported():
			case f.Anonymous && (name == "" || strings.Contains(opts, "inline")) && f.Type.Kind() == reflect.Struct:
				add(f.Type, index)
			case name != "":
				out[name] = index
			}
		}
	}
	add(t, nil)
	if d.fields == nil {
		d.fields = map[reflect.Type]map[string][]int{}
	}
	d.fields[t] = out
	return out
}

func (d *decoder) unknown(k *yaml.Node, at *path, fields map[string][]int) {
	s := Warning
	if d.strict {
		s = Error
	}
	best, bestDistance := "", 3
	if d.listed >= maxObjectProblems {
		fields = nil
	}
	for name := range fields {
		dist := distance(strings.ToLower(name), strings.ToLower(k.Value))
		if dist < bestDistance || dist == bestDistance && best != "" && name < best {
			best, bestDistance = name, dist
		}
	}
	if best != "" && len(k.Value) > bestDistance {
		d.report(s, k, at, "unknown field; did you mean %s?", best)
		return
	}
	d.report(s, k, at, "unknown field")
}

// distance is the number of insertions, deletions and replacements between short
// words; anything above 3 is 3.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) > 2 || len(b)-len(a) > 2 {
		return 3
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j+1]+1, row[j]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return min(row[len(b)], 3)
}
