package set

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// Program is a policy to compile.
type Program struct {
	// Name of the policy, for errors.
	Name string
	Hook policy.Hook
	// Files by path: the Rego files without tests, or the one Wasm module.
	Files map[string][]byte
	// Data are the policy's documents by name, as decoded JSON. Wasm policies have none.
	Data map[string]any
	// Parameters are input.parameters; never nil.
	Parameters map[string]any
	// Limits have zero fields where the defaults of the hook or runtime hold.
	Limits policy.Limits
}

// Compiler makes an evaluator of a policy. If the evaluator has a method Close(), that is
// called once nothing refers to the evaluator any more. If it has a method
// Revision() string, that digest counts for the policy's revision as well.
type Compiler func(ctx context.Context, p Program) (policy.Evaluator, error)

// Loader makes policies of NodePolicies and files.
type Loader struct {
	// Compilers by runtime. A policy of another runtime is refused.
	Compilers map[v1alpha1.Runtime]Compiler
}

// Load compiles a policy. The error is a [*policy.Error] with the policy's name and, where
// known, the file and line; or ctx.Err(). The policy of a NodePolicy with mode Disabled is
// compiled as well.
func (l *Loader) Load(ctx context.Context, np *v1alpha1.NodePolicy, a source.Artifact) (policy.Policy, error) {
	p, err := l.load(ctx, np, a)
	if err == nil {
		return p, nil
	}
	if ctx.Err() != nil {
		return policy.Policy{}, ctx.Err()
	}
	var classed *policy.Error
	if errors.As(err, &classed) {
		c := *classed
		classed = &c
	} else {
		classed = &policy.Error{Class: policy.ClassLoad, Msg: err.Error(), Err: err}
	}
	classed.Policy = np.Name
	return policy.Policy{}, classed
}

func (l *Loader) load(ctx context.Context, np *v1alpha1.NodePolicy, a source.Artifact) (policy.Policy, error) {
	if np.Name == "" {
		return policy.Policy{}, errors.New("a policy needs a name")
	}
	if err := np.RuntimeValidate(); err != nil {
		return policy.Policy{}, err
	}
	s := &np.Spec
	compile := l.Compilers[s.Runtime]
	if compile == nil {
		return policy.Policy{}, fmt.Errorf("runtime %q is not to be had here", s.Runtime)
	}
	program := Program{Name: np.Name, Hook: policy.Hook(s.Hook), Limits: limitsOf(s)}
	var err error
	if program.Parameters, err = s.DecodeParameters(); err != nil {
		return policy.Policy{}, fmt.Errorf("spec.parameters: %w", err)
	}
	documents := map[string]policy.Document{}
	switch s.Runtime {
	case v1alpha1.RuntimeRego:
		if program.Files, program.Data, err = regoFiles(a); err != nil {
			return policy.Policy{}, err
		}
		inline, err := s.Data.DecodeInline()
		if err != nil {
			return policy.Policy{}, fmt.Errorf("spec.data.inline: %w", err)
		}
		maps.Copy(program.Data, inline)
		for name, v := range program.Data {
			b, err := json.Marshal(v)
			if err != nil {
				return policy.Policy{}, fmt.Errorf("document %q: %w", name, err)
			}
			documents[name] = policy.Document{Revision: digest(string(b))}
		}
	default:
		if program.Files, err = moduleOf(a); err != nil {
			return policy.Policy{}, err
		}
	}
	evaluator, err := guarded(ctx, compile, program)
	if err != nil {
		return policy.Policy{}, err
	}
	parameters := program.Parameters
	if parameters == nil {
		parameters = map[string]any{}
	}
	if err := selfTest(ctx, program.Hook, parameters, evaluator); err != nil {
		if c, ok := evaluator.(interface{ Close() }); ok {
			c.Close()
		}
		return policy.Policy{}, err
	}
	revision, err := program.revision(s.Runtime, evaluator)
	if err != nil {
		return policy.Policy{}, err
	}
	out := policy.Policy{
		Name: np.Name, Hook: program.Hook, Order: int(s.Order),
		Mode: policy.Mode(s.Mode), Failure: policy.FailurePolicy(s.FailurePolicy),
		Revision: revision, Evaluator: released(evaluator), Parameters: program.Parameters, Limits: program.Limits,
	}
	if len(documents) > 0 {
		out.Documents = documents
	}
	for _, r := range s.Reasons {
		out.Reasons = append(out.Reasons, string(r))
	}
	if s.NodePoolSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(s.NodePoolSelector)
		if err != nil {
			return policy.Policy{}, fmt.Errorf("spec.nodePoolSelector: %w", err)
		}
		out.Applies = func(p *policy.NodePool) bool { return selector.Matches(labels.Set(p.Labels)) }
	}
	return out, nil
}

// guarded turns a panic of a compiler into an error.
func guarded(ctx context.Context, compile Compiler, p Program) (ev policy.Evaluator, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the compiler panicked: %v", r)
		}
	}()
	ev, err = compile(ctx, p)
	if err == nil && ev == nil {
		err = errors.New("the compiler gave nothing")
	}
	return ev, err
}

// limitsOf are the limits that a NodePolicy sets.
func limitsOf(s *v1alpha1.NodePolicySpec) policy.Limits {
	var l policy.Limits
	if s.Timeout != nil {
		l.Deadline = s.Timeout.Duration
	}
	if m := s.MemoryLimit; m != nil {
		if s.Runtime == v1alpha1.RuntimeWasm {
			l.MemoryBytes = m.Value()
		} else {
			l.AllocBytes = m.Value()
		}
	}
	return l
}

// regoFiles splits an artefact into Rego files and documents.
func regoFiles(a source.Artifact) (map[string][]byte, map[string]any, error) {
	files, data := map[string][]byte{}, map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(a.Files)) {
		switch {
		case strings.HasSuffix(name, "_test.rego"):
		case strings.HasSuffix(name, ".rego"):
			files[name] = a.Files[name]
		case isData(name):
			if err := place(data, name, a.Files[name]); err != nil {
				return nil, nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Documents)) {
		v, err := parse(name, a.Documents[name])
		if err != nil {
			return nil, nil, err
		}
		data[name] = v
	}
	if len(files) == 0 {
		return nil, nil, fmt.Errorf("there is no Rego file; there is %s", listOf(a.Files))
	}
	return files, data, nil
}

// isData says whether a file has documents, as in OPA bundles.
func isData(name string) bool {
	return slices.Contains([]string{"data.json", "data.yaml", "data.yml"}, path.Base(name))
}

// place puts the documents of a file where its folder says.
func place(data map[string]any, name string, b []byte) error {
	v, err := parse(name, b)
	if err != nil {
		return err
	}
	fresh, ok := v.(map[string]any)
	if !ok {
		return &policy.Error{Class: policy.ClassLoad, File: name, Line: 1, Msg: "must be an object with a document under each name"}
	}
	at := data
	if dir := path.Dir(name); dir != "." {
		for part := range strings.SplitSeq(dir, "/") {
			next, ok := at[part].(map[string]any)
			if _, taken := at[part]; taken && !ok {
				return &policy.Error{Class: policy.ClassLoad, File: name, Line: 1, Msg: fmt.Sprintf("%q is a document and a folder", part)}
			}
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
	}
	for k, v := range fresh {
		if _, taken := at[k]; taken {
			return &policy.Error{Class: policy.ClassLoad, File: name, Line: 1, Msg: fmt.Sprintf("document %q is in another file too", k)}
		}
		at[k] = v
	}
	return nil
}

// parse reads JSON or YAML, with exact numbers.
func parse(name string, b []byte) (any, error) {
	fail := func(err error) error {
		return &policy.Error{Class: policy.ClassLoad, File: name, Line: 1, Msg: fmt.Sprintf("document: %v", err), Err: err}
	}
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, fail(err)
	}
	// YAML would make decimals of large integers.
	if json.Valid(b) {
		j = b
	}
	d := json.NewDecoder(strings.NewReader(string(j)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fail(err)
	}
	return v, nil
}

// moduleOf returns the one Wasm module of an artefact.
func moduleOf(a source.Artifact) (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, b := range a.Files {
		if strings.HasSuffix(name, ".wasm") {
			out[name] = b
		}
	}
	if len(out) != 1 {
		return nil, fmt.Errorf("there must be one Wasm module; there is %s", listOf(a.Files))
	}
	return out, nil
}

func listOf(files map[string][]byte) string {
	names := slices.Sorted(maps.Keys(files))
	if len(names) == 0 {
		return "no file"
	}
	if len(names) > 10 {
		names = append(names[:10], "...")
	}
	return strings.Join(names, ", ")
}

// revision is the digest of everything that answers depend on besides the input.
func (p *Program) revision(rt v1alpha1.Runtime, ev policy.Evaluator) (string, error) {
	parts := []string{string(rt), string(p.Hook)}
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		parts = append(parts, name, string(p.Files[name]))
	}
	for _, v := range []map[string]any{p.Data, p.Parameters} {
		b, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		parts = append(parts, string(b))
	}
	if r, ok := ev.(interface{ Revision() string }); ok {
		parts = append(parts, r.Revision())
	}
	return digest(parts...), nil
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// lease keeps an evaluator open as long as something refers to it: decisions keep the
// policies that they began with, however long they take.
type lease struct{ policy.Evaluator }

// Unwrap returns the evaluator that the compiler made. It must not be used after the lease
// is gone.
func (l *lease) Unwrap() policy.Evaluator { return l.Evaluator }

// released arranges for ev to be closed when it is out of use.
func released(ev policy.Evaluator) policy.Evaluator {
	c, ok := ev.(interface{ Close() })
	if !ok {
		return ev
	}
	l := &lease{ev}
	runtime.AddCleanup(l, func(c interface{ Close() }) { c.Close() }, c)
	return l
}

// byOrder sorts policies as the engine chains them.
func byOrder(a, b policy.Policy) int {
	return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Order, b.Order), strings.Compare(a.Name, b.Name))
}
