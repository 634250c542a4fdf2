package rego

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/cache"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/policies"
)

// MaxSource is the size of all Rego files of a policy in bytes.
const MaxSource = 1 << 20

// loadTimeout bounds parsing and compiling a policy.
const loadTimeout = 5 * time.Second

// Source is a policy in Rego.
type Source struct {
	// Name of the policy, for errors.
	Name string
	// Hook the policy is for.
	Hook policy.Hook
	// Files by path. Files whose name ends in _test.rego are left out. If none declares a
	// package below dovetail.lib, the library that ships with Dovetail is there as well.
	Files map[string]string
	// Data are the policy's documents by name, as decoded JSON; the name dovetail is
	// reserved for rules.
	Data map[string]any
	// Parameters are input.parameters. If the policy's METADATA has custom.parameters (a
	// JSON Schema for each), they are checked against it.
	Parameters map[string]any
	// Limits default to those of the hook.
	Limits policy.Limits
}

// Module is a compiled policy. Its methods may be called at the same time.
type Module struct {
	name     string
	hook     policy.Hook
	pkg      string
	meta     Metadata
	revision string
	limits   policy.Limits
	params   *ast.Term
	reads    policy.Reads
	tree     *policy.Tree
	query    rego.PreparedEvalQuery
	values   cache.InterQueryValueCache

	rows atomic.Pointer[rowTable]

	mu    sync.Mutex
	stuck int // evaluations that have not come back
}

var _ policy.Evaluator = (*Module)(nil)

// rules are the rules that each hook knows.
var rules = map[policy.Hook][]string{
	policy.Score:   {"deny", "adjust", "cost", "bias", "cover", "commitments"},
	policy.Disrupt: {"deny", "defer", "keep", "warn"},
	policy.Launch:  {"deny", "defer", "restrict", "warn"},
	policy.Admit:   {"deny", "warn"},
}

// shared is what all policies are compiled with; it is made once and not changed.
type shared struct {
	caps    *ast.Capabilities
	lib     map[string]*ast.Module
	schemas map[policy.Hook]map[string]any
}

var common = sync.OnceValues(func() (*shared, error) {
	guardBuiltins()
	f, err := policies.Files.Open("capabilities.json")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &shared{lib: map[string]*ast.Module{}, schemas: map[policy.Hook]map[string]any{}}
	if s.caps, err = ast.LoadCapabilitiesJSON(f); err != nil {
		return nil, fmt.Errorf("capabilities: %w", err)
	}
	if s.caps.AllowNet == nil {
		return nil, errors.New("capabilities: allow_net is missing, which allows every host")
	}
	for _, h := range policy.Hooks() {
		b, err := policies.Files.ReadFile(path.Join("schemas", string(h), "input.json"))
		if err != nil {
			return nil, err
		}
		var schema map[string]any
		if err := json.Unmarshal(b, &schema); err != nil {
			return nil, fmt.Errorf("schema of hook %s: %w", h, err)
		}
		s.schemas[h] = schema
	}
	err = fs.WalkDir(policies.Files, "lib", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".rego") || strings.HasSuffix(name, "_test.rego") {
			return err
		}
		b, err := policies.Files.ReadFile(name)
		if err != nil {
			return err
		}
		s.lib[name], err = s.parse(name, string(b))
		return err
	})
	return s, err
})

func (s *shared) parse(name, src string) (*ast.Module, error) {
	return ast.ParseModuleWithOpts(name, src, ast.ParserOptions{ProcessAnnotation: true, Capabilities: s.caps, RegoVersion: ast.RegoV1})
}

// Load compiles a policy. All errors are *[policy.Error] of class Load, with file and line
// where there is one, or ctx.Err().
func Load(ctx context.Context, src Source) (*Module, error) {
	type result struct {
		m   *Module
		err error
	}
	// The compiler cannot be interrupted, so a policy that it takes too long over is left
	// to it.
	done := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{err: &policy.Error{Class: policy.ClassLoad, Msg: fmt.Sprintf("the compiler panicked: %v", r)}}
			}
		}()
		m, err := load(src)
		done <- result{m, err}
	}()
	timer := time.NewTimer(loadTimeout)
	defer timer.Stop()
	var r result
	select {
	case r = <-done:
	case <-timer.C:
		r.err = &policy.Error{Class: policy.ClassLoad, Msg: fmt.Sprintf("not compiled after %s", loadTimeout)}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if r.err != nil {
		var pe *policy.Error
		if !errors.As(r.err, &pe) {
			pe = &policy.Error{Class: policy.ClassLoad, Msg: r.err.Error(), Err: r.err}
		}
		pe.Policy = src.Name
		return nil, pe
	}
	return r.m, nil
}

func refuse(format string, args ...any) *policy.Error {
	return &policy.Error{Class: policy.ClassLoad, Msg: fmt.Sprintf(format, args...)}
}

func load(src Source) (*Module, error) {
	known, ok := rules[src.Hook]
	if !ok {
		return nil, refuse("hook %q is unknown", src.Hook)
	}
	s, err := common()
	if err != nil {
		return nil, err
	}
	m := &Module{name: src.Name, hook: src.Hook, limits: src.Limits.WithDefaults(src.Hook)}
	mods, err := parseAll(s, src.Files)
	if err != nil {
		return nil, err
	}
	entry, err := entryOf(mods, src.Hook, known)
	if err != nil {
		return nil, err
	}
	if err := measure(mods); err != nil {
		return nil, err
	}
	if err := weigh(mods); err != nil {
		return nil, err
	}
	m.pkg = strings.TrimPrefix(entry.path, "data.")
	meta := describe(mods, entry)
	m.meta = meta
	if _, ok := src.Data["dovetail"]; ok {
		return nil, refuse("document %q: the name is reserved", "dovetail")
	}
	if refers(meta.Parameters) {
		return nil, refuse("METADATA custom.parameters: $ref is not allowed")
	}
	if err := checkParameters(s.caps, meta.Parameters, src.Parameters); err != nil {
		return nil, err
	}
	schemas := ast.NewSchemaSet()
	schemas.Put(ast.SchemaRootRef, withParameters(s.schemas[src.Hook], meta.Parameters))

	compiler := ast.NewCompiler().WithCapabilities(s.caps).WithStrict(true).WithSchemas(schemas)
	compiler.Compile(mods)
	if compiler.Failed() {
		return nil, loadErrors(compiler.Errors)
	}
	m.reads = readsOf(compiler)
	m.tree = m.reads.Tree()

	data, err := roundTrip(src.Data)
	if err != nil {
		return nil, refuse("documents: %v", err)
	}
	// Every rule is asked for in a comprehension of its own: a rule without a value then
	// gives an empty list, and does not take the others with it.
	var q strings.Builder
	q.WriteString("answer = {")
	for i, r := range entry.rules {
		if i > 0 {
			q.WriteString(", ")
		}
		fmt.Fprintf(&q, "%q: [x | x = %s.%s]", r, entry.path, r)
	}
	q.WriteString("}")
	m.values = cache.NewInterQueryValueCache(context.Background(), valueCache())
	m.query, err = rego.New(
		rego.Compiler(compiler),
		rego.Query(q.String()),
		rego.Store(inmem.NewFromObjectWithOpts(data, inmem.OptReturnASTValuesOnRead(true), inmem.OptRoundTripOnWrite(false))),
		rego.StrictBuiltinErrors(true),
		rego.Schemas(schemas),
		rego.Capabilities(s.caps),
		rego.InterQueryBuiltinValueCache(m.values),
	).PrepareForEval(context.Background())
	if err != nil {
		return nil, loadErrors(err)
	}
	params := src.Parameters
	if params == nil {
		params = map[string]any{}
	}
	pv, err := ast.InterfaceToValue(params)
	if err != nil {
		return nil, refuse("parameters: %v", err)
	}
	m.params = ast.NewTerm(pv)
	m.revision, err = revision(src, mods)
	return m, err
}

// valueCache bounds OPA's cache of compiled patterns, which is unlimited by default.
func valueCache() *cache.Config {
	n := 256
	return &cache.Config{InterQueryBuiltinValueCache: cache.InterQueryBuiltinValueCacheConfig{MaxNumEntries: &n}}
}

// parseAll parses the files of a policy and adds the library if they bring none.
func parseAll(s *shared, files map[string]string) (map[string]*ast.Module, error) {
	total := 0
	out := map[string]*ast.Module{}
	var errs ast.Errors
	lib := false
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "_test.rego") {
			continue
		}
		if total += len(files[name]); total > MaxSource {
			return nil, refuse("the Rego files have more than %d bytes", MaxSource)
		}
		mod, err := s.parse(name, files[name])
		if err != nil {
			var es ast.Errors
			if !errors.As(err, &es) {
				return nil, &policy.Error{Class: policy.ClassLoad, File: name, Msg: err.Error(), Err: err}
			}
			errs = append(errs, es...)
			continue
		}
		if mod == nil {
			return nil, &policy.Error{Class: policy.ClassLoad, File: name, Msg: "the file is empty"}
		}
		p := mod.Package.Path.String()
		lib = lib || p == "data.dovetail.lib" || strings.HasPrefix(p, "data.dovetail.lib.")
		out[name] = mod
	}
	if len(errs) > 0 {
		return nil, loadErrors(errs)
	}
	if len(out) == 0 {
		return nil, refuse("there is no Rego file")
	}
	if !lib {
		for name, mod := range s.lib {
			out["dovetail/"+name] = mod
		}
	}
	return out, nil
}

type entry struct {
	path  string
	rules []string
}

// entryOf finds the package data.dovetail.<hook>.<name> that has rules of the hook.
func entryOf(mods map[string]*ast.Module, hook policy.Hook, known []string) (entry, error) {
	prefix := "data.dovetail." + string(hook) + "."
	found := map[string]map[string]bool{}
	var seen []string
	for _, mod := range mods {
		p := mod.Package.Path.String()
		if !strings.HasPrefix(p, "data.dovetail.lib") {
			seen = append(seen, strings.TrimPrefix(p, "data."))
		}
		if !strings.HasPrefix(p, prefix) {
			continue
		}
		for _, r := range mod.Rules {
			name := r.Head.Ref()[0].Value.String()
			if !slices.Contains(known, name) {
				continue
			}
			if len(r.Head.Args) > 0 || len(r.Head.Ref()) > 1 {
				return entry{}, &policy.Error{Class: policy.ClassLoad, Rule: name, File: r.Location.File, Line: r.Location.Row, Msg: "must be a set of objects: " + name + " contains {...}"}
			}
			if found[p] == nil {
				found[p] = map[string]bool{}
			}
			found[p][name] = true
		}
	}
	switch len(found) {
	case 1:
		for p, names := range found {
			return entry{p, slices.Sorted(maps.Keys(names))}, nil
		}
	case 0:
		slices.Sort(seen)
		return entry{}, refuse("no package dovetail.%s.<name> with a rule of %s; there is %s", hook, strings.Join(known, ", "), strings.Join(slices.Compact(seen), ", "))
	}
	return entry{}, refuse("packages %s all have rules of hook %s; a policy has one such package", strings.Join(slices.Sorted(maps.Keys(found)), " and "), hook)
}

// Metadata is what the METADATA of a policy's package says.
type Metadata struct {
	Title, Description string
	// Default is true for policies that are safe to enable everywhere (custom.default).
	Default bool
	// Parameters is a JSON Schema for each parameter (custom.parameters); nil if the
	// policy declares none, and takes any.
	Parameters map[string]any
}

// describe reads the METADATA of the entry package.
func describe(mods map[string]*ast.Module, e entry) Metadata {
	var d Metadata
	for _, name := range slices.Sorted(maps.Keys(mods)) {
		mod := mods[name]
		if mod.Package.Path.String() != e.path {
			continue
		}
		for _, a := range mod.Annotations {
			if a.Scope != "package" {
				continue
			}
			d.Title, d.Description = a.Title, a.Description
			d.Default, _ = a.Custom["default"].(bool)
			d.Parameters, _ = a.Custom["parameters"].(map[string]any)
		}
	}
	return d
}

// withParameters is the schema of the input with that of the policy's own parameters.
func withParameters(schema, parameters map[string]any) map[string]any {
	if parameters == nil {
		return schema
	}
	out := maps.Clone(schema)
	props := maps.Clone(schema["properties"].(map[string]any))
	props["parameters"] = parameterSchema(parameters)
	out["properties"] = props
	return out
}

// refers says whether a schema refers to others, which might be anywhere.
func refers(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if k == "$ref" || k == "$id" || k == "id" && !isSchema(x) || k == "$schema" || refers(x) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, refers)
	}
	return false
}

// isSchema tells a parameter called id from the keyword.
func isSchema(v any) bool {
	_, ok := v.(map[string]any)
	return ok
}

func parameterSchema(parameters map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": parameters, "additionalProperties": false}
}

// CheckParameters holds parameters, a JSON object, against a JSON Schema of them. The error is
// an *[policy.Error] of class Load that names each field at fault, or says that the schema
// cannot be used; it must not refer to others.
func CheckParameters(schema, parameters []byte) error {
	s, err := common()
	if err != nil {
		return err
	}
	var sv map[string]any
	if err := json.Unmarshal(schema, &sv); err != nil {
		return refuse("settingsSchema: %v", err)
	}
	if refers(sv) {
		return refuse("settingsSchema: $ref is not allowed")
	}
	pv := map[string]any{}
	if len(parameters) > 0 {
		d := json.NewDecoder(bytes.NewReader(parameters))
		d.UseNumber()
		if err := d.Decode(&pv); err != nil {
			return refuse("parameters: %v", err)
		}
	}
	return match(s.caps, "settingsSchema", sv, pv)
}

// checkParameters validates parameters against the policy's own schema.
func checkParameters(caps *ast.Capabilities, schema, parameters map[string]any) error {
	if schema == nil {
		return nil
	}
	if parameters == nil {
		parameters = map[string]any{}
	}
	return match(caps, "METADATA custom.parameters", parameterSchema(schema), parameters)
}

// match validates parameters against schema, which is in what is called where.
func match(caps *ast.Capabilities, where string, schema, parameters map[string]any) error {
	doc, err := ast.InterfaceToValue(parameters)
	if err != nil {
		return refuse("parameters: %v", err)
	}
	sv, err := ast.InterfaceToValue(schema)
	if err != nil {
		return refuse("%s: %v", where, err)
	}
	var problems []string
	err = topdown.GetBuiltin("json.match_schema")(topdown.BuiltinContext{Capabilities: caps}, []*ast.Term{ast.NewTerm(doc), ast.NewTerm(sv)}, func(t *ast.Term) error {
		res := t.Value.(*ast.Array)
		res.Elem(1).Value.(*ast.Array).Foreach(func(x *ast.Term) {
			o := x.Value.(ast.Object)
			problems = append(problems, fmt.Sprintf("%s: %s", text(o.Get(ast.StringTerm("field"))), text(o.Get(ast.StringTerm("desc")))))
		})
		return nil
	})
	if err != nil {
		return refuse("%s is not a JSON Schema of parameters: %v", where, err)
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return &policy.Error{Class: policy.ClassLoad, Rule: "parameters", Msg: strings.Join(problems, "; ")}
	}
	return nil
}

// loadErrors turns errors of the parser or compiler into one with the first place.
func loadErrors(err error) error {
	var es ast.Errors
	if !errors.As(err, &es) || len(es) == 0 {
		return &policy.Error{Class: policy.ClassLoad, Msg: err.Error(), Err: err}
	}
	es.Sort()
	out := &policy.Error{Class: policy.ClassLoad, Err: es}
	if l := es[0].Location; l != nil {
		out.File, out.Line = l.File, l.Row
	}
	var msgs []string
	for i, e := range es {
		msg := e.Message
		if strings.HasPrefix(msg, "undefined function ") && !strings.Contains(msg, "data.") {
			msg += " (not in the list of allowed builtin functions)"
		}
		if d, ok := e.Details.(interface{ Lines() []string }); ok {
			if lines := d.Lines(); len(lines) > 0 {
				msg += ": " + cutText(strings.Join(lines, " "), 400)
			}
		}
		if i > 0 && e.Location != nil {
			msg = fmt.Sprintf("%s:%d: %s", e.Location.File, e.Location.Row, msg)
		}
		if msgs = append(msgs, msg); len(msgs) == 5 {
			break
		}
	}
	out.Msg = strings.Join(msgs, "; ")
	return out
}

func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// roundTrip copies data into plain JSON values with exact numbers.
func roundTrip(data map[string]any) (map[string]any, error) {
	if data == nil {
		return map[string]any{}, nil
	}
	b, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	out := map[string]any{}
	return out, dec.Decode(&out)
}

// revision is the digest of everything the answers depend on besides the input.
func revision(src Source, mods map[string]*ast.Module) (string, error) {
	h := sha256.New()
	put := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	put("rego", string(src.Hook))
	for _, name := range slices.Sorted(maps.Keys(mods)) {
		text, ok := src.Files[name]
		if !ok {
			b, err := policies.Files.ReadFile(strings.TrimPrefix(name, "dovetail/"))
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		put(name, text)
	}
	for _, v := range []map[string]any{src.Data, src.Parameters} {
		b, err := json.Marshal(v)
		if err != nil {
			return "", refuse("data or parameters: %v", err)
		}
		put(string(b))
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// Revision is the digest of source, data and parameters.
func (m *Module) Revision() string { return m.revision }

// Metadata is that of the policy's package.
func (m *Module) Metadata() Metadata { return m.meta }

// Package is the policy's package, such as dovetail.score.licence.
func (m *Module) Package() string { return m.pkg }

// Reads says which parts of the input the policy looks at.
func (m *Module) Reads() policy.Reads { return m.reads }
