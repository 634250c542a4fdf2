package simulate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

// TestRun plans a cluster with something of everything: pods that go to a node that is
// there, to one that is bought, and nowhere.
func TestRun(t *testing.T) {
	in := load.Read([]load.Input{{Name: "a.yaml", Data: []byte(`
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: us-east-1a}}
status: {capacity: {cpu: "2", memory: 8Gi, pods: "110"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: stuck}
spec: {containers: [{name: a}], nodeSelector: {planet: mars}}
---
apiVersion: v1
kind: Pod
metadata: {name: gated}
spec: {containers: [{name: a}], schedulingGates: [{name: later}]}
---
apiVersion: v1
kind: Pod
metadata: {name: lost}
spec: {containers: [{name: a}], nodeName: gone}
`)}})
	var stages []string
	out, err := Run(t.Context(), in, Options{
		Now: time.Date(2025, 6, 4, 12, 0, 0, 0, time.UTC), Catalog: sim.Builtin(),
		Problems: []load.Problem{{Severity: load.Error, File: "catalog.yaml", Message: "of the catalogue"}},
		Progress: func(stage string) { stages = append(stages, stage) },
	})
	if err != nil {
		t.Fatal(err)
	}
	r := out.Report
	if r.Pods != (PodCounts{Pending: 4, OnNew: 2, OnExisting: 1, Unscheduled: 1}) {
		t.Errorf("pods %+v", r.Pods)
	}
	if len(r.Existing) != 1 || r.Existing[0].Name != "n1" || r.Existing[0].After["cpu"] != 75 {
		t.Errorf("existing nodes %+v, want n1 with 75 %% of its cpu", r.Existing)
	}
	if len(r.Unscheduled) != 1 || r.Unscheduled[0].Pod != "default/stuck" || !strings.Contains(fmt.Sprint(r.Unscheduled[0].Reasons), "planet") {
		t.Errorf("unscheduled %+v, want stuck for its label", r.Unscheduled)
	}
	if len(r.Pools) != 1 || r.Pools[0].Name != "default" || r.Pools[0].NewNodes != len(r.Nodes) {
		t.Errorf("pools %+v, want the assumed one", r.Pools)
	}
	var all strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintln(&all, p)
	}
	for _, want := range []string{
		"note: NodePool default: the input has no NodePool",
		"note: Pod default/gated: has scheduling gates",
		`error: a.yaml:27: Pod default/lost: spec.nodeName: node "gone" is not among the input`,
		"error: catalog.yaml: of the catalogue",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("problems lack %q:\n%s", want, all.String())
		}
	}
	if len(stages) != 2 || !strings.Contains(stages[1], "planning 4 pods on 1 existing node and 1 NodePool") {
		t.Errorf("stages %q", stages)
	}
}

func TestDefaultNodePool(t *testing.T) {
	np := DefaultNodePool(sim.KWOK())
	if err := np.RuntimeValidate(); err != nil {
		t.Errorf("the default NodePool is invalid: %v", err)
	}
	if len(np.Spec.Template.Spec.Requirements) >= len(DefaultNodePool(sim.Builtin()).Spec.Template.Spec.Requirements) {
		t.Error("the default NodePool asks KWOK's types for categories that they do not have")
	}
}

func TestRun_emptyPools(t *testing.T) {
	pool := func(name, requirements string) string {
		return "\n---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: " + name + "}\nspec: {template: {metadata: {labels: {team: blue}}, spec: {" +
			"nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}, requirements: [" + requirements + "]}}}"
	}
	in := load.Read([]load.Input{{Name: "a.yaml", Data: []byte(
		pool("good", "{key: karpenter.k8s.aws/instance-family, operator: In, values: [m5, nonesuch]}") +
			pool("family", "{key: karpenter.k8s.aws/instance-family, operator: In, values: [nonesuch]}") +
			pool("zone", "{key: topology.kubernetes.io/zone, operator: In, values: [eu-west-1a]}") +
			pool("together", "{key: karpenter.k8s.aws/instance-family, operator: In, values: [m5]}, {key: kubernetes.io/arch, operator: In, values: [arm64]}"))}})
	out, err := Run(t.Context(), in, Options{Catalog: sim.Builtin()})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range out.Report.Problems {
		got = append(got, p.String())
	}
	const req = ": spec.template.spec.requirements"
	want := []string{
		"error: a.yaml:8: NodePool family" + req + "[karpenter.k8s.aws/instance-family]: no instance type of the catalogue has ",
		"error: a.yaml:13: NodePool zone" + req + "[topology.kubernetes.io/zone]: no instance type of the catalogue has ",
		"error: a.yaml:18: NodePool together" + req + ": no instance type of the catalogue meets them all: this NodePool buys nothing",
	}
	if len(got) != len(want) {
		t.Fatalf("problems %q, want %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("problem %q, want it to begin with %q", got[i], want[i])
		}
	}
}
