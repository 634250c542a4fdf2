package rego

import (
	"context"
	"errors"
	"fmt"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Sizes of what the growing builtin functions take and give.
const (
	maxOperandBytes = 64 << 10
	maxItems        = 100_000
	maxProductBytes = 1 << 20
	maxDigits       = 256
	maxExponent     = 400
	maxStack        = 12 << 20
)

// How often the guard looks at what is dear to look at, in steps.
const (
	clockEvery = 64
	allocEvery = 64
)

// guard stops an evaluation. OPA asks it before each expression.
type guard struct {
	ctx        context.Context
	deadline   time.Time
	steps      int64
	maxSteps   int64
	startHeap  uint64
	startAll   uint64
	maxAlloc   uint64
	startStack uint64
	samples    [3]metrics.Sample
	// stopped is the class of the limit that was hit. Only the evaluating goroutine
	// touches it, and others after that has ended.
	stopped policy.Class
}

func newGuard(ctx context.Context, maxSteps, maxAlloc int64) *guard {
	g := &guard{ctx: ctx, maxSteps: maxSteps, maxAlloc: uint64(maxAlloc)}
	g.deadline, _ = ctx.Deadline()
	g.samples[0].Name, g.samples[1].Name, g.samples[2].Name = "/gc/heap/allocs:bytes", "/memory/classes/heap/objects:bytes", "/memory/classes/heap/stacks:bytes"
	metrics.Read(g.samples[:])
	g.startAll, g.startHeap, g.startStack = g.samples[0].Value.Uint64(), g.samples[1].Value.Uint64(), g.samples[2].Value.Uint64()
	return g
}

// Cancel is part of topdown.Cancel; the guard stops by its own limits only.
func (g *guard) Cancel() {}

// Cancelled counts a step and says whether a limit is hit.
func (g *guard) Cancelled() bool {
	if g.stopped != "" {
		return true
	}
	g.steps++
	if g.steps > g.maxSteps {
		g.stopped = policy.ClassFuel
		return true
	}
	if g.steps%clockEvery == 1 {
		if !g.deadline.IsZero() && time.Now().After(g.deadline) {
			g.stopped = policy.ClassDeadline
			return true
		}
		if err := g.ctx.Err(); err != nil {
			g.stopped = policy.ClassDeadline
			if errors.Is(err, context.Canceled) {
				g.stopped = policy.ClassCanceled
			}
			return true
		}
	}
	if g.steps%allocEvery == 0 {
		metrics.Read(g.samples[:])
		all, heap := g.samples[0].Value.Uint64()-g.startAll, g.samples[1].Value.Uint64()
		// The counters are those of the process. What only passes through the heap costs
		// time, and may be another goroutine's; what stays on it is the danger.
		if all > g.maxAlloc && heap > g.startHeap+g.maxAlloc/4 || all > 8*g.maxAlloc {
			g.stopped = policy.ClassMemory
			return true
		}
		// OPA goes on inside the call that gave it a value, so a long row of calls makes a
		// deep stack; at 1 GB Go would end the process.
		if g.samples[2].Value.Uint64() > g.startStack+maxStack {
			g.stopped = policy.ClassMemory
			return true
		}
	}
	return false
}

// limitError is a builtin function that refuses its operands.
type limitError struct {
	class policy.Class
	msg   string
}

func (e *limitError) Error() string { return e.msg }

var guardOnce sync.Once

// guardBuiltins puts limits on the builtin functions whose results, or work, can be out of
// proportion to their operands. OPA keeps its builtin functions in a table of the process,
// so this happens once, before the first compilation.
func guardBuiltins() {
	guardOnce.Do(func() {
		for name, check := range checks {
			next := topdown.GetBuiltin(name)
			if next == nil {
				panic("rego: OPA has no builtin function " + name)
			}
			topdown.RegisterBuiltinFunc(name, func(bctx topdown.BuiltinContext, args []*ast.Term, iter func(*ast.Term) error) error {
				if err := check(args); err != nil {
					err.msg = name + ": " + err.msg
					return topdown.Halt{Err: (&topdown.Error{Code: topdown.BuiltinErr, Message: err.msg, Location: bctx.Location}).Wrap(err)}
				}
				return next(bctx, args, iter)
			})
		}
	})
}

var checks = map[string]func([]*ast.Term) *limitError{
	"sprintf":            checkSprintf,
	"concat":             operandBytes,
	"json.marshal":       operandBytes,
	"json.unmarshal":     operandBytes,
	"urlquery.encode":    operandBytes,
	"replace":            checkReplace,
	"regex.replace":      checkRegexReplace,
	"strings.replace_n":  checkReplaceN,
	"array.concat":       operandItems,
	"array.flatten":      operandBytes,
	"object.union":       operandItems,
	"object.union_n":     operandItemsDeep,
	"union":              operandItemsDeep,
	"glob.match":         checkGlob,
	"numbers.range":      checkRange,
	"numbers.range_step": checkRange,
	"to_number":          numberText,
	"units.parse":        numberText,
	"units.parse_bytes":  numberText,
	"plus":               numbers,
	"minus":              numbers,
	"mul":                numbers,
	"div":                numbers,
	"rem":                numbers,
	"floor":              numbers,
	"ceil":               numbers,
	"round":              numbers,
	"abs":                numbers,
	"format_int":         numbers,
	"bits.and":           numbers,
	"bits.or":            numbers,
	"bits.xor":           numbers,
	"bits.negate":        numbers,
	"bits.rsh":           numbers,
	"sum":                numbersIn,
	"product":            numbersIn,
	"time.clock":         checkZone,
	"time.date":          checkZone,
	"time.weekday":       checkZone,
	"time.diff":          checkZone,
	"time.add_date":      checkZone,
	"time.format":        checkZone,
}

func memory(format string, args ...any) *limitError {
	return &limitError{policy.ClassMemory, fmt.Sprintf(format, args...)}
}

// size is the size of t in bytes, as far as left reaches. Values may share parts many
// times over, so it stops there.
func size(t *ast.Term, left int) int {
	if left <= 0 {
		return 0
	}
	n := 8
	each := func(x *ast.Term) bool {
		n += size(x, left-n)
		return n < left
	}
	switch v := t.Value.(type) {
	case ast.String:
		n += len(v)
	case ast.Number:
		n += len(v)
	case *ast.Array:
		for i := range v.Len() {
			if !each(v.Elem(i)) {
				break
			}
		}
	case ast.Set:
		v.Until(func(x *ast.Term) bool { return !each(x) })
	case ast.Object:
		v.Until(func(k, x *ast.Term) bool { return !each(k) || !each(x) })
	}
	return n
}

func operandBytes(args []*ast.Term) *limitError {
	n := 0
	for _, a := range args {
		n += size(a, maxOperandBytes+1-n)
		if n > maxOperandBytes {
			return memory("operands of more than %d bytes", maxOperandBytes)
		}
	}
	return nil
}

func length(t *ast.Term) int {
	switch v := t.Value.(type) {
	case *ast.Array:
		return v.Len()
	case ast.Set:
		return v.Len()
	case ast.Object:
		return v.Len()
	}
	return 1
}

func operandItems(args []*ast.Term) *limitError {
	n := 0
	for _, a := range args {
		n += length(a)
	}
	if n > maxItems {
		return memory("operands of more than %d items", maxItems)
	}
	return nil
}

func operandItemsDeep(args []*ast.Term) *limitError {
	n := 0
	count := func(t *ast.Term) { n += length(t) }
	switch v := args[0].Value.(type) {
	case *ast.Array:
		v.Foreach(count)
	case ast.Set:
		v.Foreach(count)
	}
	if n > maxItems {
		return memory("operands of more than %d items", maxItems)
	}
	return nil
}

func checkSprintf(args []*ast.Term) *limitError {
	if f, ok := args[0].Value.(ast.String); ok {
		digits, in := 0, false
		for i := range len(f) {
			switch c := f[i]; {
			case c == '%':
				in, digits = !in, 0
			case !in:
			case c == '0' && digits == 0: // pads, and is no width
			case c >= '0' && c <= '9':
				if digits++; digits > 3 {
					return memory("width or precision of more than 999")
				}
			case c == '*':
				return memory("width or precision from an operand (*)")
			case c == '.' || c == '-' || c == '+' || c == '#' || c == ' ' || c == '[' || c == ']':
				digits = 0
			default:
				in = false
			}
		}
	}
	return operandBytes(args)
}

func text(t *ast.Term) string {
	s, _ := t.Value.(ast.String)
	return string(s)
}

func product(what string, n, m int) *limitError {
	if m > 0 && n > maxProductBytes/m {
		return memory("%s of more than %d bytes", what, maxProductBytes)
	}
	return nil
}

func checkReplace(args []*ast.Term) *limitError {
	if err := operandBytes(args); err != nil {
		return err
	}
	return product("a result", strings.Count(text(args[0]), text(args[1])), len(text(args[2])))
}

func checkRegexReplace(args []*ast.Term) *limitError {
	if err := operandBytes(args); err != nil {
		return err
	}
	// The replacement may name groups, each as long as the text.
	s, v := len(text(args[0])), text(args[2])
	return product("a result", s+1, len(v)+s*strings.Count(v, "$"))
}

func checkReplaceN(args []*ast.Term) *limitError {
	if err := operandBytes(args); err != nil {
		return err
	}
	longest := 0
	if o, ok := args[0].Value.(ast.Object); ok {
		o.Foreach(func(_, v *ast.Term) { longest = max(longest, len(text(v))) })
	}
	return product("a result", len(text(args[1]))+1, longest)
}

func checkGlob(args []*ast.Term) *limitError {
	p := text(args[0])
	if len(p) > 256 || strings.Count(p, "*")+strings.Count(p, "{") > 8 {
		return &limitError{policy.ClassFuel, "pattern of more than 256 bytes or 8 wildcards"}
	}
	return operandBytes(args)
}

func badNumber(s string) *limitError {
	if len(s) > maxDigits {
		return memory("number of more than %d digits", maxDigits)
	}
	if i := strings.LastIndexAny(s, "eE"); i >= 0 {
		if e, err := strconv.Atoi(s[i+1:]); (err != nil && len(s[i+1:]) > 3) || e > maxExponent || e < -maxExponent {
			return memory("number with an exponent beyond %d", maxExponent)
		}
	}
	return nil
}

func numbers(args []*ast.Term) *limitError {
	for _, a := range args {
		if n, ok := a.Value.(ast.Number); ok {
			if len(n) < 4 {
				continue
			}
			if err := badNumber(string(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func numbersIn(args []*ast.Term) *limitError {
	var err *limitError
	each := func(t *ast.Term) {
		if n, ok := t.Value.(ast.Number); ok && err == nil {
			err = badNumber(string(n))
		}
	}
	switch v := args[0].Value.(type) {
	case *ast.Array:
		v.Foreach(each)
	case ast.Set:
		v.Foreach(each)
	}
	return err
}

func numberText(args []*ast.Term) *limitError {
	if s, ok := args[0].Value.(ast.String); ok {
		return badNumber(strings.TrimRight(string(s), "kKmMgGtTpPiIbB"))
	}
	return numbers(args)
}

func checkRange(args []*ast.Term) *limitError {
	if err := numbers(args); err != nil {
		return err
	}
	a, _ := args[0].Value.(ast.Number)
	b, _ := args[1].Value.(ast.Number)
	x, _ := a.Float64()
	y, _ := b.Float64()
	step := 1.0
	if len(args) > 2 {
		if s, ok := args[2].Value.(ast.Number); ok {
			if f, ok := s.Float64(); ok && f > 0 {
				step = f
			}
		}
	}
	if (y-x)/step > maxItems || (x-y)/step > maxItems {
		return memory("more than %d numbers", maxItems)
	}
	return nil
}

// checkZone refuses the time zone of the host, which differs from host to host.
func checkZone(args []*ast.Term) *limitError {
	var local func(t *ast.Term, depth int) bool
	local = func(t *ast.Term, depth int) bool {
		if a, ok := t.Value.(*ast.Array); ok && depth < 2 {
			return a.Until(func(x *ast.Term) bool { return local(x, depth+1) })
		}
		return text(t) == "Local"
	}
	for _, a := range args {
		if local(a, 0) {
			return &limitError{policy.ClassBuiltin, `time zone "Local" depends on the host; an IANA name is required`}
		}
	}
	return nil
}
