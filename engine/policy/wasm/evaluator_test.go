package wasm

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/guest"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

// inputOf makes a typed input of the rows of a table of package guest.
func inputOf(t *frame.Table) *policy.ScoreInput {
	text := func(id uint16, row int) string { return t.Strings.Text(t.Column(id).Str[row]) }
	var rows []policy.OfferingRow
	for i := range t.Rows {
		rate := int64(t.Column(3).I32[i])
		rows = append(rows, policy.OfferingRow{
			InstanceType: &policy.InstanceType{
				Name: text(13, i), Family: text(8, i), Size: text(9, i), Arch: text(10, i),
				CPU: int64(t.Column(4).I32[i]), Memory: int64(t.Column(5).I32[i]), Pods: 58,
			},
			Offering: policy.Offering{Zone: text(11, i), CapacityType: text(12, i), ListPrice: t.Column(1).I64[i], InterruptionRate: &rate},
		})
	}
	in := &policy.ScoreInput{Candidates: policy.NewOfferings("", rows)}
	in.NodePool.Name = "web"
	in.NodePool.Labels = map[string]string{}
	for _, v := range t.Context {
		if label, ok := strings.CutPrefix(v.Key, "nodePool.labels."); ok {
			in.NodePool.Labels[label] = v.Text
		}
	}
	return in
}

func loadPolicy(t testing.TB, src Source) *Policy {
	t.Helper()
	src.Limits.Deadline = patient
	p, err := newHost(t).LoadPolicy(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestPolicyScore(t *testing.T) {
	for name, wasm := range guests(t) {
		t.Run(name, func(t *testing.T) {
			p := loadPolicy(t, Source{Name: "p", Hook: policy.Score, Wasm: wasm})
			question := guest.Offerings(850, "licensed", "arm")
			want := guest.Native(question)
			got, st, err := p.Score(t.Context(), inputOf(question))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(scoreAnswer(&want), got); diff != "" {
				t.Errorf("Score() (-native +guest):\n%.2000s", diff)
			}
			if st.Rows != 850 || st.Fuel == 0 || st.ResultBytes == 0 || st.Duration == 0 {
				t.Errorf("stats = %+v", st)
			}
		})
	}
}

// TestPolicyScore_sameQuestion holds that the question of the benchmarks is one for all
// runtimes.
func TestPolicyScore_sameQuestion(t *testing.T) {
	a, err := json.Marshal(inputOf(guest.Offerings(850, "licensed")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(sample.Licensed(850))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(a), string(b)); d != "" {
		t.Errorf("questions (-frame +input):\n%.2000s", d)
	}
}

func TestPolicyReads(t *testing.T) {
	p := loadPolicy(t, Source{Name: "p", Hook: policy.Score, Wasm: goModule(t)})
	want := policy.Reads{
		"candidates.*.cost", "candidates.*.instanceType.arch", "candidates.*.instanceType.cpu", "candidates.*.instanceType.family",
		"candidates.*.instanceType.memory", "candidates.*.offering.capacityType", "candidates.*.offering.interruptionRate",
		"nodePool.labels", "parameters",
	}
	if diff := cmp.Diff(want, p.Reads()); diff != "" {
		t.Errorf("Reads() (-want +got):\n%s", diff)
	}
	in := inputOf(guest.Offerings(3, "arm"))
	in.NodePool.Annotations = map[string]string{"secret": "x"}
	in.Now.Unix = 7
	values, err := p.context(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]frame.Value{{Key: "nodePool.labels.arm", Type: frame.String, Text: "true"}}, values); diff != "" {
		t.Errorf("the module gets this context (-want +got):\n%s", diff)
	}
	if p := loadPolicy(t, Source{Name: "p", Hook: policy.Score, Wasm: guest.C}); p.Reads() != nil {
		t.Errorf("Reads() of a module without a description = %v, want all", p.Reads())
	}
}

func TestLoadPolicyRefuses(t *testing.T) {
	for name, src := range map[string]Source{
		"a hook that the module lacks": {Name: "p", Hook: policy.Launch, Wasm: guest.C},
		"an unknown hook":              {Name: "p", Hook: "weigh", Wasm: guest.C},
		"memory above the limit":       {Name: "p", Hook: policy.Score, Wasm: guest.C, Limits: policy.Limits{MemoryBytes: 1 << 40}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newHost(t).LoadPolicy(t.Context(), src); class(err) != policy.ClassLoad {
				t.Errorf("LoadPolicy() error = %v, want class %s", err, policy.ClassLoad)
			}
		})
	}
}

// canned is a module whose hooks give fixed answers.
func canned(t *testing.T, answers map[frame.Hook]*frame.Table) []byte {
	t.Helper()
	m := &asm.Module{}
	m.Memory(16, -1)
	m.Export("memory", module.KindMemory, 0)
	m.Export("dv_abi_1", module.KindFunc, m.Func(nil, asm.T{asm.I32}, nil, asm.I32C(0)))
	m.Export("dv_alloc", module.KindFunc, m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil, asm.I32C(65536)))
	at := 1024
	for _, h := range frame.Hooks() {
		if answers[h] == nil {
			continue
		}
		b, err := frame.Encode(answers[h])
		if err != nil {
			t.Fatal(err)
		}
		m.Export(h.Export(), module.KindFunc, m.Func(asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, nil, asm.I64C(int64(at)<<32|int64(len(b)))))
		m.Data(int32(at), b)
		at += len(b)
	}
	return m.Bytes()
}

func TestPolicyGate(t *testing.T) {
	text := func(key, s string) frame.Value { return frame.Value{Key: key, Type: frame.String, Text: s} }
	number := func(key string, n int64) frame.Value { return frame.Value{Key: key, Type: frame.I64, Int: n} }
	s := &frame.Strings{}
	wasm := canned(t, map[frame.Hook]*frame.Table{
		frame.Disrupt: {Hook: frame.Disrupt, Rows: 3, Ordered: true, Strings: s,
			Columns: []frame.Column{
				{ID: frame.AnswerDeny, Type: frame.U8, U8: []uint8{0, 1, 0}},
				{ID: frame.AnswerReason, Type: frame.String, Str: []uint32{frame.None, s.ID("too young"), frame.None}},
			},
			Context: []frame.Value{text("keep", "busy"), number("row", 2), text("code", "load"), text("defer", "soon"), number("seconds", 60)},
		},
		frame.Launch: {Hook: frame.Launch, Rows: 3, Ordered: true, Context: []frame.Value{
			text("restrict", ""), number("row", 0), number("row", 2), text("drop", "m7i.metal"), number("maxMicroUSD", 5), text("warn", "dear"), number("row", 1),
		}},
		frame.Admit: {Hook: frame.Admit, Rows: 1, Ordered: true, Context: []frame.Value{text("deny", "no limits"), text("code", "limits")}},
	})
	disrupt := &policy.DisruptInput{}
	disrupt.Command.Candidates = []policy.Candidate{{Node: "a"}, {Node: "b"}, {Node: "c"}}
	launch := &policy.LaunchInput{Claims: []policy.Claim{{Name: "x"}, {Name: "y"}, {Name: "z"}}}
	tests := map[policy.Hook]struct {
		in   policy.GateInput
		want policy.GateAnswer
	}{
		policy.Disrupt: {disrupt, policy.GateAnswer{
			Deny:  []policy.Reason{{Msg: "too young", Nodes: []string{"b"}}},
			Keep:  []policy.Reason{{Msg: "busy", Code: "load", Nodes: []string{"c"}}},
			Defer: []policy.Reason{{Msg: "soon", Seconds: 60}},
		}},
		policy.Launch: {launch, policy.GateAnswer{
			Restrict: []policy.Restriction{
				{Claim: "x", DropTypes: []string{"m7i.metal"}, MaxMicroUSD: 5, HasMax: true},
				{Claim: "z", DropTypes: []string{"m7i.metal"}, MaxMicroUSD: 5, HasMax: true},
			},
			Warn: []policy.Reason{{Msg: "dear", Claims: []string{"y"}}},
		}},
		policy.Admit: {&policy.AdmitInput{}, policy.GateAnswer{Deny: []policy.Reason{{Msg: "no limits", Code: "limits"}}}},
	}
	for hook, test := range tests {
		t.Run(string(hook), func(t *testing.T) {
			got, _, err := loadPolicy(t, Source{Name: "p", Hook: hook, Wasm: wasm}).Gate(t.Context(), test.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Gate() (-want +got):\n%s", diff)
			}
		})
	}
}

// fill sets every field below v to something that is not zero.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(*n)
	case reflect.Bool:
		v.SetBool(true)
	}
}

// TestColumnsAreThoseOfTheInput: each column has the value at its path in the row's JSON.
func TestColumnsAreThoseOfTheInput(t *testing.T) {
	n := int64(0)
	var offering policy.OfferingRow
	var node policy.Candidate
	var claim policy.Claim
	fill(reflect.ValueOf(&offering).Elem(), &n)
	fill(reflect.ValueOf(&node).Elem(), &n)
	fill(reflect.ValueOf(&claim).Elem(), &n)
	rows := map[frame.Hook]struct {
		row row
		of  any
	}{
		frame.Score:   {row{machine: offering.InstanceType, offering: &offering.Offering, daemons: &offering.DaemonOverhead}, offering},
		frame.Disrupt: {row{machine: node.InstanceType, offering: node.Offering, daemons: node.DaemonOverhead, node: &node}, node},
		frame.Launch:  {row{machine: claim.InstanceType, offering: &claim.Offering, daemons: &claim.DaemonOverhead, claim: &claim}, claim},
	}
	composed := []string{"cost", "bias", "types"} // not at their path, or only a part of it
	for hook, r := range rows {
		b, err := json.Marshal(r.of)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		d := json.NewDecoder(strings.NewReader(string(b)))
		d.UseNumber()
		if err := d.Decode(&tree); err != nil {
			t.Fatal(err)
		}
		for _, s := range frame.Specs() {
			if !slices.Contains(s.Hooks, hook) || slices.Contains(composed, s.Name) {
				continue
			}
			at := tree
			for part := range strings.SplitSeq(s.Name, ".") {
				fields, _ := at.(map[string]any)
				at = fields[part]
			}
			want := ""
			switch at := at.(type) {
			case nil:
				t.Errorf("%s: the input has no field %s", hook, s.Name)
				continue
			case bool:
				want = "1"
			case []any:
				want = fmt.Sprint(at[0])
			case map[string]any:
				for k, v := range at {
					want = fmt.Sprintf("%s=%v", k, v)
				}
			default:
				want = fmt.Sprint(at)
			}
			v := r.row.value(s.Name)
			got := v.text
			if s.Type != frame.String {
				got = fmt.Sprint(v.n)
			}
			if !v.ok || got != want {
				t.Errorf("%s: column %s = %q, want %q", hook, s.Name, got, want)
			}
		}
	}
}

func BenchmarkPolicyScore(b *testing.B) {
	p := loadPolicy(b, Source{Name: "p", Hook: policy.Score, Wasm: goModule(b)})
	in := inputOf(guest.Offerings(850, "licensed"))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := p.Score(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
