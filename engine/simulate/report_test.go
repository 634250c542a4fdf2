package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/core/resources"
	"github.com/dovetail-sh/dovetail/engine/core/schedule"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
	"github.com/dovetail-sh/dovetail/engine/simulate/load"
)

const gib = int64(1) << 30

func key(name string) snapshot.PodKey { return snapshot.PodKey{Namespace: "default", Name: name} }

func newPlanNode(n int, typ string, cost schedule.Offer, pods ...snapshot.PodKey) schedule.NewNode {
	cost.InstanceType = typ
	return schedule.NewNode{
		Name: fmt.Sprintf("main/%d", n), Pool: "main", Planned: cost, Pods: pods,
		Requests: resources.List{"cpu": 1500, "memory": 4 * gib, "pods": int64(len(pods))}, Daemons: resources.List{"cpu": 100},
		Allocatable: resources.List{"cpu": 2000, "memory": 8 * gib, "pods": 110, "nvidia.com/gpu": 0},
	}
}

// fixture is a plan with two new nodes, one existing node that is used, and two pods
// of one workload without a node.
func fixture() (*snapshot.Snapshot, schedule.Plan, Labels) {
	snap := &snapshot.Snapshot{
		Pools: []*snapshot.Pool{{Name: "main", Weight: 10}, {Name: "old", Unusable: "it is being deleted"}},
		Nodes: []*snapshot.Node{
			{Name: "n1", Pool: "main", Allocatable: resources.List{"cpu": 4000, "memory": 8 * gib}, Used: resources.List{"cpu": 1000}, DaemonReserve: resources.List{"cpu": 1000}},
			{Name: "n2", Allocatable: resources.List{"cpu": 4000}, Used: resources.List{}},
		},
		Classes: []*snapshot.Class{{Requests: resources.List{"cpu": 1000, "memory": gib}}},
	}
	for _, name := range []string{"a", "b", "c", "d", "x1", "x2"} {
		snap.Pods = append(snap.Pods, snapshot.Pod{Key: key(name)})
	}
	why := []schedule.Reason{{Code: "NodePoolLimit", Pool: "main", Key: "cpu", Hint: "raise the limit"}}
	spot := schedule.Offer{Zone: "z1", CapacityType: "spot", Cost: 31_250}
	plan := schedule.Plan{
		Assignments: []schedule.Assignment{{Pod: key("a"), Node: "main/0", New: true}, {Pod: key("b"), Node: "main/1", New: true},
			{Pod: key("c"), Node: "main/1", New: true}, {Pod: key("d"), Node: "n1"}},
		NewNodes:    []schedule.NewNode{newPlanNode(0, "m.2", spot, key("a")), newPlanNode(1, "m.4", schedule.Offer{Zone: "z2", CapacityType: "on-demand", Cost: 200_000}, key("b"), key("c"))},
		Unscheduled: []schedule.Unscheduled{{Pod: key("x1"), Reasons: why}, {Pod: key("x2"), Reasons: why}},
		Cost:        231_250, Bound: 220_000,
	}
	return snap, plan, Labels{
		Workload: func(k snapshot.PodKey) (string, string) {
			if k.Name[0] == 'x' {
				return "Deployment", "x"
			}
			return "", ""
		},
		Problems: []load.Problem{{Severity: load.Note, Message: "a note"}, {Severity: load.Error, File: "a.yaml", Line: 3, Kind: "Pod", Name: "p", Message: "wrong"}},
	}
}

func TestReport_WriteTable(t *testing.T) {
	snap, plan, labels := fixture()
	r := NewReport(snap, plan, labels)
	var b bytes.Buffer
	if err := r.WriteTable(&b, TableOptions{}); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`6 pods pending: 3 on 2 new nodes, 1 on 1 existing node, 2 unscheduled

NODE    TYPE  ZONE  CAPACITY   $/HOUR  PODS  CPU   MEMORY
main/0  m.2   z1    spot       0.0312  1     80 %%  50 %%
main/1  m.4   z2    on-demand  0.20    2     80 %%  50 %%

Cost of the new nodes: $0.2313 an hour, $168.81 a month (730 h).
The plan is within 5.1 %% of the bound: nothing below $0.22 an hour holds these pods.

Existing nodes that get pods:
NODE  POOL  PODS  CPU        MEMORY
n1    main  +1    50 → 75 %%  0 → 12 %%

Unscheduled:
  2 pods of Deployment default/x, such as default/x1
    - %s

Problems:
  a.yaml:3: Pod p: wrong

Notes:
  a note
`, plan.Unscheduled[0].Reasons[0].String())
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("WriteTable() (-want +got):\n%s", diff)
	}
}

func TestReport_json(t *testing.T) {
	snap, plan, labels := fixture()
	raw, err := json.Marshal(NewReport(snap, plan, labels))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Cost  struct{ Hourly, Monthly, Bound, AboveBound float64 }
		Pods  map[string]int
		Nodes []struct {
			Name, InstanceType, Zone, CapacityType string
			Price                                  float64
			Pods                                   []string
			Utilisation                            map[string]struct {
				Pods, Daemons, Allocatable string
				Percent                    float64
			}
		}
		Unscheduled []struct {
			Pod, Workload string
			Reasons       []struct{ Code, Pool, Hint, Text string }
		}
		Existing []struct{ Name string }
		Pools    []struct {
			Name, Unusable string
			NewNodes       int
			Hourly         float64
		}
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.Cost.Hourly != 0.23125 || got.Cost.Bound != 0.22 || got.Cost.Monthly != 168.81 || got.Cost.AboveBound != 5.11 {
		t.Errorf("cost %+v", got.Cost)
	}
	if len(got.Nodes) != 2 || got.Nodes[0].Price != 0.03125 || got.Nodes[0].Utilisation["cpu"].Percent != 80 || got.Nodes[0].Utilisation["memory"].Pods != "4Gi" {
		t.Errorf("nodes %+v", got.Nodes)
	}
	if len(got.Unscheduled) != 2 || got.Unscheduled[1].Pod != "default/x2" || got.Unscheduled[0].Reasons[0].Code != "NodePoolLimit" || got.Unscheduled[0].Workload != "Deployment default/x" {
		t.Errorf("unscheduled %+v", got.Unscheduled)
	}
	if len(got.Existing) != 1 || got.Existing[0].Name != "n1" {
		t.Errorf("existing %+v", got.Existing)
	}
	if len(got.Pools) != 2 || got.Pools[0].NewNodes != 2 || got.Pools[0].Hourly != 0.23125 || got.Pools[1].Unusable == "" {
		t.Errorf("pools %+v", got.Pools)
	}
	// Programs count on arrays that are there even when empty.
	raw, err = json.Marshal(NewReport(&snapshot.Snapshot{}, schedule.Plan{}, Labels{}))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cost":{"hourly":0,"monthly":0,"bound":0},"pods":{"pending":0,"onNew":0,"onExisting":0,"unscheduled":0},` +
		`"nodes":[],"existing":[],"unscheduled":[],"pools":[],"problems":[]}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Errorf("JSON of an empty plan (-want +got):\n%s", diff)
	}
}

func TestReport_groups(t *testing.T) {
	var plan schedule.Plan
	for i := range 30 {
		offer := schedule.Offer{Zone: "z1", CapacityType: "on-demand", Cost: 100_000}
		typ := "small"
		if i%10 == 0 {
			offer.Cost, typ = 2_000_000, "large"
		}
		pods := []snapshot.PodKey{key(fmt.Sprint("p", i))}
		if i == 1 {
			pods = append(pods, key("one-more"))
		}
		plan.NewNodes = append(plan.NewNodes, newPlanNode(i, typ, offer, pods...))
	}
	r := NewReport(&snapshot.Snapshot{}, plan, Labels{})
	var b bytes.Buffer
	if err := r.WriteTable(&b, TableOptions{}); err != nil {
		t.Fatal(err)
	}
	want := `
NODES  POOL  TYPE   ZONE  CAPACITY   $/HOUR EACH  PODS EACH  CPU   MEMORY
3      main  large  z1    on-demand  2.00         1          80 %  50 %
27     main  small  z1    on-demand  0.10         1-2        80 %  50 %
`
	if !bytes.Contains(b.Bytes(), []byte(want)) {
		t.Errorf("WriteTable() gave\n%s\nwant in it\n%s", b.String(), want)
	}
	b.Reset()
	if err := r.WriteTable(&b, TableOptions{Wide: true}); err != nil {
		t.Fatal(err)
	}
	if got := bytes.Count(b.Bytes(), []byte("\nmain/")); got != 60 { // a row and a list of pods each
		t.Errorf("WriteTable(wide) has %d lines that begin with a node, want 60:\n%s", got, b.String())
	}
}

func TestMoney(t *testing.T) {
	for f, want := range map[float64]string{0: "0.00", 0.2: "0.20", 0.085: "0.085", 0.03125: "0.0312", 0.05796: "0.058", 0.002: "0.002", 12.5: "12.50", 7046.123: "7,046.12", 1234567.8: "1,234,567.80", 100: "100.00"} {
		if got := money(f); got != want {
			t.Errorf("money(%v) = %s, want %s", f, got, want)
		}
	}
}
