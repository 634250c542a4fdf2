package v1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodePool_Differences(t *testing.T) {
	made := func() *NodePool {
		p := &NodePool{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		t := &p.Spec.Template
		t.Labels = map[string]string{"team": "a", "stage": "one"}
		t.Annotations = map[string]string{"note": "x"}
		t.Spec.NodeClassRef = &NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
		t.Spec.Taints = []corev1.Taint{{Key: "b", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Value: "1", Effect: corev1.TaintEffectNoExecute}}
		t.Spec.Requirements = []Requirement{{Key: "example.com/tier", Operator: corev1.NodeSelectorOpIn, Values: []string{"gold", "silver"}}}
		t.Spec.ExpireAfter = DurationOf(time.Hour)
		return p
	}
	tests := map[string]struct {
		pool func(t *NodeClaimTemplate)
		// claim changes the claim that was made.
		claim func(c *NodeClaim)
		want  []string
	}{
		"nothing": {},
		"what a hash ignores": {pool: func(t *NodeClaimTemplate) {
			t.Spec.Taints[0], t.Spec.Taints[1] = t.Spec.Taints[1], t.Spec.Taints[0]
			t.Spec.Taints[0].TimeAdded = new(metav1.Now())
			t.Spec.StartupTaints = []corev1.Taint{}
			t.Spec.ExpireAfter = NillableDuration{Duration: new(time.Hour), Text: "60m"}
			t.Spec.Requirements = nil
		}, claim: func(c *NodeClaim) { delete(c.Labels, "example.com/tier") }},
		"what a launch adds": {claim: func(c *NodeClaim) {
			c.Labels["example.com/tier"], c.Labels[corev1.LabelTopologyZone], c.Labels["karpenter.k8s.aws/instance-cpu"] = "gold", "here", "4"
			for key, v := range map[string]string{"example.com/tier": "gold", corev1.LabelTopologyZone: "here", "karpenter.k8s.aws/instance-cpu": "4"} {
				c.Spec.Requirements = append(c.Spec.Requirements, Requirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{v}})
			}
			c.Annotations["karpenter.k8s.aws/ec2nodeclass-hash"], c.Annotations["policy.dovetail.sh/fallback-from"] = "1", "{}"
		}},
		"labels": {
			pool: func(t *NodeClaimTemplate) { t.Labels = map[string]string{"team": "b", "new": "n"} },
			want: []string{
				`spec.template.metadata.labels[new]: none -> "n"`, `spec.template.metadata.labels[stage]: "one" -> none`, `spec.template.metadata.labels[team]: "a" -> "b"`,
			},
		},
		"annotations": {
			pool: func(t *NodeClaimTemplate) { t.Annotations = map[string]string{"other": ""} },
			want: []string{`spec.template.metadata.annotations[note]: "x" -> none`, `spec.template.metadata.annotations[other]: none -> ""`},
		},
		"taints": {
			pool: func(t *NodeClaimTemplate) { t.Spec.Taints, t.Spec.StartupTaints = t.Spec.Taints[:1], t.Spec.Taints[1:] },
			want: []string{"spec.template.spec.taints: a=1:NoExecute, b:NoSchedule -> b:NoSchedule", "spec.template.spec.startupTaints: none -> a=1:NoExecute"},
		},
		"the NodeClass": {
			pool: func(t *NodeClaimTemplate) { t.Spec.NodeClassRef.Name = "gpu" },
			want: []string{"spec.template.spec.nodeClassRef: EC2NodeClass.karpenter.k8s.aws/default -> EC2NodeClass.karpenter.k8s.aws/gpu"},
		},
		"durations": {
			pool: func(t *NodeClaimTemplate) {
				t.Spec.TerminationGracePeriod, t.Spec.ExpireAfter = &metav1.Duration{Duration: time.Minute}, NillableDuration{}
			},
			want: []string{"spec.template.spec.terminationGracePeriod: none -> 1m0s", "spec.template.spec.expireAfter: 1h0m0s -> Never"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := made().NewClaim()
			if tt.claim != nil {
				tt.claim(c)
			}
			p := made()
			if tt.pool != nil {
				tt.pool(&p.Spec.Template)
			}
			var got []string
			for _, d := range p.Differences(c) {
				got = append(got, d.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Differences() (-want +got):\n%s", diff)
			}
			// Differences explain exactly the hashes that differ.
			if same := p.Hash() == c.Annotations[NodePoolHashAnnotationKey]; same != (len(got) == 0) {
				t.Errorf("the hashes are equal: %t, with %d differences", same, len(got))
			}
		})
	}
}
