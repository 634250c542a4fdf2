package load

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GPUResource is what a trace's GPUs become.
const GPUResource corev1.ResourceName = "nvidia.com/gpu"

// Amounts of a trace's pod above this are refused: no machine has them.
const maxTraceAmount = 1 << 40

// Times of a trace above this, which are more than a century, are refused.
const maxTraceSeconds = 1 << 32

// Trace reads pods from CSV with a header. Columns cpu_milli (millicores) and
// memory_mib (MiB) are required; name and num_gpu (whole GPUs, a shared one counts as
// one) are used if present, all others ignored. The pods are pending, in namespace
// default. A line that cannot be used is left out and named in a problem.
func Trace(in Input) ([]*corev1.Pod, []Problem) {
	stays, problems := readTrace(in, false)
	pods := make([]*corev1.Pod, len(stays))
	for i := range stays {
		pods[i] = stays[i].Pod
	}
	return pods, problems
}

// Stay is a pod of a trace with the times at which it comes and goes, counted from the
// trace's beginning.
type Stay struct {
	Pod      *corev1.Pod
	From, To time.Duration
}

// Replay reads the pods of a trace as [Trace] does, with their times: columns creation_time
// and deletion_time, in seconds, which are required. A pod whose deletion_time is empty
// stays. Pods belong to a Job of their own name, so that one that is evicted comes back. They
// are in the order in which they come.
func Replay(in Input) ([]Stay, []Problem) {
	stays, problems := readTrace(in, true)
	for i := range stays {
		p := stays[i].Pod
		job := ref{"Job", p.Namespace, p.Name}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: job.kind, Name: job.name, UID: uid(job), Controller: new(true)}}
	}
	slices.SortStableFunc(stays, func(a, b Stay) int { return cmp.Compare(a.From, b.From) })
	return stays, problems
}

// Forever is the To of a Stay that does not end.
const Forever = time.Duration(math.MaxInt64)

func readTrace(in Input, timed bool) ([]Stay, []Problem) {
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
	needs, hint := []string{"cpu_milli", "memory_mib"}, "a trace needs cpu_milli and memory_mib, and may have name and num_gpu"
	if timed {
		needs, hint = append(needs, "creation_time", "deletion_time"), "a replay needs cpu_milli, memory_mib, creation_time and deletion_time, in seconds"
	}
	for _, need := range needs {
		if _, ok := columns[need]; !ok {
			report(1, "no column %s: %s", need, hint)
		}
	}
	if failed > 0 {
		return nil, problems
	}
	var pods []Stay
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
		seconds := func(name string) time.Duration {
			n := amount(name, false)
			if n > maxTraceSeconds {
				report(line, "%s: %d: at most %d seconds can be replayed", name, n, int64(maxTraceSeconds))
				bad = true
				return 0
			}
			return time.Duration(n) * time.Second
		}
		stay := Stay{To: Forever}
		if timed {
			stay.From = seconds("creation_time")
			if cell("deletion_time") != "" {
				if stay.To = seconds("deletion_time"); !bad && stay.To < stay.From {
					report(line, "deletion_time: is before creation_time")
					bad = true
				}
			}
		}
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
		stay.Pod = &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: me.name, Namespace: me.namespace, UID: uid(me)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
				Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}},
			Status: corev1.PodStatus{Phase: corev1.PodPending},
		}
		pods = append(pods, stay)
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
