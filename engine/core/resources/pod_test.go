package resources

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresource "k8s.io/component-helpers/resource"
	"sigs.k8s.io/yaml"
)

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPodRequests(t *testing.T) {
	tests := map[string]struct {
		pod  string
		want List
	}{
		"a pod without requests needs its slot": {
			pod: `{spec: {containers: [{name: a}]}}`, want: List{"pods": 1},
		},
		"containers add up, and the sum rounds up once": {
			pod: `{spec: {containers: [
				{name: a, resources: {requests: {cpu: 100.4m, memory: 1Gi}}},
				{name: b, resources: {requests: {cpu: 100.4m, nvidia.com/gpu: 1}}}]}}`,
			want: List{"cpu": 201, "memory": 1 << 30, "nvidia.com/gpu": 1, "pods": 1},
		},
		"the largest init container counts where it is larger": {
			pod: `{spec: {
				initContainers: [{name: i, resources: {requests: {cpu: "2", memory: 10}}}, {name: j, resources: {requests: {cpu: "1", memory: 50}}}],
				containers: [{name: a, resources: {requests: {cpu: "1", memory: 100}}}]}}`,
			want: List{"cpu": 2000, "memory": 100, "pods": 1},
		},
		"a sidecar counts beside containers and later init containers": {
			pod: `{spec: {
				initContainers: [
					{name: before, resources: {requests: {cpu: 1800m}}},
					{name: side, restartPolicy: Always, resources: {requests: {cpu: 500m}}},
					{name: after, resources: {requests: {cpu: 1600m}}}],
				containers: [{name: a, resources: {requests: {cpu: "1"}}}]}}`,
			want: List{"cpu": 2100, "pods": 1},
		},
		"pod-level requests replace the sum, overhead comes on top": {
			pod: `{spec: {overhead: {cpu: 50m, memory: 5}, resources: {requests: {cpu: "3"}},
				containers: [{name: a, resources: {requests: {cpu: "1", memory: 100}}}]}}`,
			want: List{"cpu": 3050, "memory": 105, "pods": 1},
		},
		"a bound pod that shrinks counts what it still has": {
			pod: `{spec: {nodeName: n, containers: [{name: a, resources: {requests: {cpu: "1"}}}]},
				status: {containerStatuses: [{name: a, ready: true, restartCount: 0, image: x, imageID: y, allocatedResources: {cpu: "2"}, resources: {requests: {cpu: 2500m}}}]}}`,
			want: List{"cpu": 2500, "pods": 1},
		},
		"a resize that cannot happen does not count": {
			pod: `{spec: {nodeName: n, containers: [{name: a, resources: {requests: {cpu: "9"}}}]},
				status: {conditions: [{type: PodResizePending, status: "True", reason: Infeasible}],
				containerStatuses: [{name: a, ready: true, restartCount: 0, image: x, imageID: y, allocatedResources: {cpu: "2"}, resources: {requests: {cpu: "2"}}}]}}`,
			want: List{"cpu": 2000, "pods": 1},
		},
		"a pod not yet bound counts its spec": {
			pod: `{spec: {containers: [{name: a, resources: {requests: {cpu: "1"}}}]},
				status: {containerStatuses: [{name: a, ready: true, restartCount: 0, image: x, imageID: y, allocatedResources: {cpu: "2"}}]}}`,
			want: List{"cpu": 1000, "pods": 1},
		},
		"names that kube-scheduler ignores are left out, huge pages are not": {
			pod:  `{spec: {containers: [{name: a, resources: {requests: {storage: 1Gi, pods: 7, hugepages-2Mi: 4Mi, cpu: 1m}}}]}}`,
			want: List{"cpu": 1, "hugepages-2Mi": 4 << 20, "pods": 1},
		},
		"limits are no requests of a pod that an API server would have completed": {
			pod: `{spec: {containers: [{name: a, resources: {limits: {cpu: "1"}}}]}}`, want: List{"pods": 1},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, PodRequests(parse[corev1.Pod](t, tc.pod))); diff != "" {
				t.Errorf("PodRequests() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodLimits(t *testing.T) {
	pod := parse[corev1.Pod](t, `{spec: {
		initContainers: [{name: i, resources: {limits: {cpu: "2", memory: 10}}}],
		containers: [
			{name: a, resources: {requests: {cpu: "1"}, limits: {cpu: 1500m, nvidia.com/gpu: 1}}},
			{name: b, resources: {limits: {memory: 100, storage: 5}}},
			{name: c, resources: {requests: {memory: 7}}}]}}`)
	if diff := cmp.Diff(List{"cpu": 2000, "memory": 100, "nvidia.com/gpu": 1, "pods": 1}, PodLimits(pod)); diff != "" {
		t.Errorf("PodLimits() (-want +got):\n%s", diff)
	}
}

func TestDaemonRequests(t *testing.T) {
	pod := parse[corev1.Pod](t, `{spec: {
		initContainers: [{name: i, resources: {limits: {memory: 200}}}],
		containers: [{name: a, resources: {limits: {cpu: 300m, memory: 100}, requests: {cpu: 100m}}}]}}`)
	before := pod.DeepCopy()
	if diff := cmp.Diff(List{"cpu": 100, "memory": 200, "pods": 1}, DaemonRequests(pod)); diff != "" {
		t.Errorf("DaemonRequests() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("the pod changed (-want +got):\n%s", diff)
	}
}

func TestApplyLimitRange(t *testing.T) {
	tests := map[string]struct {
		pod    string
		ranges []string
		want   List
		limits string
	}{
		"without ranges, limits are the missing requests": {
			pod:  `{metadata: {namespace: n}, spec: {containers: [{name: a, resources: {limits: {cpu: 300m, memory: 7}, requests: {memory: 5}}}]}}`,
			want: List{"cpu": 300, "memory": 5, "pods": 1},
		},
		"default requests fill what is missing, also in init containers": {
			pod:    `{metadata: {namespace: n}, spec: {initContainers: [{name: i}], containers: [{name: a, resources: {requests: {cpu: 50m}}}]}}`,
			ranges: []string{`{metadata: {namespace: n}, spec: {limits: [{type: Container, defaultRequest: {cpu: 200m, memory: 100}}]}}`},
			want:   List{"cpu": 200, "memory": 100, "pods": 1},
		},
		"a container's own limit is its request before the default is": {
			pod:    `{metadata: {namespace: n}, spec: {containers: [{name: a, resources: {limits: {cpu: "2"}}}]}}`,
			ranges: []string{`{metadata: {namespace: n}, spec: {limits: [{type: Container, defaultRequest: {cpu: 200m}}]}}`},
			want:   List{"cpu": 2000, "pods": 1},
		},
		"the default limit stands in for the default request, the maximum for the limit": {
			pod: `{metadata: {namespace: n}, spec: {containers: [{name: a}]}}`,
			ranges: []string{`{metadata: {namespace: n}, spec: {limits: [
				{type: Container, default: {cpu: 700m}, max: {memory: 900}, min: {ephemeral-storage: 30}},
				{type: Pod, max: {cpu: "1"}}]}}`},
			want:   List{"cpu": 700, "memory": 900, "ephemeral-storage": 30, "pods": 1},
			limits: "map[cpu:700m memory:900]",
		},
		"the first range by name wins": {
			pod: `{metadata: {namespace: n}, spec: {containers: [{name: a}]}}`,
			ranges: []string{
				`{metadata: {namespace: n, name: b}, spec: {limits: [{type: Container, defaultRequest: {cpu: "2"}}]}}`,
				`{metadata: {namespace: n, name: a}, spec: {limits: [{type: Container, defaultRequest: {cpu: "1"}}]}}`,
			},
			want: List{"cpu": 1000, "pods": 1},
		},
		"a range of another namespace does not apply": {
			pod:    `{metadata: {namespace: n}, spec: {containers: [{name: a}]}}`,
			ranges: []string{`{metadata: {namespace: other}, spec: {limits: [{type: Container, defaultRequest: {cpu: "2"}}]}}`},
			want:   List{"pods": 1},
		},
		"pod-level requests default to the containers', then to the pod's limits": {
			pod: `{metadata: {namespace: n}, spec: {resources: {limits: {cpu: "4", memory: 400}},
				containers: [{name: a, resources: {requests: {cpu: "1"}}}, {name: b, resources: {requests: {cpu: "1"}}}]}}`,
			want: List{"cpu": 2000, "memory": 400, "pods": 1},
		},
		"pod-level huge pages follow the containers' limits": {
			pod: `{metadata: {namespace: n}, spec: {resources: {requests: {cpu: "1"}},
				containers: [{name: a, resources: {limits: {hugepages-2Mi: 4Mi}, requests: {hugepages-2Mi: 4Mi}}}]}}`,
			want: List{"cpu": 1000, "hugepages-2Mi": 4 << 20, "pods": 1},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := parse[corev1.Pod](t, tc.pod)
			before := pod.DeepCopy()
			var ranges []*corev1.LimitRange
			for _, r := range tc.ranges {
				ranges = append(ranges, parse[corev1.LimitRange](t, r))
			}
			got := ApplyLimitRange(pod, ranges)
			if diff := cmp.Diff(tc.want, PodRequests(got)); diff != "" {
				t.Errorf("requests after ApplyLimitRange() (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("the pod changed (-want +got):\n%s", diff)
			}
			if tc.limits != "" {
				shown := map[corev1.ResourceName]string{}
				for k, q := range got.Spec.Containers[0].Resources.Limits {
					shown[k] = q.String()
				}
				if s := fmt.Sprint(shown); s != tc.limits {
					t.Errorf("limits = %s, want %s", s, tc.limits)
				}
			}
			if again := ApplyLimitRange(got, ranges); cmp.Diff(got, again) != "" {
				t.Errorf("a second application changes the pod:\n%s", cmp.Diff(got, again))
			}
		})
	}
}

// FuzzPodRequests holds the fast way against the library that kube-scheduler uses.
func FuzzPodRequests(f *testing.F) {
	f.Add("100m", "1Gi", "250m", "1", true)
	f.Add("100.5m", "1500m", "0.1", "9e18", false)
	f.Fuzz(func(t *testing.T, cpu1, mem1, cpu2, other string, bound bool) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		if bound {
			pod.Spec.NodeName = "n"
		}
		list := func(kv ...string) corev1.ResourceList {
			out := corev1.ResourceList{}
			for i := 0; i < len(kv); i += 2 {
				if q, err := resource.ParseQuantity(kv[i+1]); err == nil && q.Sign() >= 0 && len(kv[i+1]) < 40 {
					out[corev1.ResourceName(kv[i])] = q
				}
			}
			return out
		}
		pod.Spec.Containers = []corev1.Container{
			{Name: "a", Resources: corev1.ResourceRequirements{Requests: list("cpu", cpu1, "memory", mem1, "storage", "1")}},
			{Name: "b", Resources: corev1.ResourceRequirements{Requests: list("cpu", cpu2, "x.io/y", other, "memory", other)}},
		}
		want := List{}
		for name, q := range podresource.PodRequests(pod, podresource.PodResourcesOptions{UseStatusResources: bound}) {
			if name != "storage" {
				want[name] = Amount(name, q)
			}
		}
		want["pods"] = 1
		if diff := cmp.Diff(want, PodRequests(pod)); diff != "" {
			t.Errorf("PodRequests() (-library +got):\n%s", diff)
		}
	})
}

func BenchmarkPodRequests(b *testing.B) {
	for name, text := range map[string]string{
		"plain":   `{spec: {containers: [{name: a, resources: {requests: {cpu: 250m, memory: 1Gi}}}]}}`,
		"sidecar": `{spec: {initContainers: [{name: s, restartPolicy: Always, resources: {requests: {cpu: 50m}}}], containers: [{name: a, resources: {requests: {cpu: 250m, memory: 1Gi}}}]}}`,
	} {
		pod := parse[corev1.Pod](b, text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if PodRequests(pod)["cpu"] < 250 {
					b.Fatal("wrong amount")
				}
			}
		})
	}
}
