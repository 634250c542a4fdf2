package load

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Severity says what a [Problem] did to its object.
type Severity string

// Severities.
const (
	// Error: the object, or the part of it that the field names, was left out.
	Error Severity = "error"
	// Warning: the object counts, but probably not as its author meant.
	Warning Severity = "warning"
	// Note: nothing is wrong; an assumption was made.
	Note Severity = "note"
)

// Problem is something in the input that its author should know.
type Problem struct {
	Severity Severity `json:"severity"`
	// File is the name of the input, "-" for standard input, empty if no single input
	// is concerned.
	File string `json:"file,omitempty"`
	// Line counts from 1; 0 is unknown.
	Line int `json:"line,omitempty"`
	// Kind, Namespace and Name are those of the object, as far as known.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Field is the path inside the object, such as "spec.replicas".
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
	// Count is the number of equal problems this one stands for; 0 means 1.
	Count int `json:"count,omitempty"`
}

// Where is the place in the input: "file:line", "file" or "".
func (p Problem) Where() string {
	switch {
	case p.File == "":
		return ""
	case p.Line == 0:
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// String is one line: "error: web.yaml:12: Deployment default/web: spec.replicas: ...".
func (p Problem) String() string {
	parts := []string{string(p.Severity)}
	if w := p.Where(); w != "" {
		parts = append(parts, w)
	}
	if obj := p.object(); obj != "" {
		parts = append(parts, obj)
	}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	s := strings.Join(append(parts, p.Message), ": ")
	if p.Count > 1 {
		s += fmt.Sprintf(" (and %d more like it)", p.Count-1)
	}
	return s
}

func (p Problem) object() string {
	switch {
	case p.Name == "":
		return p.Kind
	case p.Namespace == "":
		return strings.TrimSpace(p.Kind + " " + p.Name)
	}
	return strings.TrimSpace(p.Kind + " " + p.Namespace + "/" + p.Name)
}

func compareProblems(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
		cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message),
	)
}

// Sort orders problems by place and folds the ones that differ in the object's name
// alone, as those of the pods of one workload do.
func Sort(ps []Problem) []Problem {
	ps = slices.Clone(ps)
	slices.SortStableFunc(ps, compareProblems)
	first := map[Problem]int{}
	out := ps[:0]
	for _, p := range ps {
		key := p
		key.Name, key.Count = "", 0
		if i, ok := first[key]; ok {
			out[i].Count = max(out[i].Count, 1) + max(p.Count, 1)
			continue
		}
		first[key] = len(out)
		out = append(out, p)
	}
	return out
}

// ref names an object.
type ref struct{ kind, namespace, name string }

// origin is where an object was read.
type origin struct {
	file string
	line int
	// via is the workload that a generated pod comes from.
	via ref
}

// Locate adds to a problem of [snapshot.Build] the place its object was read from.
func (r *Result) Locate(p snapshot.Problem) Problem {
	out := Problem{Severity: Error, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Field: p.Field, Message: p.Message}
	if o, ok := r.origins[ref{p.Kind, p.Namespace, p.Name}]; ok {
		out.File, out.Line = o.file, o.line
		if o.via != (ref{}) {
			out.Message += fmt.Sprintf(" (of %s %s)", o.via.kind, o.via.name)
		}
	}
	return out
}

// Workload is the kind and name of the workload that the pod was made from, or that
// owns it; both are empty for a bare pod.
func (r *Result) Workload(pod snapshot.PodKey) (kind, name string) {
	o := r.origins[ref{"Pod", pod.Namespace, pod.Name}]
	return o.via.kind, o.via.name
}
