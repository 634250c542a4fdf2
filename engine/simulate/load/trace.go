package load

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUResource is what a trace's GPUs become.
const GPUResource corev1.ResourceName = "nvidia.com/gpu"

// Amounts of a trace's pod above this are refused: no machine has them.
const maxTraceAmount = 1 << 40

// Trace reads pods from CSV with a header. Columns cpu_milli (millicores) and
// memory_mib (MiB) are required; name and num_gpu (whole GPUs, a shared one counts as
// one) are used if present, all others ignored. The pods are pending, in namespace
// default. A line that cannot be used is left out and named in a problem.
func Trace(in Input) ([]*corev1.Pod, []Problem) {
	r := csv.NewReader(bytes.NewReader(in.Data))
	r.FieldsPerRecord, r.ReuseRecord = -1, true
	var problems []Problem
	failed := 0
	report := func(line int, format string, args ...any) {
		if failed++; failed <= maxInputProblems {
			problems = append(problems, Problem{Severity: Error, File: in.Name, Line: line, Message: fmt.Sprintf(format, args...)})
		}
	}
	header, err := r.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file is empty")
		}
		report(1, "no header: %v", err)
		return nil, problems
	}
	columns := map[string]int{}
	for i, h := range header {
		columns[strings.ToLower(strings.TrimSpace(strings.TrimPrefix(h, "\ufeff")))] = i
	}
	for _, need := range []string{"cpu_milli", "memory_mib"} {
		if _, ok := columns[need]; !ok {
			report(1, "no column %s: a trace needs cpu_milli and memory_mib, and may have name and num_gpu", need)
		}
	}
	if failed > 0 {
		return nil, problems
	}
	var pods []*corev1.Pod
	seen := map[string]int{}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		line, _ := r.FieldPos(0)
		if err != nil {
			var parse *csv.ParseError
			if !errors.As(err, &parse) {
				report(line, "%v", err)
				break
			}
			report(parse.Line, "%v", parse.Err)
			continue
		}
		cell := func(name string) string {
			i, ok := columns[name]
			if !ok || i >= len(record) {
				return ""
			}
			return strings.TrimSpace(record[i])
		}
		bad := false
		amount := func(name string, optional bool) int64 {
			v := cell(name)
			if v == "" && optional {
				return 0
			}
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil || n < 0 || n > maxTraceAmount {
				report(line, "%s: %q is not a whole number from 0 to %d", name, clip(v), int64(maxTraceAmount))
				bad = true
			}
			return n
		}
		cpu, mem, gpus := amount("cpu_milli", false), amount("memory_mib", false), amount("num_gpu", true)
		name := cell("name")
		if name == "" {
			name = fmt.Sprintf("pod-%06d", line)
		}
		if first, ok := seen[name]; ok {
			report(line, "pod %s is already on line %d", clip(name), first)
			bad = true
		}
		if bad {
			continue
		}
		seen[name] = line
		requests := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(mem<<20, resource.BinarySI),
		}
		var limits corev1.ResourceList
		if gpus > 0 {
			requests[GPUResource] = *resource.NewQuantity(gpus, resource.DecimalSI)
			limits = corev1.ResourceList{GPUResource: requests[GPUResource]}
		}
		me := ref{"Pod", metav1.NamespaceDefault, strings.Clone(name)}
		pods = append(pods, &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: me.name, Namespace: me.namespace, UID: uid(me)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
				Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		})
	}
	if more := failed - maxInputProblems; more > 0 {
		problems = append(problems, Problem{Severity: Error, File: in.Name, Message: fmt.Sprintf("%d problems more in this input are not listed", more)})
	}
	return pods, problems
}

// Add merges pods, those of a trace, into r. Names that r has already are left out.
func (r *Result) Add(file string, pods []*corev1.Pod) {
	have := map[ref]bool{}
	for _, p := range r.Objects.Pods {
		have[ref{"Pod", p.Namespace, p.Name}] = true
	}
	for _, p := range pods {
		key := ref{"Pod", p.Namespace, p.Name}
		if have[key] {
			r.Problems = append(r.Problems, Problem{Severity: Error, File: file, Kind: key.kind, Namespace: key.namespace, Name: key.name,
				Message: "another pod of this name is in the input: this one is left out"})
			continue
		}
		have[key] = true
		r.Objects.Pods = append(r.Objects.Pods, p)
		r.origins[key] = origin{file: file}
	}
	if len(pods) > 0 && !slices.ContainsFunc(r.Objects.Namespaces, func(n *corev1.Namespace) bool { return n.Name == metav1.NamespaceDefault }) {
		r.Objects.Namespaces = append(r.Objects.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: metav1.NamespaceDefault, Labels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceDefault}}})
	}
	if len(pods) > 0 {
		r.Read["Pod"] += len(pods)
	}
	r.Problems = Sort(r.Problems)
}
