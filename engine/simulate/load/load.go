package load

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	karpv1alpha1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// Bounds on what is reported; the rest is counted.
const (
	maxObjectProblems = 20
	maxInputProblems  = 200
)

// Input is one text to read.
type Input struct {
	// Name is shown in problems: a file name, or "-".
	Name string
	Data []byte
}

// Result is what the inputs hold.
type Result struct {
	Objects snapshot.Objects
	// Autoscalers are of no use for a plan, but policies are told when they are at work.
	Autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	// Classes are simulated clouds, for what happens in time.
	Classes []*v1alpha1.SimNodeClass
	// Workloads are those whose number of pods can be changed, by kind and name.
	Workloads []Workload
	// Problems are in the order of file and line; equal ones are folded.
	Problems []Problem
	// Read is the number of objects read per kind, as written, before workloads are
	// expanded.
	Read    map[string]int
	origins map[ref]origin
}

// Files reads paths: files, folders (every .yaml, .yml and .json file below them) and
// "-" for stdin. The error names the paths that cannot be read; the inputs that can
// are still returned.
func Files(paths []string, stdin io.Reader) ([]Input, error) {
	var inputs []Input
	var errs []error
	seen := map[string]bool{}
	read := func(path string) {
		if seen[filepath.Clean(path)] {
			return
		}
		seen[filepath.Clean(path)] = true
		data, err := readFile(path)
		if err != nil {
			errs = append(errs, err)
			return
		}
		inputs = append(inputs, Input{Name: path, Data: data})
	}
	for _, path := range paths {
		if path == "-" {
			data, err := bounded("-", stdin)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			inputs = append(inputs, Input{Name: "-", Data: data})
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !info.IsDir() {
			read(path)
			continue
		}
		found := false
		err = filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
			if err != nil {
				errs = append(errs, err)
				return nil
			}
			if name := e.Name(); strings.HasPrefix(name, ".") && p != path {
				if e.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			switch filepath.Ext(p) {
			case ".yaml", ".yml", ".json":
				if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() {
					found = true
					read(p)
				}
			}
			return nil
		})
		if err != nil {
			errs = append(errs, err)
		}
		if !found {
			errs = append(errs, fmt.Errorf("read %s: the folder has no .yaml, .yml or .json file", path))
		}
	}
	return inputs, errors.Join(errs...)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing to lose
	return bounded(path, f)
}

func bounded(name string, r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("read %s: larger than %d MiB: split it", name, MaxBytes>>20)
	}
	return data, nil
}

// Read decodes inputs and expands workloads to pods. It does not fail: see
// [Result.Problems]. The result depends on the inputs' objects alone, not on their
// order, except that of two objects with one name the later counts.
func Read(inputs []Input) *Result {
	l := &loader{
		r:        &Result{Read: map[string]int{}, origins: map[ref]origin{}},
		byRef:    map[ref]metav1.Object{},
		ignored:  map[string][]Problem{},
		priority: map[string]*schedulingv1.PriorityClass{},
		runtime:  map[string]*nodev1.RuntimeClass{},
		fields:   map[reflect.Type]map[string][]int{},
	}
	for _, in := range inputs {
		l.read(in)
	}
	for _, kind := range slices.Sorted(maps.Keys(l.ignored)) {
		ps := l.ignored[kind]
		p := ps[0]
		if len(ps) > 1 {
			p.Name, p.Namespace, p.Count = "", "", len(ps)
		}
		l.r.Problems = append(l.r.Problems, p)
	}
	l.settle()
	l.r.Problems = Sort(l.r.Problems)
	return l.r
}

type loader struct {
	r        *Result
	byRef    map[ref]metav1.Object
	ignored  map[string][]Problem
	priority map[string]*schedulingv1.PriorityClass
	runtime  map[string]*nodev1.RuntimeClass
	// fields is shared by the decoders of all documents.
	fields map[reflect.Type]map[string][]int
}

// kind is how objects of one kind are read.
type kind struct {
	make       func() metav1.Object
	namespaced bool
}

func kindOf[T any, P interface {
	*T
	metav1.Object
}](namespaced bool) kind {
	return kind{make: func() metav1.Object { return P(new(T)) }, namespaced: namespaced}
}

// kinds maps "group/Kind" to the version read and how.
var kinds = map[string]struct {
	version string
	kind
}{
	"/Pod":                                {"v1", kindOf[corev1.Pod](true)},
	"/Node":                               {"v1", kindOf[corev1.Node](false)},
	"/Service":                            {"v1", kindOf[corev1.Service](true)},
	"/Namespace":                          {"v1", kindOf[corev1.Namespace](false)},
	"/LimitRange":                         {"v1", kindOf[corev1.LimitRange](true)},
	"/PersistentVolume":                   {"v1", kindOf[corev1.PersistentVolume](false)},
	"/PersistentVolumeClaim":              {"v1", kindOf[corev1.PersistentVolumeClaim](true)},
	"/ReplicationController":              {"v1", kindOf[corev1.ReplicationController](true)},
	"apps/Deployment":                     {"v1", kindOf[appsv1.Deployment](true)},
	"apps/ReplicaSet":                     {"v1", kindOf[appsv1.ReplicaSet](true)},
	"apps/StatefulSet":                    {"v1", kindOf[appsv1.StatefulSet](true)},
	"apps/DaemonSet":                      {"v1", kindOf[appsv1.DaemonSet](true)},
	"batch/Job":                           {"v1", kindOf[batchv1.Job](true)},
	"batch/CronJob":                       {"v1", kindOf[batchv1.CronJob](true)},
	"autoscaling/HorizontalPodAutoscaler": {"v2", kindOf[autoscalingv2.HorizontalPodAutoscaler](true)},
	"policy/PodDisruptionBudget":          {"v1", kindOf[policyv1.PodDisruptionBudget](true)},
	"storage.k8s.io/StorageClass":         {"v1", kindOf[storagev1.StorageClass](false)},
	"storage.k8s.io/CSINode":              {"v1", kindOf[storagev1.CSINode](false)},
	"scheduling.k8s.io/PriorityClass":     {"v1", kindOf[schedulingv1.PriorityClass](false)},
	"node.k8s.io/RuntimeClass":            {"v1", kindOf[nodev1.RuntimeClass](false)},
	"karpenter.sh/NodePool":               {"v1", kindOf[karpv1.NodePool](false)},
	"karpenter.sh/NodeClaim":              {"v1", kindOf[karpv1.NodeClaim](false)},
	"karpenter.sh/NodeOverlay":            {"v1alpha1", kindOf[karpv1alpha1.NodeOverlay](false)},
	"dovetail.sh/SimNodeClass":            {"v1alpha1", kindOf[v1alpha1.SimNodeClass](false)},
}

// remarks say what the absence of some kinds from the plan means.
var remarks = map[string]string{
	"EC2NodeClass":  "accepted and not used: the plan takes images, kubelet settings and overheads from the catalogue",
	"KWOKNodeClass": "accepted and not used",
}

func (l *loader) read(in Input) {
	before := len(l.byRef)
	var found []Problem
	documents(in.Name, in.Data, func(doc document, problem *Problem) bool {
		if problem != nil {
			found = append(found, *problem)
		} else {
			d := &decoder{file: in.Name, offset: doc.offset, fields: l.fields}
			l.object(d, doc.node, "", "", 0)
			found = append(found, d.problems...)
		}
		if len(found) > maxInputProblems && len(l.byRef) == before && len(l.ignored) == 0 {
			found = append(found[:maxInputProblems:maxInputProblems], Problem{Severity: Error, File: in.Name,
				Message: "nothing in this input so far is an object: the rest is not read"})
			return false
		}
		return true
	})
	if len(found) == 0 && len(l.byRef) == before && blank(in.Data) {
		found = append(found, Problem{Severity: Note, File: in.Name, Message: "holds no object"})
	}
	if len(found) > maxInputProblems+1 {
		more := len(found) - maxInputProblems
		found = append(found[:maxInputProblems:maxInputProblems], Problem{Severity: Error, File: in.Name,
			Message: fmt.Sprintf("%d problems more in this input are not listed", more)})
	}
	l.r.Problems = append(l.r.Problems, found...)
}

// object reads one document, item of a list, or list. itemVersion and itemKind stand
// in for what the items of a typed list leave out.
func (l *loader) object(d *decoder, n *yaml.Node, itemVersion, itemKind string, depth int) {
	d.obj, d.listed, d.more = ref{}, 0, 0
	start := len(d.problems)
	if n = d.resolve(n, nil); n == nil {
		return
	}
	if depth > 4 {
		d.report(Error, n, nil, "lists inside lists inside lists")
		return
	}
	if n.Kind == yaml.SequenceNode {
		for _, item := range n.Content {
			l.object(d, item, itemVersion, itemKind, depth+1)
		}
		return
	}
	if n.Kind != yaml.MappingNode {
		d.report(Error, n, nil, "expected a Kubernetes object, found %s", describe(n))
		return
	}
	apiVersion, kindName := field(n, "apiVersion"), field(n, "kind")
	if apiVersion == "" {
		apiVersion = itemVersion
	}
	if kindName == "" {
		kindName = itemKind
	}
	if kindName == "" || apiVersion == "" {
		d.report(Error, n, nil, "expected a Kubernetes object: apiVersion or kind is missing")
		return
	}
	d.obj.kind = clip(kindName)
	if base, ok := strings.CutSuffix(kindName, "List"); ok && has(n, "items") {
		items := d.resolve(value(n, "items"), &path{name: "items"})
		if items == nil || items.Tag == "!!null" {
			return
		}
		if items.Kind != yaml.SequenceNode {
			d.report(Error, items, &path{name: "items"}, "must be a list, not %s", describe(items))
			return
		}
		if base == "" {
			apiVersion = ""
		}
		for _, item := range items.Content {
			l.object(d, item, apiVersion, base, depth+1)
		}
		return
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		d.report(Error, n, &path{name: "apiVersion"}, "%s is not a group and version", describe(value(n, "apiVersion")))
		return
	}
	if meta := value(n, "metadata"); meta != nil && meta.Kind == yaml.MappingNode {
		d.obj.name, d.obj.namespace = clip(field(meta, "name")), clip(field(meta, "namespace"))
	}
	ignore := func(remark string) {
		l.ignored[kindName] = append(l.ignored[kindName], Problem{Severity: Note, File: d.file, Line: d.offset + n.Line,
			Kind: d.obj.kind, Namespace: d.obj.namespace, Name: d.obj.name, Message: remark})
	}
	known, ok := kinds[gv.Group+"/"+kindName]
	if !ok {
		if near := nearestKind(kindName); near != "" {
			d.report(Warning, n, &path{name: "kind"}, "this kind is unknown; did you mean %s?", near)
			return
		}
		remark := remarks[kindName]
		switch {
		case remark != "":
		case isPlain(gv.Group):
			remark = "not used: it has no part in where pods go"
		default:
			remark = "not used: this kind is unknown here"
		}
		ignore(remark)
		return
	}
	if remark := remarks[kindName]; remark != "" {
		ignore(remark)
		if gv.Version != known.version {
			return
		}
	}
	if gv.Version != known.version {
		d.report(Error, n, &path{name: "apiVersion"}, "version %s is not read: convert the object to %s",
			gv, schema.GroupVersion{Group: gv.Group, Version: known.version})
		return
	}
	obj := known.make()
	d.failed, d.bombed = false, false
	d.decode(n, reflect.ValueOf(obj).Elem(), nil, 0)
	l.name(d, n, obj, known.kind)
	d.obj.namespace, d.obj.name = obj.GetNamespace(), obj.GetName()
	if !d.failed {
		l.check(d, n, obj)
	}
	// Problems found before the name was settled get it too.
	for i := start; i < len(d.problems); i++ {
		d.problems[i].Namespace, d.problems[i].Name = d.obj.namespace, d.obj.name
	}
	if d.more > 0 {
		last := d.problems[len(d.problems)-1]
		last.Field, last.Message = "", fmt.Sprintf("%d problems more in this object are not listed", d.more)
		d.problems = append(d.problems, last)
	}
	l.r.Read[kindName]++
	if d.failed {
		return
	}
	key := ref{kindName, obj.GetNamespace(), obj.GetName()}
	if o, ok := l.r.origins[key]; ok {
		at := fmt.Sprintf("%s:%d", o.file, o.line)
		if !reflect.DeepEqual(l.byRef[key], obj) {
			d.report(Warning, n, nil, "was already read at %s: this one counts, as the later one would in a cluster", at)
		}
	}
	l.byRef[key] = obj
	l.r.origins[key] = origin{file: d.file, line: d.offset + n.Line}
}

// isPlain reports whether group is one of Kubernetes' own, whose other kinds have no
// part in scheduling.
func isPlain(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io") || group == "karpenter.sh"
}

// name sets namespace and name as the API server would, as far as it can be known.
func (l *loader) name(d *decoder, n *yaml.Node, obj metav1.Object, k kind) {
	if k.namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace(metav1.NamespaceDefault)
	}
	if !k.namespaced {
		obj.SetNamespace("")
	}
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(fmt.Sprintf("%s%s", obj.GetGenerateName(), short(d.file, fmt.Sprint(d.offset+n.Line))))
	}
	if obj.GetName() == "" && !d.failed {
		d.report(Error, n, &path{parent: &path{name: "metadata"}, name: "name"}, "must be set")
	}
}

// nearestKind is the known kind that name is probably a slip of, or "".
func nearestKind(name string) string {
	best, bestDistance := "", 3
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		_, known, _ := strings.Cut(key, "/")
		if d := distance(strings.ToLower(known), strings.ToLower(name)); d < bestDistance && len(name) > 4*d {
			best, bestDistance = known, d
		}
	}
	return best
}

func value(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && n.Content[i].Kind == yaml.ScalarNode {
			v := n.Content[i+1]
			if v.Kind == yaml.AliasNode {
				v = v.Alias
			}
			return v
		}
	}
	return nil
}

func has(n *yaml.Node, key string) bool { return value(n, key) != nil }

func field(n *yaml.Node, key string) string {
	if v := value(n, key); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}

// clip keeps messages about junk readable.
func clip(s string) string {
	if len(s) > 253 {
		return s[:253] + "…"
	}
	return s
}
