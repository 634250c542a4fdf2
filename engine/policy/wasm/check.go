package wasm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// Errors of loading, for callers that branch.
var (
	// ErrABI is a module that does not speak version 1 of the ABI.
	ErrABI = errors.New("not a module of policy ABI 1")
	// ErrImport is a module that asks for something the host does not give.
	ErrImport = errors.New("import is not available")
	// ErrSignature is an import or export of another type than the ABI says.
	ErrSignature = errors.New("wrong signature")
	// ErrCompile is a module that could not be compiled within its limits.
	ErrCompile = errors.New("not compiled")
	// ErrUnstable is a module that gives different answers to equal questions.
	ErrUnstable = errors.New("answers are not repeatable")
)

const (
	markerExport    = "dv_abi_1"
	allocExport     = "dv_alloc"
	describeExport  = "dv_describe"
	configureExport = "dv_configure"
	initExport      = "_initialize"
	memoryExport    = "memory"

	// descriptionSection is the custom section that holds a module's description.
	descriptionSection = "dovetail.policy"
	maxDescription     = 64 << 10
)

var (
	i32 = module.I32
	i64 = module.I64

	call32to64 = module.FuncType{Params: []module.ValType{i32, i32}, Results: []module.ValType{i64}}

	required = map[string]module.FuncType{
		markerExport: {Results: []module.ValType{i32}},
		allocExport:  {Params: []module.ValType{i32}, Results: []module.ValType{i32}},
	}
	optional = map[string]module.FuncType{
		describeExport:  {Results: []module.ValType{i64}},
		configureExport: call32to64,
		initExport:      {},
	}
	hostFuncs = map[string]map[string]module.FuncType{
		logModule:   {"log": {Params: []module.ValType{i32, i32, i32}}},
		abortModule: {"abort": {Params: []module.ValType{i32, i32, i32, i32}}},
		wasiModule:  wasiTypes(),
	}
	anyMarker = regexp.MustCompile(`^dv_abi_([0-9]+)$`)
)

func wasiTypes() map[string]module.FuncType {
	types := map[string]module.FuncType{}
	for name, f := range wasiFuncs {
		t := module.FuncType{}
		for _, p := range f.params {
			if p == 'I' {
				t.Params = append(t.Params, i64)
			} else {
				t.Params = append(t.Params, i32)
			}
		}
		if name != "proc_exit" {
			t.Results = []module.ValType{i32}
		}
		types[name] = t
	}
	return types
}

// check holds a module against the ABI without running anything, and returns the hooks
// that it implements.
func check(m *module.Module) ([]frame.Hook, error) {
	var problems []error
	problem := func(kind error, format string, args ...any) {
		if len(problems) < 10 {
			problems = append(problems, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), kind))
		}
	}
	for _, i := range m.Imports {
		if i.Kind != module.KindFunc {
			problem(ErrImport, "%s %s.%s", i.Kind, i.Module, i.Name)
			continue
		}
		want, ok := hostFuncs[i.Module][i.Name]
		if !ok {
			problem(ErrImport, "%s.%s", i.Module, i.Name)
		} else if have := m.Types[i.Type]; !have.Equal(want) {
			problem(ErrSignature, "import %s.%s is %s, want %s", i.Module, i.Name, have, want)
		}
	}
	export := func(name string, want module.FuncType) bool {
		e, ok := m.Export(name)
		if !ok {
			return false
		}
		if e.Kind != module.KindFunc {
			problem(ErrSignature, "export %s is a %s, want a function", name, e.Kind)
		} else if have, _ := m.FuncType(e.Index); !have.Equal(want) {
			problem(ErrSignature, "export %s is %s, want %s", name, have, want)
		}
		return true
	}
	if !export(markerExport, required[markerExport]) {
		others := ""
		for _, e := range m.Exports {
			if v := anyMarker.FindStringSubmatch(e.Name); v != nil {
				others += ", has " + e.Name
			}
		}
		problem(ErrABI, "no export %s%s", markerExport, others)
		return nil, errors.Join(problems...)
	}
	if !export(allocExport, required[allocExport]) {
		problem(ErrABI, "no export %s", allocExport)
	}
	for name, t := range optional {
		export(name, t)
	}
	if e, ok := m.Export(memoryExport); !ok || e.Kind != module.KindMemory {
		problem(ErrABI, "no exported memory of the name %q", memoryExport)
	}
	var hooks []frame.Hook
	for _, h := range frame.Hooks() {
		if export(h.Export(), call32to64) {
			hooks = append(hooks, h)
		}
	}
	if len(hooks) == 0 {
		problem(ErrABI, "exports none of the hooks dv_score, dv_disrupt, dv_admit, dv_launch")
	}
	if e, ok := m.Export("_start"); ok && e.Kind == module.KindFunc {
		problem(ErrABI, "exports _start: a command, want a reactor (in Go: -buildmode=c-shared)")
	}
	slices.SortFunc(problems, func(a, b error) int { return bytes.Compare([]byte(a.Error()), []byte(b.Error())) })
	return hooks, errors.Join(problems...)
}

// Description is what a module says about itself. Nothing in it is relied on for safety.
type Description struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// Columns are the names of the columns that the policy reads; nil means all.
	Columns []string `json:"columns,omitempty"`
	// Uses are the paths of the context that it reads, "time" for the time and "json" for
	// the whole as JSON; nil means all but JSON. The parameters need not be listed.
	Uses []string `json:"uses,omitempty"`
	// TimeResolution is a duration: answers do not change more often than that.
	TimeResolution string `json:"timeResolution,omitempty"`
	// SettingsSchema is a JSON Schema of the parameters.
	SettingsSchema json.RawMessage `json:"settingsSchema,omitempty"`
	// Guardrail marks a policy whose failure must not be ignored.
	Guardrail bool `json:"guardrail,omitempty"`
}

func parseDescription(b []byte) (Description, error) {
	var d Description
	if len(b) > maxDescription {
		return d, fmt.Errorf("description of %d bytes, at most %d are allowed", len(b), maxDescription)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("description: %w", err)
	}
	return d, nil
}
