package scenario_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dovetail-sh/dovetail/engine/cloud/sim"
	"github.com/dovetail-sh/dovetail/engine/core/catalog"
	"github.com/dovetail-sh/dovetail/engine/simulate/scenario"
)

// rounds is how many loops each life of the fuzz test takes at the least.
const rounds = 500

// FuzzLives lets clusters live whose nodes, pods and events are drawn from a seed, and holds
// them to the invariants. A life that does not hold is printed as a scenario file.
func FuzzLives(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		text := randomLife(seed)
		path := filepath.Join(t.TempDir(), fmt.Sprintf("seed-%d.yaml", seed))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		problems, err := scenario.Problems(path, func(string) (*catalog.Catalog, error) { return readCatalog("../../../test/scenarios/cat-1.yaml") })
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		verdict, err := scenario.Judge(t.Context(), &problems[0])
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if len(verdict.Wrong) > 0 {
			t.Errorf("%s\n%s", strings.Join(verdict.Wrong, "\n"), text)
		}
	})
}

func readCatalog(path string) (*catalog.Catalog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: nothing to lose
	cat, errs := sim.ReadFile(f, path)
	return cat, errors.Join(errs...)
}

// randomLife writes a scenario: some pools with idle and busy nodes, workloads under all kinds
// of rules, and what happens to them. Every pod has a node somewhere that it could go to, so
// none may be pending in the end.
func randomLife(seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 77)) //nolint:gosec // not for secrets: a seed is a life
	var b strings.Builder
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	in := func(percent int) bool { return r.IntN(100) < percent }

	fmt.Fprintf(&b, "about: Whatever happens, the invariants hold (seed %d).\n", seed)
	fmt.Fprintf(&b, "options: {shuffles: -1, spotTypes: %s}\n", one("1", "3", "15"))
	b.WriteString("pools:\n")
	spot := in(50)
	families := [][]string{{"c"}, {"c", "m"}, {"c", "m", "r"}, {"m", "r"}}[r.IntN(4)]
	sizes := [][]int{{2, 4, 8, 16}, {4, 8, 16}, {8, 16}, {4, 8}}[r.IntN(4)]
	var types []string
	for _, family := range families {
		for _, size := range sizes {
			types = append(types, fmt.Sprintf("%s.%d", family, size))
		}
	}
	pools := []string{"p1", "p2", "p3"}[:1+r.IntN(3)]
	capacity := map[string][]string{}
	slow := false
	for _, p := range pools {
		after := one("0s", "0s", "30s", "2m")
		slow = slow || after != "0s"
		capacity[p] = []string{"on-demand"}
		if spot && in(70) {
			capacity[p] = append(capacity[p], "spot")
		}
		fmt.Fprintf(&b, "- {name: %s, types: [%s], capacityTypes: [%s], after: %s, weight: %s, budgets: [{nodes: %s}]}\n",
			p, strings.Join(types, ", "), strings.Join(capacity[p], ", "), after, one("0", "0", "10"), one(`"100%"`, `"100%"`, `"2"`, `"34%"`))
	}
	b.WriteString("nodes:\n")
	for i := range 2 + r.IntN(8) {
		p := pools[r.IntN(len(pools))]
		fmt.Fprintf(&b, "- {name: n%d, type: %s, zone: z%d, pool: %s, capacityType: %s}\n", i+1, types[r.IntN(len(types))], 1+r.IntN(3), p, one(capacity[p]...))
	}
	if in(50) {
		fmt.Fprintf(&b, "daemons:\n- {name: agent, cpu: %s, memory: 128Mi}\n", one("100m", "200m"))
	}
	b.WriteString("pods:\n")
	apps := 2 + r.IntN(5)
	var guards strings.Builder
	for i := range apps {
		app := string(rune('a' + i))
		count := 1 + r.IntN(9)
		rule := one("", "", "", "apart: [hostname]", "apartIfPossible: [hostname]", "spread: [{key: hostname, soft: true}]", "spread: [{key: zone}]", "spread: [{key: hostname, skew: 2}]", "near: [zone]", "doNotDisrupt: true")
		if rule != "" {
			rule = ", " + rule
		}
		fmt.Fprintf(&b, "- {name: %s, app: %s, count: %d, cpu: %s, memory: %s%s}\n", app, app, count, one("250m", "500m", "900m", "1", "1500m", "2", "3"), one("256Mi", "1Gi", "2Gi", "3Gi", "6Gi"), rule)
		if in(30) {
			fmt.Fprintf(&guards, "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: %s}\nspec: {%s, selector: {matchLabels: {app: %s}}}\n", app, one("maxUnavailable: 1", "maxUnavailable: 50%", "minAvailable: 1"), app)
		}
	}
	var events []string
	if in(40) {
		events = append(events, fmt.Sprintf("0s noise%s 2%% every %s seed %d", one("", " capacity=spot"), one("1m", "1m", "5m"), 1+r.IntN(99)))
	}
	last := 0
	for range r.IntN(7) {
		last += r.IntN(600)
		what := fmt.Sprintf("scale rs/%c to %d", 'a'+r.IntN(apps), r.IntN(12))
		switch k := r.IntN(10); {
		case k < 1:
			what = fmt.Sprintf("price type=%s.* %d%%", one(families...), 60+r.IntN(90))
		case k < 3 && spot:
			what = fmt.Sprintf("interrupt %d%% capacity=spot", 20+r.IntN(80))
		case k < 4 && spot:
			what = fmt.Sprintf("capacity capacity=spot 0 for %dm", 1+r.IntN(9))
		case k < 5:
			what = fmt.Sprintf("fail launch type=%s for %dm", types[r.IntN(len(types))], 1+r.IntN(5))
		}
		events = append(events, fmt.Sprintf("%ds %s", last, what))
	}
	if len(events) > 0 {
		b.WriteString("events:\n")
		for _, e := range events {
			fmt.Fprintf(&b, "- {at: %s}\n", e)
		}
	}
	settling := 60 // one move in which nodes are bought takes ten, and shows what the next one is
	if slow {      // consolidateAfter begins anew for each node that takes pods
		settling = 120
	}
	fmt.Fprintf(&b, "loops: %d\nquiet: %d\nexpect: {}\n", settling, max(rounds-settling-last/10, 20))
	b.WriteString(guards.String())
	return b.String()
}

// TestRandomLives sees that the lives differ, and that most things happen in some of them.
func TestRandomLives(t *testing.T) {
	var all strings.Builder
	for seed := range uint64(50) {
		all.WriteString(randomLife(seed))
	}
	for _, want := range []string{"spot", "PodDisruptionBudget", "doNotDisrupt", "apart: [hostname]", "spread: [{key: zone}]", "interrupt ", "scale rs/", "price type", "noise", "daemons", "fail launch"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no life of 50 has %q", want)
		}
	}
	if slices.Equal([]byte(randomLife(1)), []byte(randomLife(2))) {
		t.Error("two seeds give the same life")
	}
}
