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
