package chart_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/test/cluster"
)

// karpenterDefinitions are Karpenter's own CustomResourceDefinitions.
func karpenterDefinitions(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "sigs.k8s.io/karpenter")
	cmd.Dir, cmd.Env = "../tools/karpenter", append(os.Environ(), "GOTOOLCHAIN=go1.27.3")
	out, err := cmd.Output()
	var module struct{ Dir string }
	if err == nil {
		err = json.Unmarshal(out, &module)
	}
	if err != nil {
		t.Fatalf("Karpenter's module: %v", err)
	}
	var all []string
	for _, pattern := range []string{"pkg/apis/crds/*.yaml", "kwok/apis/crds/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(module.Dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s in Karpenter's module: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(text))
		}
	}
	return strings.Join(all, "\n---\n")
}

// karpenterPools are pools with what Karpenter writes on them.
const karpenterPools = `
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  weight: 10
  limits: {cpu: 1000}
  disruption: {consolidationPolicy: WhenEmpty, consolidateAfter: 0s, budgets: [{nodes: "100%"}]}
  template:
    metadata: {labels: {team: web}, annotations: {example.com/owner: platform}}
    spec:
      expireAfter: 720h
      terminationGracePeriod: 24h
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m6a.xlarge, m6a.2xlarge]}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: batch}
spec:
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 1h}
  template:
    spec:
      expireAfter: Never
      taints: [{key: batch, value: "yes", effect: NoSchedule}]
      startupTaints: [{key: example.com/agent, effect: NoSchedule}]
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
      - {key: node.kubernetes.io/instance-type, operator: In, values: [m6a.xlarge]}
`

// karpenterPods fill the nodes: ten on each.
const karpenterPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {karpenter.sh/nodepool: %[1]s}
      tolerations: [{key: batch, operator: Exists}]
      containers: [{name: main, image: example.com/pause, resources: {requests: {cpu: 380m, memory: 1Gi}}}]
---
`

// playKarpenter makes n nodes of a pool as Karpenter 1.15 leaves them, with machines of
// the simulated cloud behind them.
func playKarpenter(t *testing.T, pool string, n int) {
	t.Helper()
	ctx := t.Context()
	var np karpv1.NodePool
	if err := world.client.Get(ctx, client.ObjectKey{Name: pool}, &np); err != nil {
		t.Fatal(err)
	}
	before := np.DeepCopy()
	np.Annotations = map[string]string{karpv1.NodePoolHashAnnotationKey: np.Hash(), karpv1.NodePoolHashVersionAnnotationKey: karpv1.NodePoolHashVersion}
	if err := world.client.Patch(ctx, &np, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	quantities := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	capacityType := "on-demand"
	if pool == "batch" {
		capacityType = "spot"
	}
	for i := range n {
		name := fmt.Sprintf("%s-%05d", pool, i)
		id := fmt.Sprintf("i-%s%05d", pool, i)
		provider := "sim:///us-east-1a/" + id
		machine := map[string]string{
			corev1.LabelInstanceTypeStable: "m6a.xlarge", corev1.LabelTopologyZone: "us-east-1a", karpv1.CapacityTypeLabelKey: capacityType,
			corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		}
		claim := np.NewClaim()
		claim.Name, claim.GenerateName = name, ""
		claim.Finalizers = []string{karpv1.TerminationFinalizer}
		for k, v := range machine {
			claim.Labels[k] = v
		}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3800m"), corev1.ResourceMemory: resource.MustParse("10Gi"), corev1.ResourcePods: resource.MustParse("10")}
		// What Create returns has no status.
		stored := claim.DeepCopy()
		if err := world.client.Create(ctx, stored); err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelHostname: name, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}, Annotations: map[string]string{},
			Finalizers:      []string{karpv1.TerminationFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: name, UID: stored.UID, BlockOwnerDeletion: new(true)}},
		}}
		for k, v := range claim.Labels {
			node.Labels[k] = v
		}
		for k, v := range claim.Annotations {
			node.Annotations[k] = v
		}
		node.Spec = corev1.NodeSpec{ProviderID: provider, Taints: claim.Spec.Taints}
		node.Status = corev1.NodeStatus{Capacity: quantities, Allocatable: quantities}
		if err := world.client.Create(ctx, node); err != nil {
			t.Fatal(err)
		}
		in := &v1alpha1.SimInstance{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: v1alpha1.SimInstanceSpec{
			Claim: v1alpha1.SimClaim{Name: name, UID: string(stored.UID)}, NodePool: pool, NodeClass: "default",
			InstanceType: "m6a.xlarge", Zone: "us-east-1a", CapacityType: capacityType, Price: "0.1728", ProviderID: provider,
			Labels: machine, Capacity: quantities, Allocatable: quantities, LaunchTime: metav1.NowMicro(),
		}}
		if err := world.client.Create(ctx, in); err != nil {
			t.Fatal(err)
		}
		now := metav1.NowMicro()
		in.Status = v1alpha1.SimInstanceStatus{Phase: v1alpha1.SimRunning, NodeName: name, RunningTime: &now, NodeTime: &now}
		if err := world.client.Status().Update(ctx, in); err != nil {
			t.Fatal(err)
		}
		stored.Status.NodeName, stored.Status.ProviderID, stored.Status.ImageID = name, provider, "ami-1"
		stored.Status.Capacity, stored.Status.Allocatable = quantities, quantities
		for _, c := range []string{"Launched", "Registered", "Initialized", "ConsistentStateFound", "Ready"} {
			stored.Status.Conditions = append(stored.Status.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue, Reason: c, LastTransitionTime: metav1.Now(), ObservedGeneration: 1})
		}
		if err := world.client.Status().Update(ctx, stored); err != nil {
			t.Fatal(err)
		}
	}
}

// seen is what must not change: all that decides about an object's future.
type seen struct {
	UID, Generation, Labels, Annotations, Finalizers, Rest string
	Going                                                  bool
}

func see(o client.Object, rest any) seen {
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return seen{string(o.GetUID()), fmt.Sprint(o.GetGeneration()), text(o.GetLabels()), text(o.GetAnnotations()), text(o.GetFinalizers()), text(rest), o.GetDeletionTimestamp() != nil}
}

// look returns all pools, claims, nodes and pods.
func look(t *testing.T) map[string]seen {
	t.Helper()
	out := map[string]seen{}
	for _, o := range list(t, &karpv1.NodePoolList{}).Items {
		out["pool "+o.Name] = see(&o, o.Spec)
	}
	for _, o := range list(t, &karpv1.NodeClaimList{}).Items {
		conditions := map[string]metav1.ConditionStatus{}
		for _, c := range o.Status.Conditions {
			// Consolidatable is written and taken back all the time.
			if c.Type != "Consolidatable" {
				conditions[c.Type] = c.Status
			}
		}
		out["claim "+o.Name] = see(&o, []any{o.Spec, conditions, o.Status.ProviderID, o.Status.NodeName})
	}
	for _, o := range list(t, &corev1.NodeList{}, client.HasLabels{karpv1.NodePoolLabelKey}).Items {
		out["node "+o.Name] = see(&o, o.Spec)
	}
	for _, o := range list(t, &corev1.PodList{}, client.InNamespace("default")).Items {
		s := see(&o, []any{o.Spec.NodeName, o.Status.Phase})
		s.Generation = "" // of no meaning for pods
		out["pod "+o.Name] = s
	}
	return out
}

// TestMigration takes a cluster of 50 nodes and 500 pods from Karpenter to Dovetail and
// back: nobody notices. Karpenter is played, with its own CustomResourceDefinitions: a
// simulated machine can only belong to one of two simulated clouds.
func TestMigration(t *testing.T) {
	c := shared.Get(t)
	definitions := karpenterDefinitions(t)
	kubectl(t, c, definitions, "apply", "--server-side", "-f", "-")
	t.Cleanup(func() { kubectl(t, c, definitions, "delete", "-f", "-", "--ignore-not-found", "--timeout=60s") })
	kubectl(t, c, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	restricted(t, c)
	// As README.md says: beside Karpenter, without a replica, which changes nothing yet.
	install(t, c, "sim: {standIns: [{group: karpenter.kwok.sh, version: v1alpha1, kind: KWOKNodeClass, plural: kwoknodeclasses}]}", "--set", "replicas=0")

	kubectl(t, c, karpenterPools, "apply", "-f", "-")
	for pool, n := range map[string]int{"general": 40, "batch": 10} {
		playKarpenter(t, pool, n)
		kubectl(t, c, fmt.Sprintf(karpenterPods, pool, 10*n), "apply", "-f", "-")
	}
	eventually(t, "500 pods run", func() error {
		out := kubectl(t, c, "", "get", "pods", "-n", "default", "--field-selector=status.phase=Running", "-o", "name")
		if n := len(strings.Fields(out)); n != 500 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	for _, name := range []string{"nodepools.karpenter.sh", "nodeclaims.karpenter.sh"} {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := world.client.Get(t.Context(), client.ObjectKey{Name: name}, &crd); err != nil {
			t.Fatal(err)
		}
		if crd.Annotations["meta.helm.sh/release-name"] != "" || crd.Annotations["dovetail.sh/revision"] != "" {
			t.Errorf("Karpenter's definition %s is not as it was: %v", name, crd.Annotations)
		}
	}
	before := look(t)
	if len(before) != 2+50+50+500 {
		t.Fatalf("%d objects", len(before))
	}
	same := func(when string) {
		t.Helper()
		if diff := cmp.Diff(before, look(t)); diff != "" {
			t.Fatalf("%s (-before +after):\n%s", when, diff)
		}
	}

	scale(t, c, 1)
	eventually(t, "Dovetail has looked at the pools", func() error {
		out := kubectl(t, c, "", "get", "nodepools", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {.status.nodes} {end}`)
		if want := "True 10 True 40"; strings.TrimSpace(out) != want {
			return fmt.Errorf("%s, want %s", out, want)
		}
		return nil
	})
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		same("after Dovetail took over")
	}
	text, err := os.ReadFile(world.node.Log(namespace, podName(t), "controller"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if strings.Contains(line, `"level":"error"`) {
			t.Errorf("Dovetail has trouble with Karpenter's objects: %s", line)
		}
	}

	// It is in charge: a pod more is a node more, and a claim of Karpenter's can go.
	kubectl(t, c, "", "delete", "nodeclaim", "batch-00003", "--wait=false")
	kubectl(t, c, "", "scale", "deployment", "general", "-n", "default", "--replicas=401")
	eventually(t, "there is a node more", func() error {
		for _, o := range list(t, &karpv1.NodeClaimList{}).Items {
			if _, old := before["claim "+o.Name]; !old && o.Status.NodeName != "" {
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	eventually(t, "the claim is gone, and its node", func() error {
		if out := kubectl(t, c, "", "get", "nodes,nodeclaims", "-l", "karpenter.sh/nodepool=batch", "-o", "name"); strings.Contains(out, "/batch-00003\n") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})

	// And back: the Lease is free at once, and Karpenter finds its objects as they were.
	scale(t, c, 0)
	eventually(t, "the Lease is free", func() error {
		var lease coordinationv1.Lease
		if err := world.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "karpenter-leader-election"}, &lease); err != nil {
			return err
		}
		if h := lease.Spec.HolderIdentity; h != nil && *h != "" {
			return fmt.Errorf("held by %s", *h)
		}
		return nil
	})
	after := look(t)
	for name, want := range before {
		kind, _, _ := strings.Cut(name, " ")
		if got, ok := after[name]; kind != "pod" && !strings.HasSuffix(name, " batch-00003") && (!ok || got != want) {
			t.Errorf("%s (-before +after):\n%s", name, cmp.Diff(want, got))
		}
	}
	checkClaims(t, before)
}

// checkClaims holds claims that Dovetail made to those of Karpenter: what the one writes,
// the other reads.
func checkClaims(t *testing.T, before map[string]seen) {
	t.Helper()
	for _, o := range list(t, &karpv1.NodeClaimList{}).Items {
		if _, old := before["claim "+o.Name]; old {
			continue
		}
		for _, key := range []string{karpv1.NodePoolLabelKey, karpv1.CapacityTypeLabelKey, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, corev1.LabelArchStable, corev1.LabelOSStable, "karpenter.kwok.sh/kwoknodeclass"} {
			if o.Labels[key] == "" {
				t.Errorf("claim %s has no label %s", o.Name, key)
			}
		}
		for _, key := range []string{karpv1.NodePoolHashAnnotationKey, karpv1.NodePoolHashVersionAnnotationKey} {
			if o.Annotations[key] == "" {
				t.Errorf("claim %s has no annotation %s", o.Name, key)
			}
		}
		if len(o.Finalizers) != 1 || o.Finalizers[0] != karpv1.TerminationFinalizer || len(o.OwnerReferences) != 1 || o.OwnerReferences[0].Kind != "NodePool" {
			t.Errorf("claim %s has finalizers %v and owners %v", o.Name, o.Finalizers, o.OwnerReferences)
		}
	}
}

// scale sets the replicas of the controller, and waits.
func scale(t *testing.T, c *cluster.Cluster, n int) {
	t.Helper()
	kubectl(t, c, "", "scale", "deployment", "dovetail", "-n", namespace, fmt.Sprintf("--replicas=%d", n))
	eventually(t, fmt.Sprintf("%d replicas", n), func() error {
		d := deployment(t)
		if d.Status.ReadyReplicas != int32(n) || d.Status.Replicas != int32(n) || len(list(t, &corev1.PodList{}, client.InNamespace(namespace)).Items) != n {
			return fmt.Errorf("%+v", d.Status)
		}
		return nil
	})
}

func podName(t *testing.T) string {
	t.Helper()
	pods := list(t, &corev1.PodList{}, client.InNamespace(namespace)).Items
	if len(pods) != 1 {
		t.Fatalf("%d pods", len(pods))
	}
	return pods[0].Name
}
