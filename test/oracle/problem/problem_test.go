package problem

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/core/catalog"
)

func text(t *testing.T, p *Problem) string {
	t.Helper()
	b, err := json.Marshal(p.Objects)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestGenerate(t *testing.T) {
	features := map[string]int{}
	for seed := range uint64(400) {
		p := Generate(seed)
		if text(t, p) != text(t, Generate(seed)) {
			t.Fatalf("seed %d gives two problems", seed)
		}
		if _, errs := catalog.New(p.Types); len(errs) > 0 {
			t.Errorf("seed %d: catalogue: %v", seed, errs)
		}
		for _, pod := range p.Objects.Pods {
			s := &pod.Spec
			count := func(name string, has bool) {
				if has {
					features[name]++
				}
			}
			count("bound", s.NodeName != "")
			count("selector", s.NodeSelector != nil)
			count("tolerations", s.Tolerations != nil)
			count("priority", s.Priority != nil)
			count("init containers", s.InitContainers != nil)
			count("overhead", s.Overhead != nil)
			count("pod resources", s.Resources != nil)
			count("volumes", s.Volumes != nil)
			count("ports", len(s.Containers[0].Ports) > 0)
			if a := s.Affinity; a != nil {
				count("node affinity", a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil)
				count("preferred node affinity", a.NodeAffinity != nil && len(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0)
				count("pod affinity", a.PodAffinity != nil)
				count("pod anti-affinity", a.PodAntiAffinity != nil)
			}
			for _, c := range s.TopologySpreadConstraints {
				count("spread "+string(c.WhenUnsatisfiable), true)
				count("min domains", c.MinDomains != nil)
				count("match label keys", c.MatchLabelKeys != nil)
				count("taints policy", c.NodeTaintsPolicy != nil)
			}
		}
		for _, pool := range p.Objects.NodePools {
			if pool.Spec.Limits != nil {
				features["limits"]++
			}
			if slices.ContainsFunc(pool.Spec.Template.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectPreferNoSchedule }) {
				features["soft taint"]++
			}
		}
		if p.Options.DefaultSpread != nil {
			features["default spread"]++
		}
	}
	t.Log(features)
	for _, name := range []string{
		"bound", "selector", "tolerations", "priority", "init containers", "overhead", "pod resources", "volumes", "ports", "node affinity", "preferred node affinity",
		"pod affinity", "pod anti-affinity", "spread DoNotSchedule", "spread ScheduleAnyway", "min domains", "match label keys", "taints policy", "limits", "soft taint", "default spread",
	} {
		if features[name] < 20 {
			t.Errorf("%s: only %d times in 400 problems", name, features[name])
		}
	}
}

func TestDump(t *testing.T) {
	dir, p := t.TempDir(), Generate(3)
	if err := Dump(dir, 3, p); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "seed-3.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	pods := 0
	for doc := range strings.SplitSeq(strings.TrimPrefix(string(b), "---\n"), "\n---\n") {
		var o struct{ APIVersion, Kind string }
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil || o.APIVersion == "" {
			t.Fatalf("document is not a manifest (%v):\n%s", err, doc)
		}
		if o.Kind == "Pod" {
			pods++
		}
	}
	if pods != len(p.Objects.Pods) {
		t.Errorf("%d pods in the file, %d in the problem", pods, len(p.Objects.Pods))
	}
}
