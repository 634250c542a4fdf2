package load

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func read(docs ...string) *Result {
	var in []Input
	for i, d := range docs {
		in = append(in, Input{Name: fmt.Sprintf("%c.yaml", 'a'+i), Data: []byte(d)})
	}
	return Read(in)
}

// podNames are the pods' namespaces and names in order.
func podNames(r *Result) []string {
	var out []string
	for _, p := range r.Objects.Pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	slices.Sort(out)
	return out
}

func problemLines(r *Result) []string {
	var out []string
	for _, p := range r.Problems {
		out = append(out, p.String())
	}
	return out
}

const podTemplate = `
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, resources: {requests: {cpu: 250m}}}
`

func deployment(name string, replicas int) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:%s`, name, replicas, podTemplate)
}

func ownedPod(name, kind, owner, extra string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {app: web%s}
  ownerReferences: [{apiVersion: apps/v1, kind: %s, name: %s, uid: x, controller: true}]
spec: {containers: [{name: main}]}
`, name, extra, kind, owner)
}

func join(docs ...string) string { return strings.Join(docs, "\n---\n") }

func TestRead_workloads(t *testing.T) {
	const claimSet = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  ordinals: {start: 3}
  selector: {matchLabels: {app: web}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}
  template:` + podTemplate
	job := func(spec string) string {
		return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: sum}\nspec:\n" + spec +
			"  template: {spec: {containers: [{name: main}]}}\n"
	}
	tests := map[string]struct {
		input string
		want  []string
	}{
		"a Deployment becomes its replicas": {deployment("web", 2), []string{"default/web-@-1", "default/web-@-2"}},
		"a ReplicaSet becomes its replicas": {
			strings.Replace(deployment("rs", 1), "kind: Deployment", "kind: ReplicaSet", 1), []string{"default/rs-1"}},
		"a ReplicationController becomes its replicas": {
			"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: rc, namespace: old}\nspec:\n  selector: {app: web}\n  template:" + podTemplate,
			[]string{"old/rc-1"}},
		"replicas default to one": {strings.Replace(deployment("web", 7), "replicas: 7", "paused: true", 1), []string{"default/web-@-1"}},
		"no replicas, no pods":    {deployment("web", 0), nil},
		"pods of the input count, the rest is topped up": {
			join(deployment("web", 3), ownedPod("web-abc-1", "ReplicaSet", "web-abc", ", pod-template-hash: abc")),
			[]string{"default/web-@-1", "default/web-@-2", "default/web-abc-1"}},
		"a Deployment's ReplicaSet in the input is not expanded on its own": {
			join(deployment("web", 1), strings.Replace(strings.Replace(deployment("web-old", 5), "kind: Deployment", "kind: ReplicaSet", 1),
				"metadata: {name: web-old}", "metadata: {name: web-old, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: u, controller: true}]}", 1)),
			[]string{"default/web-old-1"}},
		"a pod that has ended is replaced": {
			join(strings.Replace(deployment("rs", 1), "kind: Deployment", "kind: ReplicaSet", 1),
				ownedPod("rs-1", "ReplicaSet", "rs", "")+"status: {phase: Failed}"),
			[]string{"default/rs-1", "default/rs-2"}},
		"a StatefulSet counts from its first ordinal": {claimSet, []string{"default/db-3", "default/db-4"}},
		"a Job runs its parallelism":                  {job("  parallelism: 3\n"), []string{"default/sum-1", "default/sum-2", "default/sum-3"}},
		"a Job runs no more than it has to complete":  {job("  parallelism: 3\n  completions: 2\n"), []string{"default/sum-1", "default/sum-2"}},
		"an indexed Job counts from zero":             {job("  parallelism: 2\n  completions: 2\n  completionMode: Indexed\n"), []string{"default/sum-0", "default/sum-1"}},
		"a suspended Job runs nothing":                {job("  suspend: true\n"), nil},
		"a finished Job runs nothing":                 {job("") + "status: {conditions: [{type: Complete, status: 'True'}]}\n", nil},
		"a CronJob is one run": {
			"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly}\nspec:\n  schedule: '0 3 * * *'\n  jobTemplate: {spec: {template: {spec: {containers: [{name: main}]}}}}",
			[]string{"default/nightly-next-1"}},
		"a DaemonSet is left to the nodes": {
			"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: log}\nspec:\n  selector: {matchLabels: {app: web}}\n  template:" + podTemplate, nil},
		"a Deployment and a Job of one name do not clash": {
			join(strings.Replace(deployment("sum", 1), "kind: Deployment", "kind: ReplicaSet", 1), job("")), []string{"default/sum-1", "default/sum-2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := read(test.input)
			got := podNames(r)
			for i := range got {
				for _, rs := range r.Objects.ReplicaSets {
					if hash := rs.Labels["pod-template-hash"]; hash != "" {
						got[i] = strings.Replace(got[i], hash, "@", 1)
					}
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Read() pods (-want +got):\n%s", diff)
			}
			for _, p := range r.Problems {
				if p.Severity != Note {
					t.Errorf("Read() problem: %v", p)
				}
			}
		})
	}
}

func TestRead_statefulSetClaims(t *testing.T) {
	r := read(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  selector: {matchLabels: {app: web}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {resources: {requests: {storage: 1Gi}}}}]
  template:` + podTemplate)
	if got, want := len(r.Objects.PersistentVolumeClaims), 1; got != want {
		t.Fatalf("%d claims, want %d", got, want)
	}
	p, c := r.Objects.Pods[0], r.Objects.PersistentVolumeClaims[0]
	if got := p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName; got != "data-db-0" || c.Name != got {
		t.Errorf("pod uses claim %q, the input has %q; want data-db-0", got, c.Name)
	}
	if c.Spec.StorageClassName == nil || r.Objects.StorageClasses[0].Name != *c.Spec.StorageClassName {
		t.Errorf("claim has class %v, want the assumed one", c.Spec.StorageClassName)
	}
	if p.Labels["apps.kubernetes.io/pod-index"] != "0" || p.Labels["statefulset.kubernetes.io/pod-name"] != "db-0" {
		t.Errorf("labels %v lack those of the StatefulSet controller", p.Labels)
	}
	if kind, name := r.Workload(pk(p)); kind != "StatefulSet" || name != "db" {
		t.Errorf("Workload() = %s %s, want StatefulSet db", kind, name)
	}
}

func TestRead_ownerChain(t *testing.T) {
	r := read(deployment("web", 1))
	p, rs := r.Objects.Pods[0], r.Objects.ReplicaSets[0]
	if c := metav1.GetControllerOf(p); c == nil || c.Kind != "ReplicaSet" || c.Name != rs.Name {
		t.Errorf("pod is controlled by %v, want ReplicaSet %s", c, rs.Name)
	}
	sel, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil || !sel.Matches(labels.Set(p.Labels)) {
		t.Errorf("selector %v (%v) does not match the pod's labels %v", sel, err, p.Labels)
	}
	if kind, name := r.Workload(pk(p)); kind != "Deployment" || name != "web" {
		t.Errorf("Workload() = %s %s, want Deployment web", kind, name)
	}
}

func TestRead_defaults(t *testing.T) {
	pod := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: " + spec
	}
	classes := "\n---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000" +
		"\n---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: usual}\nglobalDefault: true\nvalue: 7"
	tests := map[string]struct {
		input string
		got   func(*corev1.Pod) any
		want  any
	}{
		"limits imply requests": {
			pod("{containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}}}]}"),
			func(p *corev1.Pod) any {
				r := p.Spec.Containers[0].Resources.Requests
				return r.Cpu().String() + " " + r.Memory().String()
			}, "1 1Gi"},
		"pod-level limits imply pod-level requests": {
			pod("{resources: {limits: {cpu: 3}}, containers: [{name: a}]}"),
			func(p *corev1.Pod) any { return p.Spec.Resources.Requests.Cpu().String() }, "3"},
		"pod-level limits yield to the containers' requests": {
			pod("{resources: {limits: {cpu: 3}}, containers: [{name: a, resources: {requests: {cpu: 1}}}]}"),
			func(p *corev1.Pod) any { return p.Spec.Resources.Requests.Cpu().String() }, "1"},
		"a LimitRange gives requests": {
			pod("{containers: [{name: a}]}") + "\n---\napiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{type: Container, defaultRequest: {cpu: 200m}}]}",
			func(p *corev1.Pod) any { return p.Spec.Containers[0].Resources.Requests.Cpu().String() }, "200m"},
		"a host-network pod takes its container ports on the host": {
			pod("{hostNetwork: true, containers: [{name: a, ports: [{containerPort: 80}]}]}"),
			func(p *corev1.Pod) any { return p.Spec.Containers[0].Ports[0] },
			corev1.ContainerPort{ContainerPort: 80, HostPort: 80, Protocol: "TCP"}},
		"a priority class gives its value": {
			pod("{priorityClassName: high, containers: [{name: a}]}") + classes,
			func(p *corev1.Pod) any { return *p.Spec.Priority }, int32(1000)},
		"the default priority class counts for the others": {
			pod("{containers: [{name: a}]}") + classes,
			func(p *corev1.Pod) any { return *p.Spec.Priority }, int32(7)},
		"system classes exist everywhere": {
			pod("{priorityClassName: system-node-critical, containers: [{name: a}]}"),
			func(p *corev1.Pod) any { return *p.Spec.Priority }, int32(2_000_001_000)},
		"a runtime class adds overhead, selector and tolerations": {
			pod("{runtimeClassName: kata, containers: [{name: a}]}") + "\n---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: kata}\nhandler: kata\n" +
				"overhead: {podFixed: {cpu: 250m}}\nscheduling: {nodeSelector: {kata: 'yes'}, tolerations: [{key: kata, operator: Exists}]}",
			func(p *corev1.Pod) any {
				return fmt.Sprint(p.Spec.Overhead.Cpu(), p.Spec.NodeSelector, p.Spec.Tolerations[0].Key)
			}, "250m map[kata:yes]kata"},
		"unready nodes are tolerated for a while": {
			pod("{containers: [{name: a}]}"),
			func(p *corev1.Pod) any { return p.Spec.Tolerations[0].Key }, "node.kubernetes.io/not-ready"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := read(test.input)
			if len(r.Objects.Pods) != 1 {
				t.Fatalf("Read() gave %d pods: %v", len(r.Objects.Pods), problemLines(r))
			}
			if diff := cmp.Diff(test.want, test.got(r.Objects.Pods[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRead_problems(t *testing.T) {
	tests := map[string]struct {
		input string
		want  []string
		pods  int
	}{
		"a syntax error names its exact line and spares the other documents": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: ok}\nspec: {containers: [{name: a}]}\n---\na: 1\nb:\n  - x\n c: 2\nd: 3\n---\n" +
				"apiVersion: v1\nkind: Pod\nmetadata: {name: ok2}\nspec: {containers: [{name: a}]}\n",
			want: []string{"error: a.yaml:9: not valid YAML: did not find expected key"},
			pods: 2,
		},
		"an open quote is reported where it opens": {
			input: "apiVersion: v1\nkind: \"Pod\nmetadata: {}\n\n",
			want:  []string{"error: a.yaml:2: not valid YAML: found unexpected end of stream"},
		},
		"a tab names its line": {
			input: "a:\n  b: 1\n\tc: 2\n",
			want:  []string{"error: a.yaml:3: not valid YAML: found a tab character that violates indentation"},
		},
		"every wrong type is named with line and field": {
			input: "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\n  labels:\n    version: 3\nspec:\n  replicas: many\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers: {name: main}\n",
			want: []string{
				`error: a.yaml:6: Deployment default/web: metadata.labels.version: must be a string, not the number 3: put it in quotes`,
				`error: a.yaml:8: Deployment default/web: spec.replicas: must be a whole number, not "many"`,
				`error: a.yaml:13: Deployment default/web: spec.template.spec.containers: must be a list, not a map`,
			},
		},
		"a negative request is refused and the next object counts": {
			input: join("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    resources:\n      requests:\n        cpu: \"-1\"", deployment("web", 1)),
			want:  []string{`error: a.yaml:9: Pod default/p: spec.containers[0].resources.requests.cpu: -1: must not be negative`},
			pods:  1,
		},
		"absurd quantities are doubted": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    resources: {requests: {cpu: 2000000, memory: 512m}}",
			want: []string{
				`warning: a.yaml:7: Pod default/p: spec.containers[0].resources.requests.cpu: 2000000 is 2M cores: is it meant to be 2000000m?`,
				`warning: a.yaml:7: Pod default/p: spec.containers[0].resources.requests.memory: 512m is 512 thousandths of a byte: is it meant to be 512Mi?`,
			},
			pods: 1,
		},
		"a quantity that is none": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {requests: {cpu: two}}}]}",
			want:  []string{`error: a.yaml:4: Pod default/p: spec.containers[0].resources.requests.cpu: "two" is not a quantity: write it as 500m, 2 or 1Gi`},
		},
		"an unknown field is a warning with a guess": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a}], nodeSelectr: {a: b}, frobnicate: 1}",
			want: []string{
				`warning: a.yaml:4: Pod default/p: spec.frobnicate: unknown field`,
				`warning: a.yaml:4: Pod default/p: spec.nodeSelectr: unknown field; did you mean nodeSelector?`,
			},
			pods: 1,
		},
		"a key that is set twice": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nmetadata: {name: q}\nspec: {containers: [{name: a}]}",
			want:  []string{`error: a.yaml:4: Pod default/p: metadata: is set twice`},
		},
		"kinds without a part in the plan are noted once each": {
			input: join("apiVersion: v1\nkind: Secret\nmetadata: {name: a}", "apiVersion: v1\nkind: Secret\nmetadata: {name: b}",
				"apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: default}", "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}"),
			want: []string{
				"note: a.yaml:1: Secret: not used: it has no part in where pods go (and 1 more like it)",
				"note: a.yaml:9: EC2NodeClass default: accepted and not used: the plan takes images, kubelet settings and overheads from the catalogue",
				"note: a.yaml:13: Widget w: not used: this kind is unknown here",
			},
		},
		"a slip in the kind gets a guess": {
			input: strings.Replace(deployment("web", 1), "kind: Deployment", "kind: Deploymnet", 1),
			want:  []string{"warning: a.yaml:2: Deploymnet web: kind: this kind is unknown; did you mean Deployment?"},
		},
		"another version of a known kind": {
			input: strings.Replace(deployment("web", 1), "apps/v1", "apps/v1beta2", 1),
			want:  []string{"error: a.yaml:2: Deployment web: apiVersion: version apps/v1beta2 is not read: convert the object to apps/v1"},
		},
		"a selector that does not match": {
			input: strings.Replace(deployment("web", 1), "selector: {matchLabels: {app: web}}", "selector: {matchLabels: {app: wob}}", 1),
			want:  []string{"error: a.yaml:7: Deployment default/web: spec.selector: does not match the labels of spec.template"},
		},
		"no name": {
			input: "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a}]}",
			want:  []string{"error: a.yaml:1: Pod: metadata.name: must be set"},
		},
		"no object": {
			input: "just text",
			want:  []string{`error: a.yaml:1: expected a Kubernetes object, found "just text"`},
		},
		"nothing at all": {input: "# empty\n", want: []string{"note: a.yaml: holds no object"}},
		"broken JSON": {
			input: "{\"apiVersion\": \"v1\",\n \"kind\": \"Pod\",\n \"metadata\": }",
			want:  []string{"error: a.yaml:3: not valid JSON: invalid character '}' looking for beginning of value"},
		},
		"cut JSON":               {input: "{\"a\": [1,\n2", want: []string{"error: a.yaml:2: not valid JSON: unexpected EOF"}},
		"bytes that are no text": {input: "a: 1\nb: \x00", want: []string{"error: a.yaml:2: contains a zero byte: this is not a YAML or JSON text"}},
		"a missing priority class": {
			input: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {priorityClassName: vip, containers: [{name: a}]}",
			want:  []string{`warning: a.yaml:1: Pod default/p: spec.priorityClassName: PriorityClass "vip" is not in the input; priority 0 is assumed`},
			pods:  1,
		},
		"two objects of one name": {
			input: join(deployment("web", 1), deployment("web", 3)),
			want:  []string{"warning: a.yaml:16: Deployment default/web: was already read at a.yaml:2: this one counts, as the later one would in a cluster"},
			pods:  3,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := read(test.input)
			if diff := cmp.Diff(test.want, problemLines(r)); diff != "" {
				t.Errorf("Read() problems (-want +got):\n%s", diff)
			}
			if len(r.Objects.Pods) != test.pods {
				t.Errorf("Read() gave %d pods, want %d", len(r.Objects.Pods), test.pods)
			}
		})
	}
}

func TestRead_forms(t *testing.T) {
	pod := func(name string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"containers": [{"name": "a"}]}}`, name)
	}
	tests := map[string]struct {
		input string
		want  []string
	}{
		"JSON":                      {pod("a"), []string{"default/a"}},
		"JSON between YAML markers": {pod("a") + "\n---\n" + pod("b"), []string{"default/a", "default/b"}},
		"JSON values in a row":      {pod("a") + "\n" + pod("b"), []string{"default/a", "default/b"}},
		"a JSON array":              {"[" + pod("a") + "," + pod("b") + "]", []string{"default/a", "default/b"}},
		"a List":                    {`{"apiVersion": "v1", "kind": "List", "items": [` + pod("a") + "]}", []string{"default/a"}},
		"an empty List":             {`{"apiVersion": "v1", "kind": "List", "items": null}`, nil},
		"a PodList without kinds":   {"apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c}]}\n", []string{"default/a"}},
		"a List in a YAML document": {"%YAML 1.1\n---\napiVersion: v1\nkind: List\nitems:\n- " + pod("a") + "\n...\n---\n" + pod("b"), []string{"default/a", "default/b"}},
		"anchors and merge keys": {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec: &s {containers: [{name: c}]}\n" +
			"- {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: *s}\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: d}\n  spec: {<<: *s, hostNetwork: true}\n",
			[]string{"default/a", "default/b", "default/d"}},
		"Windows line ends and a byte order mark": {"\xef\xbb\xbfapiVersion: v1\r\nkind: Pod\r\nmetadata: {name: a}\r\nspec: {containers: [{name: c}]}\r\n---\r\n", []string{"default/a"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := read(test.input)
			if diff := cmp.Diff(test.want, podNames(r)); diff != "" {
				t.Errorf("Read() pods (-want +got):\n%s\nproblems: %v", diff, problemLines(r))
			}
			if len(r.Problems) > 0 {
				t.Errorf("Read() problems: %v", problemLines(r))
			}
		})
	}
}

// TestRead_order holds that the order of files and documents has no part in the result.
func TestRead_order(t *testing.T) {
	docs := []string{deployment("web", 2), strings.Replace(deployment("api", 2), "metadata: {name: api}", "metadata: {name: api, namespace: x}", 1),
		ownedPod("web-abc-1", "ReplicaSet", "web-abc", ", pod-template-hash: abc"),
		"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: usual}\nglobalDefault: true\nvalue: 7"}
	want := read(join(docs...))
	slices.Reverse(docs)
	got := read(join(docs...))
	if diff := cmp.Diff(want.Objects, got.Objects); diff != "" {
		t.Errorf("objects differ with the order of documents (-forward +backward):\n%s", diff)
	}
}

// TestRead_bombs holds that hostile input ends soon and with a message.
func TestRead_bombs(t *testing.T) {
	laughs := "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 12; i++ {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10), ","))
	}
	tests := map[string]struct {
		input string
		want  string
	}{
		"aliases that multiply":       {laughs + "apiVersion: v1\nkind: Pod\nmetadata: {name: p, finalizers: *a11}\nspec: {containers: [{name: a}]}\n", "aliases add more than"},
		"aliases that multiply twice": {laughs + "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: {a: *a11}, finalizers: [*a11]}\n", "aliases add more than"},
		"an alias to itself":          {"apiVersion: v1\nkind: Pod\nmetadata: &m {name: p, ownerReferences: [*m]}\nspec: &s {containers: [*s]}\n", ""},
		"a merge of itself":           {"apiVersion: v1\nkind: Pod\nmetadata: &m {name: p, <<: *m}\nspec: {containers: [{name: a}]}\n", ""},
		"deep lists":                  {strings.Repeat("[", 100_000), "exceeded max depth"},
		"deep maps":                   {strings.Repeat("a: {", 9_000) + strings.Repeat("}", 9_000), ""},
		"10 MB of brackets":           {strings.Repeat("[", 10<<20), "exceeded max depth"},
		"deep JSON":                   {strings.Repeat("{\"a\":", 10_000), "nested deeper"},
		"10 MB of text":               {strings.Repeat("lorem ipsum ", 10<<20/12), "expected a Kubernetes object"},
		"2 MB of keys":                {strings.Repeat("k: v\n", 2<<20/5), ""},
		"10 MB of documents":          {strings.Repeat("---\nx\n", 10<<20/6), "the rest is not read"},
		"2 MB of anchors":             {strings.Repeat("- &a x\n", 2<<20/7), "expected a Kubernetes object"},
		"10 MB of high bytes":         {strings.Repeat("\xff\xfe\x81", 10<<20/3), "not valid YAML"},
		"many unknown fields": {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: a}]\n" +
			func() string {
				var b strings.Builder
				for i := range 100_000 {
					fmt.Fprintf(&b, "  field%d: %d\n", i, i)
				}
				return b.String()
			}(), "more in this object are not listed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			r := read(test.input)
			if took := time.Since(start); took > 2*time.Minute {
				t.Errorf("Read() took %v", took)
			}
			if len(r.Problems) == 0 || len(r.Problems) > maxInputProblems+2 {
				t.Fatalf("Read() gave %d problems", len(r.Problems))
			}
			all := strings.Join(problemLines(r), "\n")
			if !strings.Contains(all, test.want) {
				t.Errorf("Read() problems lack %q:\n%.2000s", test.want, all)
			}
			for _, l := range problemLines(r) {
				if len(l) > 1000 {
					t.Errorf("a message of %d bytes: %.200s", len(l), l)
				}
			}
		})
	}
}

// TestRead_manyPods holds that workloads do not multiply without end.
func TestRead_manyPods(t *testing.T) {
	if testing.Short() {
		t.Skip("half a million pods")
	}
	r := read(join(deployment("a", 300_000), deployment("b", 300_000), deployment("c", 300_000), deployment("d", 2_000_000)))
	if got := len(r.Objects.Pods); got != maxReplicas {
		t.Errorf("Read() gave %d pods, want the bound of %d", got, maxReplicas)
	}
	want := []string{
		"error: a.yaml:16: Deployment default/b: the input has more than 500000 pods: the pods that this and further workloads lack are left out",
		"error: a.yaml:48: Deployment default/d: spec.replicas: 2000000: more than 500000 pods of one workload are not planned",
	}
	if diff := cmp.Diff(want, problemLines(r)); diff != "" {
		t.Errorf("Read() problems (-want +got):\n%s", diff)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("b.yaml", "b")
	write("sub/a.json", "a")
	write("sub/c.yml", "c")
	write("README.md", "no manifest")
	write(".git/d.yaml", "hidden")
	names := func(in []Input) []string {
		var out []string
		for _, i := range in {
			rel, err := filepath.Rel(dir, i.Name)
			if err != nil || i.Name == "-" {
				rel = i.Name
			}
			out = append(out, rel+"="+string(i.Data))
		}
		return out
	}
	in, err := Files([]string{dir, "-", filepath.Join(dir, "b.yaml")}, strings.NewReader("stdin"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b.yaml=b", "sub/a.json=a", "sub/c.yml=c", "-=stdin"}, names(in)); diff != "" {
		t.Errorf("Files() (-want +got):\n%s", diff)
	}
	in, err = Files([]string{filepath.Join(dir, "absent.yaml"), filepath.Join(dir, "b.yaml"), t.TempDir()}, nil)
	if err == nil || !strings.Contains(err.Error(), "absent.yaml") || !strings.Contains(err.Error(), "no .yaml, .yml or .json file") {
		t.Errorf("Files() error %v, want one that names the absent file and the empty folder", err)
	}
	if diff := cmp.Diff([]string{"b.yaml=b"}, names(in)); diff != "" {
		t.Errorf("Files() inputs beside an error (-want +got):\n%s", diff)
	}
}

func TestTrace(t *testing.T) {
	pods, problems := Trace(Input{Name: "t.csv", Data: []byte("name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos\n" +
		"a,1500,2048,0,0,LS\nb,2000,4096,1,460,BE\nc,two,1,0\na,1,1,0\nd,-5,1,0\ne,100,128\n")})
	var got []string
	for _, p := range pods {
		r := p.Spec.Containers[0].Resources.Requests
		gpu := r[GPUResource]
		got = append(got, fmt.Sprintf("%s %s %s %s", p.Name, r.Cpu(), r.Memory(), gpu.String()))
	}
	if diff := cmp.Diff([]string{"a 1500m 2Gi 0", "b 2 4Gi 1", "e 100m 128Mi 0"}, got); diff != "" {
		t.Errorf("Trace() pods (-want +got):\n%s", diff)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, p.String())
	}
	want := []string{
		`error: t.csv:4: cpu_milli: "two" is not a whole number from 0 to 1099511627776`,
		`error: t.csv:5: pod a is already on line 2`,
		`error: t.csv:6: cpu_milli: "-5" is not a whole number from 0 to 1099511627776`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("Trace() problems (-want +got):\n%s", diff)
	}
	if _, problems := Trace(Input{Name: "t.csv", Data: []byte("name,cpu\nx,1\n")}); len(problems) != 2 {
		t.Errorf("Trace() without the needed columns gave %v, want two problems", problems)
	}
}

func TestSchedulerConfig(t *testing.T) {
	tests := map[string]struct {
		input   string
		want    []corev1.TopologySpreadConstraint
		wantErr []string
	}{
		"constraints": {
			input: "podTopologySpread:\n  defaultConstraints:\n  - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}\n",
			want:  []corev1.TopologySpreadConstraint{{MaxSkew: 2, TopologyKey: "zone", WhenUnsatisfiable: corev1.ScheduleAnyway}},
		},
		"none": {input: "{}", want: []corev1.TopologySpreadConstraint{}},
		"a selector is refused": {
			input:   "podTopologySpread:\n  defaultConstraints:\n  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}\n",
			wantErr: []string{"c.yaml:3", "podTopologySpread.defaultConstraints[0].labelSelector: unknown field"},
		},
		"matchLabelKeys are refused": {
			input:   "podTopologySpread: {defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, matchLabelKeys: [a]}]}",
			wantErr: []string{"matchLabelKeys: unknown field"},
		},
		"unknown fields are refused": {input: "podTopologySpred: {}", wantErr: []string{"podTopologySpred: unknown field; did you mean podTopologySpread?"}},
		"every invalid value is named": {
			input: "podTopologySpread: {defaultConstraints: [{maxSkew: 0, topologyKey: 'a b', whenUnsatisfiable: Never, nodeTaintsPolicy: Maybe}]}",
			wantErr: []string{"maxSkew: 0: must be positive", "topologyKey: \"a b\"", "whenUnsatisfiable: \"Never\"",
				"nodeTaintsPolicy: \"Maybe\""},
		},
		"two of one key and action": {
			input: "podTopologySpread:\n  defaultConstraints:\n  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}\n" +
				"  - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}\n",
			wantErr: []string{"defaultConstraints[1]: has the topologyKey and whenUnsatisfiable of [0]"},
		},
		"two documents": {input: "{}\n---\n{}", wantErr: []string{"more than one document"}},
		"not YAML":      {input: "a: [", wantErr: []string{"not valid YAML"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := SchedulerConfig(Input{Name: "c.yaml", Data: []byte(test.input)})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("SchedulerConfig() (-want +got):\n%s", diff)
			}
			if (err != nil) != (test.wantErr != nil) {
				t.Fatalf("SchedulerConfig() error %v, want one with %q", err, test.wantErr)
			}
			for _, want := range test.wantErr {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("SchedulerConfig() error %v, want %q in it", err, want)
				}
			}
		})
	}
}

func TestParseSpread(t *testing.T) {
	got, err := ParseSpread("zone:2:ScheduleAnyway")
	want := corev1.TopologySpreadConstraint{MaxSkew: 2, TopologyKey: "topology.kubernetes.io/zone", WhenUnsatisfiable: corev1.ScheduleAnyway}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("ParseSpread() error %v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "zone:0", "zone:x", "zone:1:Perhaps", "zone:1:DoNotSchedule:4"} {
		if _, err := ParseSpread(bad); err == nil {
			t.Errorf("ParseSpread(%q) gave no error", bad)
		}
	}
}

var fiveDigits = regexp.MustCompile(`[0-9_]{5}|0[xob]`)

// FuzzLoad holds that no input panics, and that what is read is named and bounded.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(deployment("web", 2)))
	f.Add([]byte(`{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}]}`))
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: &m {name: p, <<: *m}\nspec: {containers: [*m]}\n"))
	f.Add([]byte("name,cpu_milli,memory_mib\na,1,2\n"))
	f.Add([]byte("a: [\n---\n{\n...\n%TAG ! x\n--- |\n"))
	f.Add([]byte(join("apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: n}\nspec: {limits: {cpu: -1}, template: {spec: {requirements: [{key: a, operator: In, values: [1]}]}}}",
		"apiVersion: batch/v1\nkind: CronJob\nmetadata: {generateName: c}\nspec: {jobTemplate: {spec: {template: {spec: {containers: [{}]}}}}}")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 || fiveDigits.Match(data) {
			t.Skip() // replicas by the hundred thousand are legal and slow
		}
		r := Read([]Input{{Name: "f.yaml", Data: data}})
		seen := map[ref]bool{}
		for _, p := range r.Objects.Pods {
			key := ref{"Pod", p.Namespace, p.Name}
			if p.Name == "" || p.Namespace == "" || seen[key] {
				t.Errorf("pod %v is nameless or read twice", key)
			}
			seen[key] = true
		}
		for _, p := range r.Problems {
			if p.Message == "" || p.Line < 0 || p.Line > strings.Count(string(data), "\n")+2 {
				t.Errorf("problem %+v has no message or lies outside of the input", p)
			}
		}
		pods, _ := Trace(Input{Name: "f.csv", Data: data})
		r.Add("f.csv", pods)
		if _, err := SchedulerConfig(Input{Name: "s.yaml", Data: data}); err != nil && err.Error() == "" {
			t.Error("an error without a message")
		}
	})
}
