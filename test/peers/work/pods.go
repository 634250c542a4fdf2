package work

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GPU is the resource a pod of a trace asks for.
const GPU corev1.ResourceName = "nvidia.com/gpu"

// The sizes every generated pod draws from: millicores and MiB.
var (
	podCPU    = []int{100, 250, 500, 1000, 1500}
	podMemory = []int{100, 256, 512, 1024, 2048, 4096}
)

// labelValues are what the diverse pods' labels and selectors draw from.
var labelValues = []string{"a", "b", "c", "d", "e", "f", "g"}

// maker names pods by number, so that equal arguments give equal pods.
type maker struct{ pods []*corev1.Pod }

func (m *maker) add(labels map[string]string, requests corev1.ResourceList, change ...func(*corev1.PodSpec)) {
	n := len(m.pods)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("pod-%06d", n),
			Namespace: "default",
			UID:       types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)),
			Labels:    labels,
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name:      "main",
				Image:     "pause",
				Resources: corev1.ResourceRequirements{Requests: requests},
			}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			}},
		},
	}
	for _, c := range change {
		c(&p.Spec)
	}
	m.pods = append(m.pods, p)
}

func requests(cpu, memory int) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(cpu), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(memory)<<20, resource.BinarySI),
	}
}

// UniformPods are n pods without constraints, every combination of the sizes being
// equally likely.
func UniformPods(n int, seed uint32) []*corev1.Pod {
	t := newTwister(seed)
	var m maker
	for range n {
		cpu := podCPU[t.below(len(podCPU))]
		memory := podMemory[t.below(len(podMemory))]
		m.add(nil, requests(cpu, memory))
	}
	return m.pods
}

// DiversePods are n pods as Karpenter's own benchmark mixes them: a fifth each
// without constraints, spread over zones, spread over hosts, with affinity to pods of
// their zone, and with anti-affinity to each other on one host; what does not divide
// by five has no constraints. Spread pods count pods of a label value that need not be
// their own. Seed 42 draws the sizes and labels in that benchmark's order.
func DiversePods(n int, seed int64) []*corev1.Pod {
	r := rand.New(rand.NewSource(seed))
	value := func(key string) map[string]string {
		return map[string]string{key: labelValues[r.Intn(len(labelValues))]}
	}
	sizes := func() corev1.ResourceList {
		cpu := podCPU[r.Intn(len(podCPU))]
		return requests(cpu, podMemory[r.Intn(len(podMemory))])
	}
	var m maker
	generic := func(count int) {
		for range count {
			labels := value("my-label")
			m.add(labels, sizes())
		}
	}
	spread := func(count int, key string) {
		for range count {
			labels, selected := value("my-label"), value("my-label")
			m.add(labels, sizes(), func(s *corev1.PodSpec) {
				s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: selected},
				}}
			})
		}
	}
	each := n / 5
	generic(each)
	spread(each, corev1.LabelTopologyZone)
	spread(each, corev1.LabelHostname)
	for range each {
		labels := value("my-affininity") // the benchmark's spelling
		m.add(labels, sizes(), func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					LabelSelector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)}, TopologyKey: corev1.LabelTopologyZone,
				}},
			}}
		})
	}
	for range each {
		labels := map[string]string{"app": "nginx"}
		m.add(labels, sizes(), func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					LabelSelector: &metav1.LabelSelector{MatchLabels: maps.Clone(labels)}, TopologyKey: corev1.LabelHostname,
				}},
			}}
		})
	}
	generic(n - len(m.pods))
	return m.pods
}

// TracePods reads pods from CSV with a header that names at least the columns
// cpu_milli, memory_mib and num_gpu. A limit above zero ends the reading after so many
// pods. Errors name the line.
func TracePods(in io.Reader, limit int) ([]*corev1.Pod, error) {
	c := csv.NewReader(in)
	header, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("trace: header: %w", err)
	}
	column := map[string]int{}
	for i, name := range header {
		column[name] = i
	}
	var at [3]int
	for i, name := range []string{"cpu_milli", "memory_mib", "num_gpu"} {
		var ok bool
		if at[i], ok = column[name]; !ok {
			return nil, fmt.Errorf("trace: column %s is missing; have %q", name, header)
		}
	}
	var m maker
	for limit <= 0 || len(m.pods) < limit {
		row, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		line, _ := c.FieldPos(0)
		var v [3]int
		for i, col := range at {
			if v[i], err = strconv.Atoi(row[col]); err != nil || v[i] < 0 {
				return nil, fmt.Errorf("trace: line %d: %s is %q; want a whole number of at least 0", line, header[col], row[col])
			}
		}
		need := requests(v[0], v[1])
		if v[2] > 0 {
			need[GPU] = *resource.NewQuantity(int64(v[2]), resource.DecimalSI)
		}
		m.add(nil, need)
	}
	if len(m.pods) == 0 {
		return nil, errors.New("trace: no pods")
	}
	return m.pods, nil
}
