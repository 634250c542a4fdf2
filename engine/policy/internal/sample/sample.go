// Package sample makes policy inputs: those that policies are tested with before they take
// force, and those of tests and benchmarks.
package sample

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

// Now is Wednesday 2026-06-03 12:00 UTC.
func Now() policy.Now {
	return policy.Now{UTC: "2026-06-03T12:00:00Z", Unix: 1780488000, Weekday: "Wednesday", Hour: 12}
}

func meta() policy.Meta {
	return policy.Meta{
		APIVersion: policy.APIVersion, Cluster: policy.Cluster{Name: "test", Region: "eu-central-1"},
		SnapshotRevision: "1", PlanID: "p1", Now: Now(), Parameters: map[string]any{},
	}
}

// Pool is a NodePool.
func Pool(name string) policy.NodePool {
	cpu := int64(1_000_000)
	seven := int64(7 * 24 * 3600)
	return policy.NodePool{
		Name: name, Labels: map[string]string{"team": "shop", "tier": "batch"}, Annotations: map[string]string{},
		Weight: 10, Limits: policy.Amounts{CPU: &cpu}, Nodes: 20, HourlyCost: 4_000_000, Budgets: []policy.Budget{},
		Disruption: policy.Disruption{ConsolidationPolicy: "WhenEmptyOrUnderutilized", ExpireAfterSeconds: &seven},
	}
}

var (
	families = []string{"t3", "m5", "m6i", "m7i", "m7g", "c5", "c6i", "c7i", "c7g", "r5", "r6i", "r7i", "r7g", "x2idn", "p4d"}
	sizes    = []string{"medium", "large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "metal"}
	cpus     = []int64{2, 2, 4, 8, 16, 32, 48, 64, 96, 96}
)

// Types are kinds of machines, up to 10 for each of 15 families, then again with numbers.
func Types(n int) []*policy.InstanceType {
	out := make([]*policy.InstanceType, n)
	for i := range out {
		f, s := families[i/len(sizes)%len(families)], i%len(sizes)
		if k := i / (len(sizes) * len(families)); k > 0 {
			f += "v" + strconv.Itoa(k)
		}
		arch, maker := "amd64", "intel"
		if f[len(f)-1] == 'g' {
			arch, maker = "arm64", "aws"
		}
		gen, _ := strconv.Atoi(f[1:2])
		it := &policy.InstanceType{
			Name: f + "." + sizes[s], Family: f, Generation: gen, Size: sizes[s], Arch: arch, OS: []string{"linux"},
			Manufacturer: maker, CPU: cpus[s] * 1000, Memory: cpus[s] * 4096, Pods: 110, Network: 10_000,
			Burstable: f[0] == 't', BareMetal: sizes[s] == "metal",
			Labels: map[string]string{"node.kubernetes.io/instance-type": f + "." + sizes[s]},
		}
		if f == "p4d" {
			it.GPU = &policy.GPU{Name: "a100", Count: 8, Memory: 40960}
		}
		out[i] = it
	}
	return out
}

// Score is an input of hook score with that many rows: three zones, on-demand and spot.
func Score(rows int) *policy.ScoreInput {
	types := Types((rows + 5) / 6)
	out := make([]policy.OfferingRow, 0, rows)
	for i := range rows {
		it := types[i/6]
		price := it.CPU * 48
		kind := "on-demand"
		if i%2 == 1 {
			kind = "spot"
		}
		od, spot := price, price*2/5
		list := od
		if kind == "spot" {
			list = spot
		}
		rate := int64(i % 7 * 10)
		out = append(out, policy.OfferingRow{
			InstanceType: it,
			Offering: policy.Offering{
				Zone: "eu-central-1" + string(rune('a'+i/2%3)), CapacityType: kind, Available: true, ListPrice: list,
				OnDemandPrice: &od, SpotPrice: &spot, PriceSource: "file", InterruptionRate: &rate,
				ICEHistory: policy.ICEHistory{LastHour: int64(i % 11 / 9), LastDay: int64(i % 11)},
			},
			DaemonOverhead: policy.Daemons{CPU: 300, Memory: 512, Pods: 4, Names: []string{"cni", "logs"}},
		})
	}
	return &policy.ScoreInput{
		Meta: meta(), NodePool: Pool("web"), Candidates: policy.NewOfferings(fmt.Sprintf("rev-%d", rows), out),
		Pods:   policy.Pods{Count: 10, SumRequests: policy.Requests{CPU: 20_000, Memory: 40_000}, Namespaces: []string{"shop"}, Teams: []string{"shop"}, Priorities: []int64{0}},
		Totals: totals(),
		Commitments: []policy.Commitment{{
			ID: "ri-1", Kind: "reserved-instance", UnitsTotal: 5,
			Matches: policy.Matches{InstanceTypes: []string{}, Families: []string{"m5"}, Zones: []string{}, CapacityTypes: []string{"on-demand"}},
		}},
	}
}

// Licensed is an input of hook score with that many rows for a NodePool with the label
// licensed: what the rules that exist in Rego, Go and Wasm alike are timed on.
func Licensed(rows int) *policy.ScoreInput {
	families := []string{"m7i", "c7g", "r6i", "t4g", "c5", "m5n", "r7iz", "g5"}
	machines := []string{"large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "24xlarge"}
	out := make([]policy.OfferingRow, 0, rows)
	for i := range rows {
		size := i / 3 % len(machines)
		family := families[i/18%len(families)]
		vcpu := int64(2) << size
		rate := int64(i%5) * 40
		out = append(out, policy.OfferingRow{
			InstanceType: &policy.InstanceType{
				Name: family + "." + machines[size], Family: family, Size: machines[size], Arch: []string{"amd64", "arm64"}[i%9/7],
				CPU: vcpu * 1000, Memory: vcpu * int64(1+i%4) * 1024, Pods: 58,
			},
			Offering: policy.Offering{
				Zone: "eu-west-1" + string(rune('a'+i%3)), CapacityType: []string{"on-demand", "spot"}[i/3%2],
				ListPrice: vcpu*48000 + int64(i%7)*1300, InterruptionRate: &rate,
			},
		})
	}
	in := &policy.ScoreInput{Candidates: policy.NewOfferings("", out)}
	in.NodePool.Name = "web"
	in.NodePool.Labels = map[string]string{"licensed": "true"}
	return in
}

// Digest names what an answer to an input of that many rows says of each: its cost, and
// whether it is denied. Answers that say the same have the same digest, whatever runtime
// they are of.
func Digest(in *policy.ScoreInput, a policy.ScoreAnswer) string {
	h := sha256.New()
	cost := make([]int64, in.Candidates.Len())
	denied := make([]bool, len(cost))
	for i := range cost {
		cost[i] = in.Candidates.Rows[i].Cost
	}
	for _, c := range a.Cost {
		cost[c.Row] = c.MicroUSD
	}
	for _, d := range a.Deny {
		denied[d.Row] = true
	}
	for i := range cost {
		fmt.Fprintln(h, cost[i], denied[i])
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func totals() policy.Totals {
	return policy.Totals{
		Nodes: 20, CPU: 160_000, Memory: 640_000, HourlyCost: 4_000_000,
		NodesByZone:         map[string]int64{"eu-central-1a": 12, "eu-central-1b": 8},
		NodesByCapacityType: map[string]int64{"spot": 10, "on-demand": 10},
		ByLabel:             map[string]map[string]policy.LabelTotals{"team": {"shop": {Nodes: 20, CPU: 160_000, HourlyCost: 4_000_000}}},
	}
}

func history() policy.History {
	return policy.History{
		Disruptions:                policy.Disruptions{ByPool: map[string]policy.Counts{"web": {LastHour: 1, LastDay: 4}}, ByTeam: map[string]policy.Counts{}, ByNamespace: map[string]policy.Counts{}},
		SecondsSinceLastDisruption: map[string]int64{"web": 1200},
	}
}

// Disrupt is a consolidation of two nodes.
func Disrupt() *policy.DisruptInput {
	per := int64(40_000)
	it := Types(4)[3]
	node := func(name, zone string) policy.Candidate {
		return policy.Candidate{
			Node: name, Pool: "web", Type: it.Name, InstanceType: it, Zone: zone, CapacityType: "on-demand", HourlyCost: 400_000,
			AgeSeconds: 7200, Utilization: policy.Utilization{CPU: 200, Memory: 300}, Blockers: []string{}, Conditions: []string{"Consolidatable"},
		}
	}
	pod := func(name, node string) policy.Pod {
		return policy.Pod{Namespace: "shop", Name: name, Node: node, OwnerKind: "ReplicaSet", OwnerName: "cart", AgeSeconds: 5000, RequestedCPU: 500, RequestedMemory: 512}
	}
	return &policy.DisruptInput{
		Meta: meta(),
		Command: policy.Command{
			Reason: policy.Underutilized, Decision: "delete", Candidates: []policy.Candidate{node("n1", "eu-central-1a"), node("n2", "eu-central-1b")},
			Savings: policy.Savings{Hourly: 400_000, Percent: 50, Permille: 500, Monthly: 292_000_000, PerPodMoved: &per}, PodsMoved: 10,
		},
		NodePools: map[string]policy.NodePool{"web": Pool("web")},
		Pods:      []policy.Pod{pod("cart-1", "n1"), pod("cart-2", "n2")},
		Owners:    []policy.Owner{{Kind: "ReplicaSet", Namespace: "shop", Name: "cart", Replicas: 4, Ready: 4, OnThisNode: 2, ReadyElsewhere: 2}},
		Totals:    totals(), History: history(),
		InFlight: policy.InFlight{ByPool: map[string]int64{}, ByZone: map[string]int64{}, ByTeam: map[string]int64{}},
	}
}

// Launch is a plan of two nodes.
func Launch() *policy.LaunchInput {
	it := Types(5)[4]
	od := int64(768_000)
	claim := func(name, kind string, price int64) policy.Claim {
		return policy.Claim{
			Name: name, Pool: "web", InstanceType: it, HourlyCost: price,
			Offering: policy.Offering{Zone: "eu-central-1a", CapacityType: kind, Available: true, ListPrice: price, OnDemandPrice: &od},
			Purchase: policy.Purchase{RequestedCPU: 12_000, RequestedMemory: 40_000, WasteRatio: 250, Attempt: 1, MinPrice: price, MaxPrice: price * 2, Types: []policy.PricedType{{Name: it.Name, Price: price}}, TypesCount: 8},
			Pods:     policy.Pods{Count: 4, Namespaces: []string{"shop"}, Priorities: []int64{0}, MaxPendingSeconds: 60},
			Labels:   map[string]string{"team": "shop"},
		}
	}
	return &policy.LaunchInput{
		Meta: meta(), Claims: []policy.Claim{claim("web/0", "spot", 300_000), claim("web/1", "on-demand", od)},
		Plan: policy.Plan{Nodes: 2, AddedHourlyCost: 1_068_000}, NodePools: map[string]policy.NodePool{"web": Pool("web")},
		Totals: totals(), History: history(),
	}
}

// Admit is an update of a NodePool.
func Admit() *policy.AdmitInput {
	in := &policy.AdmitInput{
		Meta: meta(), Operation: "UPDATE", NodePool: Pool("web"),
		Object:   map[string]any{"kind": "NodePool", "metadata": map[string]any{"name": "web"}},
		User:     policy.User{Name: "kim", Groups: []string{"dev"}},
		Impact:   policy.NoImpact(),
		Siblings: []policy.Sibling{{Name: "other", Weight: 20}},
		Totals:   totals(),
	}
	in.Impact.Nodes, in.Impact.NodesDrifted = 20, new(int64(1))
	for _, t := range Types(20) {
		in.Resolved.Types = append(in.Resolved.Types, *t)
	}
	in.Resolved.TypesCount, in.Resolved.PriceMax, in.Resolved.PriceMin = 20, 2_000_000, 96_000
	return in
}
