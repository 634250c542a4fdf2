package candidate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	karpv1 "github.com/dovetail-sh/dovetail/engine/api/karpenter/v1"
	"github.com/dovetail-sh/dovetail/engine/core/snapshot"
)

// budget is one for the given nodes and reasons; with a schedule, for the given length.
func budget(nodes, schedule string, length time.Duration, reasons ...karpv1.DisruptionReason) karpv1.Budget {
	b := karpv1.Budget{Nodes: nodes, Reasons: reasons}
	if schedule != "" {
		b.Schedule, b.Duration = &schedule, &metav1.Duration{Duration: length}
	}
	return b
}

func TestWindow_Active(t *testing.T) {
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	tests := map[string]struct {
		schedule  string
		length    time.Duration
		yes, no   []string
		end, next string // of the first time of yes; empty is none
	}{
		"night": {
			"0 22 * * *", 8 * time.Hour,
			[]string{"2025-06-04T22:00:00Z", "2025-06-05T05:59:59.999999999Z", "2025-06-04T00:00:00Z"},
			[]string{"2025-06-04T21:59:59.999999999Z", "2025-06-05T06:00:00Z"}, "2025-06-05T06:00:00Z", "2025-06-05T22:00:00Z",
		},
		"another time zone, across the change of clocks": {
			"CRON_TZ=Europe/Berlin 0 9 * * mon-fri", time.Hour,
			[]string{"2025-03-28T08:30:00Z", "2025-03-31T07:30:00Z"}, []string{"2025-03-28T07:30:00Z", "2025-03-31T08:00:00Z", "2025-03-30T07:30:00Z"},
			"2025-03-28T09:00:00Z", "2025-03-31T07:00:00Z",
		},
		"the short name of the prefix":          {"TZ=Asia/Tokyo @daily", time.Minute, []string{"2025-06-04T15:00:30Z"}, []string{"2025-06-04T00:00:00Z"}, "2025-06-04T15:01:00Z", "2025-06-05T15:00:00Z"},
		"lists of days instead of wrapping":     {"0 0 * * sat,sun", 24 * time.Hour, []string{"2025-06-07T12:00:00Z", "2025-06-08T23:59:00Z"}, []string{"2025-06-06T23:59:00Z", "2025-06-09T00:00:00Z"}, "2025-06-09T00:00:00Z", "2025-06-08T00:00:00Z"},
		"hits that overlap are one window":      {"*/30 8-17 * * *", time.Hour, []string{"2025-06-04T08:00:00Z", "2025-06-04T18:29:00Z"}, []string{"2025-06-04T18:30:00Z", "2025-06-04T07:59:00Z"}, "2025-06-04T18:30:00Z", "2025-06-04T08:30:00Z"},
		"hits without a gap have no end":        {"@hourly", time.Hour, []string{"2025-06-04T08:00:00Z", "2025-06-04T18:29:00Z"}, nil, "", "2025-06-04T09:00:00Z"},
		"each month, longer than any":           {"@monthly", 31 * 24 * time.Hour, []string{"2025-06-30T23:00:00Z"}, nil, "", "2025-07-01T00:00:00Z"},
		"each month, as long as the short ones": {"@monthly", 30 * 24 * time.Hour, []string{"2025-06-30T23:00:00Z"}, []string{"2025-07-31T00:00:00Z"}, "2025-07-31T00:00:00Z", "2025-07-01T00:00:00Z"},
		"each minute for a minute on Sundays":   {"* * * * 0", time.Minute, []string{"2025-06-08T00:00:00Z"}, []string{"2025-06-09T00:00:00Z"}, "2025-06-09T00:00:00Z", "2025-06-08T00:01:00Z"},
		"a day that never comes":                {"0 0 30 2 *", time.Hour, nil, []string{"2025-03-02T00:00:00Z"}, "", ""},
		"longer than a lifetime":                {"@yearly", 2_000_000 * time.Hour, []string{"2025-06-04T00:00:00Z"}, nil, "", "2026-01-01T00:00:00Z"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := budget("0", test.schedule, test.length)
			w, err := WindowOf(&b)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range test.yes {
				if !w.Active(at(s)) {
					t.Errorf("not active at %s", s)
				}
			}
			for _, s := range test.no {
				if w.Active(at(s)) {
					t.Errorf("active at %s", s)
				}
			}
			if test.yes == nil {
				return
			}
			show := func(when time.Time) string {
				if when.IsZero() {
					return ""
				}
				return when.UTC().Format(time.RFC3339)
			}
			if got := show(w.End(at(test.yes[0]))); got != test.end {
				t.Errorf("End(%s) = %s, want %s", test.yes[0], got, test.end)
			}
			if got := show(w.Next(at(test.yes[0]))); got != test.next {
				t.Errorf("Next(%s) = %s, want %s", test.yes[0], got, test.next)
			}
		})
	}
}

func TestWindowOf_errors(t *testing.T) {
	day := &metav1.Duration{Duration: 24 * time.Hour}
	for name, test := range map[string]struct {
		schedule *string
		duration *metav1.Duration
		want     string // of the error, part of it
	}{
		"a range of days that wraps":        {new("0 0 * * sat-sun"), day, "schedule: \"0 0 * * sat-sun\": beginning of range (6) beyond end of range (0): sat-sun: ranges do not wrap around, and weeks start on Sunday; list the parts instead, such as sat,sun"},
		"four fields":                       {new("0 0 * *"), day, "schedule: \"0 0 * *\": expected exactly 5 fields, found 4"},
		"nothing":                           {new(""), day, "schedule: \"\": expected exactly 5 fields, found 0"},
		"a field of commas":                 {new(", 0 * * *"), day, "a field names no value"},
		"a name that does not exist":        {new("@fortnightly"), day, "unrecognized descriptor"},
		"an interval":                       {new("@every 1h"), day, "@every has no beginning"},
		"a time zone that does not exist":   {new("CRON_TZ=Europe/Atlantis 0 0 * * *"), day, "Europe/Atlantis"},
		"a time zone alone":                 {new("TZ=UTC"), day, "want a time zone such as Europe/Berlin, a space and the schedule"},
		"a time zone without a name":        {new("TZ= 0 0 * * *"), day, "want a time zone such as Europe/Berlin, a space and the schedule"},
		"the time zone of the machine":      {new("TZ=Local 0 0 * * *"), day, "depends on the machine"},
		"two time zones":                    {new("TZ=UTC TZ=UTC 0 0 * * *"), day, "found 6"},
		"a schedule without duration":       {new("@daily"), nil, "duration: a schedule needs a duration"},
		"a duration without schedule":       {nil, day, "schedule: a duration needs a schedule"},
		"less than a minute":                {new("@daily"), &metav1.Duration{Duration: 59 * time.Second}, "duration: 59s: must be at least a minute"},
		"both fields are named":             {new("x"), &metav1.Duration{}, "duration: 0s"},
		"both fields are named, and before": {new("x"), &metav1.Duration{}, "schedule: \"x\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := WindowOf(&karpv1.Budget{Nodes: "1", Schedule: test.schedule, Duration: test.duration})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestWindow_Spans(t *testing.T) {
	from, to := noon, noon.Add(48*time.Hour)
	spans := func(w Window) string {
		var out []string
		for _, s := range w.Spans(from, to) {
			out = append(out, fmt.Sprintf("%s-%s", s.From.Sub(from), s.To.Sub(from)))
		}
		return strings.Join(out, " ")
	}
	for schedule, want := range map[string]string{
		"":            "0s-48h0m0s",
		"0 11 * * *":  "0s-1h0m0s 23h0m0s-25h0m0s 47h0m0s-48h0m0s",
		"0 */2 * * *": "0s-48h0m0s",
		"0 12 * * *":  "0s-2h0m0s 24h0m0s-26h0m0s",
		"0 10 * * *":  "22h0m0s-24h0m0s 46h0m0s-48h0m0s",
		"0 0 30 2 *":  "",
	} {
		b := budget("0", schedule, 2*time.Hour)
		w, err := WindowOf(&b)
		if err != nil {
			t.Fatal(err)
		}
		if got := spans(w); got != want {
			t.Errorf("Spans() of %q = %q, want %q", schedule, got, want)
		}
	}
}

// allowed returns the allowance of the pool web for a reason.
func (s *scene) allowed(t *testing.T, reason karpv1.DisruptionReason) Allowance {
	t.Helper()
	for _, a := range Allowances(s.objs, s.facts, s.examine()) {
		if a.Pool == "web" && a.Reason == reason {
			return a
		}
	}
	t.Fatalf("no allowance of web for %s", reason)
	return Allowance{}
}

// sceneOf has n nodes in pool web, with the given budgets.
func sceneOf(t *testing.T, n int, budgets ...karpv1.Budget) *scene {
	s := newScene(t)
	s.objs.Pods = nil
	for i := range n - 1 {
		s.addNode(fmt.Sprintf("n-%02d", i), "web")
	}
	s.pool.Spec.Disruption.Budgets = budgets
	return s
}

func TestAllowances(t *testing.T) {
	const (
		empty     = karpv1.DisruptionReasonEmpty
		under     = karpv1.DisruptionReasonUnderutilized
		drifted   = karpv1.DisruptionReasonDrifted
		unhealthy = karpv1.DisruptionReasonUnhealthy
	)
	tests := map[string]struct {
		nodes   int
		budgets []karpv1.Budget
		change  func(*scene)
		reason  karpv1.DisruptionReason // Underutilized if empty
		want    Allowance               // without pool and reason
	}{
		"the default is 10 %":              {nodes: 20, want: Allowance{Nodes: 20, Allowed: 2, Left: 2}},
		"shares are rounded up":            {nodes: 3, budgets: []karpv1.Budget{budget("1%", "", 0)}, want: Allowance{Nodes: 3, Allowed: 1, Left: 1}},
		"and stay nothing if they are":     {nodes: 3, budgets: []karpv1.Budget{budget("0%", "", 0)}, want: Allowance{Nodes: 3}},
		"an empty list bounds nothing":     {nodes: 3, budgets: []karpv1.Budget{}, want: Allowance{Nodes: 3, Allowed: 3, Left: 3, Unlimited: true, Budget: -1}},
		"the smallest counts":              {nodes: 20, budgets: []karpv1.Budget{budget("50%", "", 0), budget("3", "", 0), budget("7", "", 0)}, want: Allowance{Nodes: 20, Allowed: 3, Left: 3, Budget: 1}},
		"a number may be more than there":  {nodes: 2, budgets: []karpv1.Budget{budget("30", "", 0)}, want: Allowance{Nodes: 2, Allowed: 30, Left: 30}},
		"of its reasons":                   {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("0", "", 0, empty, drifted)}, want: Allowance{Nodes: 20, Allowed: 5, Left: 5}},
		"and not of others":                {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("0", "", 0, empty, drifted)}, reason: drifted, want: Allowance{Nodes: 20, Budget: 1}},
		"of no reasons but one":            {nodes: 20, budgets: []karpv1.Budget{budget("0", "", 0, empty)}, want: Allowance{Nodes: 20, Allowed: 20, Left: 20, Unlimited: true, Budget: -1}},
		"while its schedule says":          {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("0", "0 12 * * *", time.Hour)}, want: Allowance{Nodes: 20, Budget: 1, Opens: noon.Add(time.Hour)}},
		"not any more":                     {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("0", "0 11 * * *", time.Hour)}, want: Allowance{Nodes: 20, Allowed: 5, Left: 5}},
		"not yet":                          {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("0", "1 12 * * *", time.Hour)}, want: Allowance{Nodes: 20, Allowed: 5, Left: 5}},
		"opens after all that close":       {nodes: 20, budgets: []karpv1.Budget{budget("0", "0 12 * * *", time.Hour), budget("0", "30 12 * * *", 2*time.Hour), budget("5", "", 0)}, want: Allowance{Nodes: 20, Opens: noon.Add(150 * time.Minute)}},
		"and if more is allowed than now":  {nodes: 20, budgets: []karpv1.Budget{budget("2", "0 12 * * *", time.Hour), budget("2", "0 13 * * *", time.Hour), budget("1", "0 14 * * *", time.Hour), budget("3", "0 15 * * *", time.Hour)}, want: Allowance{Nodes: 20, Allowed: 2, Left: 2, Opens: noon.Add(3 * time.Hour)}},
		"never opens":                      {nodes: 20, budgets: []karpv1.Budget{budget("0", "@hourly", time.Hour), budget("5", "", 0)}, want: Allowance{Nodes: 20}},
		"a day that never comes is no end": {nodes: 20, budgets: []karpv1.Budget{budget("0", "0 0 30 2 *", time.Hour)}, want: Allowance{Nodes: 20, Allowed: 20, Left: 20, Unlimited: true, Budget: -1}},
		"no nodes":                         {nodes: 1, change: func(s *scene) { s.objs.Nodes, s.objs.NodeClaims = nil, nil }, want: Allowance{}},
		"nodes that go": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0)}, change: func(s *scene) {
			s.node.DeletionTimestamp = &metav1.Time{Time: noon}
			s.objs.NodeClaims[1].DeletionTimestamp = &metav1.Time{Time: noon}
			s.facts.Leaving[s.objs.NodeClaims[2].Name] = true
		}, want: Allowance{Nodes: 20, Allowed: 5, Consumed: 3, Left: 2}},
		"one that goes and is not ready counts once": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0)}, change: func(s *scene) {
			s.node.DeletionTimestamp = &metav1.Time{Time: noon}
			s.node.Status.Conditions[0].Status = corev1.ConditionUnknown
		}, want: Allowance{Nodes: 20, Allowed: 5, Consumed: 1, Left: 4}},
		"one that reboots": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0)}, change: func(s *scene) {
			s.condition(karpv1.ConditionRebooting, "RebootRequested")
			delete(s.node.Labels, karpv1.NodeInitializedLabelKey)
		}, want: Allowance{Nodes: 20, Allowed: 5, Consumed: 1, Left: 4}},
		"one that is not initialized does not count": {nodes: 20, budgets: []karpv1.Budget{budget("100%", "", 0)}, change: func(s *scene) {
			delete(s.node.Labels, karpv1.NodeInitializedLabelKey)
		}, want: Allowance{Nodes: 19, Allowed: 19, Left: 19}},
		"one without Node does not count": {nodes: 20, budgets: []karpv1.Budget{budget("100%", "", 0)}, change: func(s *scene) {
			s.objs.Nodes = s.objs.Nodes[1:]
			s.claim.Status.NodeName = ""
		}, want: Allowance{Nodes: 19, Allowed: 19, Left: 19}},
		"one whose machine ends does not count": {nodes: 20, budgets: []karpv1.Budget{budget("100%", "", 0)}, change: func(s *scene) {
			s.condition(karpv1.ConditionInstanceTerminating, "Terminating")
		}, want: Allowance{Nodes: 19, Allowed: 19, Left: 19}},
		"one without a claim does not count": {nodes: 20, budgets: []karpv1.Budget{budget("100%", "", 0)}, change: func(s *scene) {
			s.objs.NodeClaims = s.objs.NodeClaims[1:]
		}, want: Allowance{Nodes: 19, Allowed: 19, Left: 19}},
		"one of another pool does not count": {nodes: 20, budgets: []karpv1.Budget{budget("100%", "", 0)}, change: func(s *scene) {
			s.addNode("other", "other")
		}, want: Allowance{Nodes: 20, Allowed: 20, Left: 20}},
		"nodes that are not ready are disrupted": {nodes: 20, budgets: []karpv1.Budget{budget("1", "", 0)}, change: func(s *scene) {
			s.objs.Nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
			s.objs.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
		}, want: Allowance{Nodes: 20, Allowed: 1, Consumed: 2}},
		"but may be replaced for it": {nodes: 20, budgets: []karpv1.Budget{budget("2", "", 0)}, reason: unhealthy, change: func(s *scene) {
			s.objs.Nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
			s.objs.Nodes[1].DeletionTimestamp = &metav1.Time{Time: noon}
		}, want: Allowance{Nodes: 20, Allowed: 2, Consumed: 1, Left: 1}},
		"a fault for another reason does no harm": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("x", "", 0, drifted)}, want: Allowance{Nodes: 20, Allowed: 5, Left: 5}},
		"a fault for the reason": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0), budget("-1", "", 0, drifted)}, reason: drifted, want: Allowance{
			Nodes: 20, Budget: 1, Problem: `Drifted: no node of NodePool web may be disrupted until a budget is corrected: spec.disruption.budgets[1].nodes: "-1": want a number, or a percentage from 0% to 100%`,
		}},
		"a reason that does not exist may have been meant for any": {nodes: 20, budgets: []karpv1.Budget{budget("5", "", 0, empty, "Drift")}, want: Allowance{
			Nodes: 20, Problem: `Underutilized: no node of NodePool web may be disrupted until a budget is corrected: spec.disruption.budgets[0].reasons[1]: "Drift": must be one of Empty, Underutilized, Drifted, Unhealthy`,
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := sceneOf(t, test.nodes, test.budgets...)
			s.pool.Spec.Disruption.Budgets = test.budgets // nil is not an empty list
			if test.change != nil {
				test.change(s)
			}
			if test.reason == "" {
				test.reason = under
			}
			test.want.Pool, test.want.Reason = "web", test.reason
			if diff := cmp.Diff(test.want, s.allowed(t, test.reason)); diff != "" {
				t.Errorf("allowance (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAllowances_faultyBudget is scenario S-54: a range of days that wraps stops its pool,
// and says so; other pools go on.
func TestAllowances_faultyBudget(t *testing.T) {
	s := sceneOf(t, 20, budget("10%", "", 0), budget("0", "0 0 * * sat-sun", 24*time.Hour))
	y := s.pool.DeepCopy()
	y.Name, y.Spec.Disruption.Budgets = "y", []karpv1.Budget{budget("10%", "", 0)}
	s.objs.NodePools = []*karpv1.NodePool{y, s.pool}
	for i := range 20 {
		s.addNode(fmt.Sprintf("y-%02d", i), "y")
	}
	var got []string
	for _, a := range Allowances(s.objs, s.facts, s.examine()) {
		got = append(got, fmt.Sprintf("%s %s %d %t", a.Pool, a.Reason, a.Left, a.Problem != ""))
		if a.Problem != "" && !strings.Contains(a.Problem, "spec.disruption.budgets[1].schedule") {
			t.Errorf("problem %q names no field", a.Problem)
		}
	}
	want := []string{
		"web Empty 0 true", "web Underutilized 0 true", "web Drifted 0 true", "web Unhealthy 0 true",
		"y Empty 2 false", "y Underutilized 2 false", "y Drifted 2 false", "y Unhealthy 2 false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("allowances (-want +got):\n%s", diff)
	}
	findings := Review(s.pool, noon)
	if len(findings) != 1 || findings[0].Severity != Error || findings[0].Code != BudgetInvalid || findings[0].Field != "spec.disruption.budgets[1].schedule" {
		t.Errorf("Review() = %v, want the fault of the schedule alone", findings)
	}
}

// TestAllowances_arithmetic is scenario S-55.
func TestAllowances_arithmetic(t *testing.T) {
	s := sceneOf(t, 19, budget("10%", "", 0))
	s.objs.Nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
	s.objs.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
	s.objs.Nodes[2].DeletionTimestamp = &metav1.Time{Time: noon}
	a := s.allowed(t, karpv1.DisruptionReasonUnderutilized)
	want := "Underutilized: 2 of 19 nodes of NodePool web may be disrupted at a time, 3 are: 0 may go now"
	if a.Left != 0 || a.String() != want {
		t.Errorf("%d left: %q, want %q", a.Left, a, want)
	}

	s = sceneOf(t, 19, budget("10%", "0 6 * * *", 20*time.Hour, karpv1.DisruptionReasonEmpty))
	if a := s.allowed(t, karpv1.DisruptionReasonUnderutilized); !a.Unlimited || a.Left != 19 || a.String() != "Underutilized: no budget of NodePool web is active" {
		t.Errorf("%+v: %q, want no bound", a, a)
	}
	found := false
	for _, f := range Review(s.pool, noon) {
		found = found || f.Severity == Warning && f.Code == BudgetUnbounded && strings.Contains(f.Message, "Underutilized")
	}
	if !found {
		t.Errorf("no warning that Underutilized is without bound: %v", Review(s.pool, noon))
	}
}

func TestAllowance_String(t *testing.T) {
	a := Allowance{Pool: "web", Reason: karpv1.DisruptionReasonEmpty, Nodes: 4, Consumed: 1, Budget: 2, Opens: noon}
	if got, want := a.String(), "Empty: 0 of 4 nodes of NodePool web may be disrupted at a time, 1 are: 0 may go now; spec.disruption.budgets[2] opens at 2025-06-04T12:00:00Z"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func TestReview(t *testing.T) {
	const all = "Empty, Underutilized, Drifted, Unhealthy"
	tests := map[string]struct {
		budgets []karpv1.Budget
		nodes   int64
		want    []string
	}{
		"the default":              {},
		"one share":                {budgets: []karpv1.Budget{budget("10%", "", 0)}, nodes: 20},
		"no work in working hours": {budgets: []karpv1.Budget{budget("10%", "", 0), budget("0", "0 9 * * mon-fri", 8*time.Hour)}},
		"several faults, each with its field": {
			budgets: []karpv1.Budget{budget("110%", "0 0 * * fri-mon", time.Second), budget("1", "", 0, "Sleepy")},
			want: []string{
				`error: spec.disruption.budgets[0].schedule: "0 0 * * fri-mon": beginning of range (5) beyond end of range (1): fri-mon: ranges do not wrap around, and weeks start on Sunday; list the parts instead, such as sat,sun`,
				"error: spec.disruption.budgets[0].duration: 1s: must be at least a minute",
				`error: spec.disruption.budgets[0].nodes: "110%": want a number, or a percentage from 0% to 100%`,
				`error: spec.disruption.budgets[1].reasons[0]: "Sleepy": must be one of Empty, Underutilized, Drifted, Unhealthy`,
			},
		},
		"a fault for one reason": {
			budgets: []karpv1.Budget{budget("x", "", 0, karpv1.DisruptionReasonEmpty), budget("0", "", 0)},
			want: []string{
				`error: spec.disruption.budgets[0].nodes: "x": want a number, or a percentage from 0% to 100%`,
				"warning: spec.disruption.budgets[1].nodes: at no time may a node be disrupted for Underutilized, Drifted, Unhealthy",
			},
		},
		"nothing ever": {
			budgets: []karpv1.Budget{budget("0", "", 0)},
			want:    []string{"warning: spec.disruption.budgets[0].nodes: at no time may a node be disrupted for " + all},
		},
		"nothing by turns": {
			budgets: []karpv1.Budget{budget("50%", "", 0), budget("0%", "0 0 * * *", 12*time.Hour), budget("0", "0 12 * * *", 12*time.Hour)},
			want:    []string{"warning: spec.disruption.budgets[1].nodes: at no time may a node be disrupted for " + all},
		},
		"nothing but on the first of the month": {budgets: []karpv1.Budget{budget("50%", "", 0), budget("0", "0 0 2-31 * *", 24*time.Hour)}},
		"never active": {
			budgets: []karpv1.Budget{budget("50%", "", 0), budget("0", "0 0 31 2,4 *", time.Hour)},
			want:    []string{`warning: spec.disruption.budgets[1].schedule: "0 0 31 2,4 *" never comes: the budget has no effect`},
		},
		"more at night, which a smaller budget denies": {
			budgets: []karpv1.Budget{budget("10%", "", 0), budget("50%", "0 0 * * *", 6*time.Hour)},
			want:    []string{`warning: spec.disruption.budgets[1]: it has no effect, since the smallest budget counts: spec.disruption.budgets[0] allows no more (nodes "10%") whenever this one is active`},
		},
		"twice the same": {
			budgets: []karpv1.Budget{budget("3", "", 0), budget("3", "", 0)},
			want:    []string{`warning: spec.disruption.budgets[1]: it has no effect, since the smallest budget counts: spec.disruption.budgets[0] allows no more (nodes "3") whenever this one is active`},
		},
		"smaller for fewer reasons":               {budgets: []karpv1.Budget{budget("5%", "", 0, karpv1.DisruptionReasonDrifted), budget("10%", "", 0)}},
		"a number and a share cannot be compared": {budgets: []karpv1.Budget{budget("1", "", 0), budget("10%", "", 0)}},
		"rounded up":                                   {budgets: []karpv1.Budget{budget("10%", "", 0)}, nodes: 9, want: []string{"info: spec.disruption.budgets[0].nodes: 10% of 9 nodes is rounded up to 1"}},
		"exactly one is not rounded":                   {budgets: []karpv1.Budget{budget("10%", "", 0)}, nodes: 10},
		"nothing is not rounded":                       {budgets: []karpv1.Budget{budget("0%", "0 9 * * *", time.Hour), budget("50%", "", 0)}, nodes: 3},
		"an empty list":                                {budgets: []karpv1.Budget{}, want: []string{"warning: spec.disruption.budgets: " + all + ": any number of nodes may be disrupted at a time, since no budget is for it"}},
		"an empty list but for windows":                {budgets: []karpv1.Budget{budget("0", "0 12 * * *", time.Hour)}, want: []string{"warning: spec.disruption.budgets: " + all + ": any number of nodes may be disrupted at a time while no budget for it is active, such as at 2025-06-04T13:00:00Z"}},
		"windows that touch bound the reason for good": {budgets: []karpv1.Budget{budget("1", "0 0 * * *", 12*time.Hour), budget("2", "0 12 * * *", 12*time.Hour)}},
		"one reason only": {
			budgets: []karpv1.Budget{budget("1", "0 6 * * *", 20*time.Hour, karpv1.DisruptionReasonEmpty)},
			want: []string{
				"warning: spec.disruption.budgets: Empty: any number of nodes may be disrupted at a time while no budget for it is active, such as at 2025-06-05T02:00:00Z",
				"warning: spec.disruption.budgets: Underutilized, Drifted, Unhealthy: any number of nodes may be disrupted at a time, since no budget is for it",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			np.Spec.Disruption.Budgets = test.budgets
			if test.nodes > 0 {
				np.Status.Nodes = &test.nodes
			}
			var got []string
			for _, f := range Review(np, noon) {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Review() (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzAllowances checks that no budget makes anything panic, that what is left is never
// negative, and that budgets open when they say so.
func FuzzAllowances(f *testing.F) {
	f.Add("10%", "0 0 * * sat-sun", int64(1440), "5", uint8(20), uint8(3), int64(0))
	f.Add("0", "CRON_TZ=Europe/Berlin 0 9 * * mon-fri", int64(480), "100%", uint8(7), uint8(9), int64(86400*180))
	f.Add("1%", "TZ=", int64(-1), "", uint8(0), uint8(0), int64(-1))
	f.Add("00", "* * * * *", int64(1), "+1", uint8(1), uint8(1), int64(59))
	f.Add("3", "0 0 29 2 *", int64(1<<40), "4", uint8(255), uint8(0), int64(1<<33))
	f.Add("3", "TZ=UTC @daily", int64(60), "2147483648", uint8(5), uint8(5), int64(1))
	f.Fuzz(func(t *testing.T, nodes, schedule string, minutes int64, always string, all, gone uint8, second int64) {
		np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		np.Spec.Disruption.Budgets = []karpv1.Budget{
			{Nodes: nodes, Schedule: &schedule, Duration: &metav1.Duration{Duration: time.Duration(minutes) * time.Minute}},
			{Nodes: always, Reasons: []karpv1.DisruptionReason{karpv1.DisruptionReasonEmpty}},
		}
		candidates := make([]Candidate, all)
		for i := range candidates {
			candidates[i] = Candidate{Node: fmt.Sprint(i), Claim: fmt.Sprint(i), Pool: "web"}
			if i < int(gone) {
				candidates[i].Graceful = []Reason{{Code: Deleting}}
			}
		}
		now := noon.Add(time.Duration(second%(1<<31)) * time.Second)
		objs := snapshot.Objects{NodePools: []*karpv1.NodePool{np}}
		for _, a := range Allowances(objs, Facts{Now: now}, candidates) {
			if a.Left < 0 || a.Left > max(a.Allowed-a.Consumed, 0) && !a.Unlimited || a.Problem != "" && a.Left != 0 || a.Nodes != int(all) || a.Consumed > a.Nodes {
				t.Errorf("%+v", a)
			}
			if a.Opens.IsZero() {
				continue
			}
			if !a.Opens.After(now) {
				t.Errorf("opens at %s, which is not after %s", a.Opens, now)
			}
			for _, b := range Allowances(objs, Facts{Now: a.Opens}, candidates) {
				if b.Reason == a.Reason && !b.Unlimited && b.Allowed <= a.Allowed {
					t.Errorf("%s: %d allowed at %s, when it opens: not more than %d before", a.Reason, b.Allowed, a.Opens, a.Allowed)
				}
			}
			for _, b := range Allowances(objs, Facts{Now: a.Opens.Add(-time.Second)}, candidates) {
				if b.Reason == a.Reason && a.Opens.Add(-time.Second).After(now) && (b.Unlimited || b.Allowed > a.Allowed) {
					t.Errorf("%s: %d allowed before %s, when it opens", a.Reason, b.Allowed, a.Opens)
				}
			}
		}
		Review(np, now)
	})
}

// FuzzWindow compares windows with a look at every minute.
func FuzzWindow(f *testing.F) {
	f.Add("0 22 * * *", uint16(480), uint32(7))
	f.Add("*/7 */5 1-3,8 * mon,wed", uint16(11), uint32(100000))
	f.Add("CRON_TZ=America/New_York 30 1 * * *", uint16(90), uint32(198720))
	f.Add("* * * * *", uint16(1), uint32(0))
	f.Add("@monthly", uint16(60000), uint32(3))
	f.Fuzz(func(t *testing.T, schedule string, minutes uint16, offset uint32) {
		length := time.Duration(minutes) * time.Minute
		w, err := NewWindow(schedule, length)
		if err != nil {
			return
		}
		from := noon.Add(time.Duration(offset%(1<<20)) * time.Minute)
		to := from.Add(36 * time.Hour)
		spans := w.Spans(from, to)
		hits := map[time.Time]bool{}
		for at := w.Next(from.Add(-length)); !at.IsZero() && at.Before(to); at = w.Next(at) {
			hits[at.UTC()] = true
		}
		latest := time.Time{}
		for at := from.Add(-length).Add(time.Minute); at.Before(to); at = at.Add(time.Minute) {
			if hits[at.UTC()] {
				latest = at
			}
			want := !latest.IsZero() && at.Before(latest.Add(length))
			if at.Before(from) {
				continue
			}
			in := false
			for _, s := range spans {
				in = in || !at.Before(s.From) && at.Before(s.To)
			}
			if w.Active(at) != want || in != want {
				t.Fatalf("%q for %s at %s: active %t, in spans %v %t, want %t", schedule, length, at, w.Active(at), spans, in, want)
			}
		}
	})
}
