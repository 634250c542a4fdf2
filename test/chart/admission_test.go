package chart_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// rule is a NodePolicy of hook admit that denies NodePools with a label.
func rule(name, label string) string {
	return fmt.Sprintf(`
apiVersion: dovetail.sh/v1alpha1
kind: NodePolicy
metadata: {name: %[1]s, labels: {test: admission}}
spec:
  hook: admit
  mode: Enforce
  runtime: rego
  source:
    inline: |
      package dovetail.admit.%[2]s

      deny contains {"code": "label", "msg": "label %[3]s is not for NodePools"} if input.object.metadata.labels[%[3]q]
---
`, name, strings.ReplaceAll(name, "-", "_"), label)
}

func relabel(key, value string) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"labels":{%q:%q}}}}}`, key, value))
}

// quick changes a NodePool again and again so that its node drifts, with ten policies in
// force, and says how long the API server took to answer. What is promised is that one in a
// hundred takes 50 ms; the limit here leaves room for a machine that has other work.
func quick(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	const shipped, requests = 2, 60
	if n := len(strings.Fields(kubectl(t, c, "", "get", "nodepolicies", "-o", `jsonpath={.items[?(@.spec.hook=="admit")].metadata.name}`))); n != shipped {
		t.Fatalf("the chart puts %d admit policies in force, want %d", n, shipped)
	}
	var all strings.Builder
	for i := range 10 - shipped {
		all.WriteString(rule(fmt.Sprintf("small-%d", i), fmt.Sprintf("never-%d", i)))
	}
	kubectl(t, c, all.String(), "apply", "-f", "-")
	defer kubectl(t, c, "", "delete", "nodepolicies", "-l", "test=admission")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "nodepolicies", "-l", "test=admission", "--timeout=30s")
	var took []time.Duration
	for i := range requests {
		np := &karpv1.NodePool{}
		np.Name = "default"
		begin := time.Now()
		if err := world.client.Patch(t.Context(), np, relabel("try", fmt.Sprint(i)), client.DryRunAll); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(begin))
		time.Sleep(20 * time.Millisecond)
	}
	slices.Sort(took)
	p50, p99 := took[requests/2], took[requests*99/100]
	t.Logf("a NodePool is admitted by 10 policies in %s at the median, %s at the 99th percentile", p50.Round(100*time.Microsecond), p99.Round(100*time.Microsecond))
	if p50 > 250*time.Millisecond {
		t.Errorf("half of the requests took more than %s", p50)
	}
}

// unanswered changes NodePools while no replica runs: they are stored, and policies judge
// them as soon as one does.
func unanswered(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	kubectl(t, c, rule("no-label", "forbidden"), "apply", "-f", "-")
	defer kubectl(t, c, "", "delete", "nodepolicy", "no-label")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "nodepolicy/no-label", "--timeout=30s")
	pool := func(name string) *karpv1.NodePool {
		np := &karpv1.NodePool{}
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: "default"}, np); err != nil {
			t.Fatal(err)
		}
		out := &karpv1.NodePool{Spec: np.Spec}
		out.Name, out.Labels = name, map[string]string{"forbidden": "yes"}
		return out
	}
	eventually(t, "a replica runs that refuses it", func() error {
		err := world.client.Create(t.Context(), pool("late"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "label forbidden is not for NodePools") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	scale(t, c, 0)
	if err := world.client.Create(t.Context(), pool("late")); err != nil {
		t.Errorf("while none runs: %v", err)
	}

	// With Fail nobody may change NodePools, but the controller itself.
	policy := func(p string) {
		t.Helper()
		patch := fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":%[1]q},{"op":"replace","path":"/webhooks/1/failurePolicy","value":%[1]q}]`, p)
		kubectl(t, c, "", "patch", "validatingwebhookconfiguration", "dovetail", "--type=json", "-p", patch)
	}
	policy("Fail")
	eventually(t, "users are refused", func() error {
		err := world.client.Create(t.Context(), pool("later"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	config := c.RESTConfig()
	config.Impersonate.UserName = account
	self, err := client.New(config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	np := &karpv1.NodePool{}
	np.Name = "late"
	if err := self.Patch(t.Context(), np, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"karpenter.sh/nodepool-hash":"1"}}}`)), client.DryRunAll); err != nil {
		t.Errorf("the controller is locked out: %v", err)
	}
	policy("Ignore")

	scale(t, c, 1)
	eventually(t, "the policy judges what was stored", func() error {
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: "late"}, np); err != nil {
			return err
		}
		if cond := np.Conditions().Get(karpv1.ConditionPolicyAdmitted); cond == nil || cond.Status != "False" || !strings.Contains(cond.Message, "label forbidden is not for NodePools") {
			return fmt.Errorf("%+v", cond)
		}
		return nil
	})
	kubectl(t, c, "", "delete", "nodepool", "late")
}
