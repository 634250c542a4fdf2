package sim_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/cloud"
)

// BenchmarkLaunch buys from the 16140 offerings of EC2.
func BenchmarkLaunch(b *testing.B) {
	var preferred []cloud.Offering
	var names []string
	for _, size := range []string{"large", "xlarge", "2xlarge"} {
		for _, family := range []string{"m5", "c5", "r5", "m6i", "c6i"} {
			names = append(names, family+"."+size)
			for _, zone := range []string{"us-east-1a", "us-east-1b"} {
				preferred = append(preferred, cloud.Offering{InstanceType: family + "." + size, Zone: zone, CapacityType: "spot"})
			}
		}
	}
	planned := func(name string) *karpv1.NodeClaim {
		c := claim(name, in(corev1.LabelInstanceTypeStable, names...), in(karpv1.CapacityTypeLabelKey, "spot", "on-demand"), in(corev1.LabelArchStable, "amd64"))
		c.Annotations = map[string]string{cloud.PreferredAnnotation: cloud.FormatPreferred(preferred)}
		return c
	}
	for _, bb := range []struct {
		name  string
		claim func(string) *karpv1.NodeClaim
	}{
		{"planned", planned},
		{"anything", func(name string) *karpv1.NodeClaim { return claim(name) }},
	} {
		b.Run(bb.name, func(b *testing.B) {
			w := newWorld(b, "{catalog: {builtin: ec2}}")
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				if _, err := w.provider.Launch(b.Context(), bb.claim(fmt.Sprint("c", i))); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
