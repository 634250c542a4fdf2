package set_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

// numbered is the guest in C with its number in the code and in the message of a denial.
func numbered(t testing.TB, guest []byte, n int) []byte {
	t.Helper()
	const was = "burstableburstable family"
	if bytes.Count(guest, []byte(was)) != 1 {
		t.Fatalf("the guest has no text %q to put a number in", was)
	}
	return bytes.Replace(guest, []byte(was), fmt.Appendf(nil, "code%05drevision %07d", n, n)[:len(was)], 1)
}

// TestSet_wasm swaps 1000 revisions of a module while it is asked all the time: no answer is
// lost, or of two revisions. Then 10 000 decisions replay to the same verdict.
func TestSet_wasm(t *testing.T) {
	swaps, decisions := 1000, 10_000
	if testing.Short() {
		swaps, decisions = 50, 500
	}
	guest, err := os.ReadFile("../wasm/internal/guest/testdata/c/score.wasm")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	var logging atomic.Bool
	write := policy.NewLog(&log, func(err error) { t.Error(err) })
	e := policy.NewEngine(policy.Options{OnDecision: func(r policy.Record, in any) {
		if logging.Load() {
			write(r, in)
		}
	}})
	var module atomic.Pointer[[]byte]
	// Fifty modules take turns, so that most are compiled already.
	const modules = 50
	host, err := wasm.NewHost(wasm.HostOptions{CacheDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s := set.New(set.Options{Engine: e, Loader: &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{v1alpha1.RuntimeWasm: compileWasm(host)}}, Open: func(*v1alpha1.NodePolicy) (source.Source, error) {
		a, err := source.New(map[string][]byte{"p.wasm": *module.Load()}, nil)
		return source.Fixed{Artifact: a}, err
	}})
	apply := func(n int, b []byte) error {
		module.Store(&b)
		np := inline("p", "")
		np.Generation = int64(n)
		np.Spec.Hook, np.Spec.Runtime, np.Spec.Source = "score", "wasm", v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "ns", Name: fmt.Sprintf("p%d-%d", n, len(b))}}
		return s.Apply(t.Context(), np)
	}
	// Every question is a new one, so that no answer is one from before.
	var number atomic.Int64
	question := func() *policy.ScoreInput {
		in := sample.Licensed(58)
		rows := in.Candidates.Rows[52:58] // types that are denied by number, and others
		rows[0].Offering.ListPrice += number.Add(1)
		in.Candidates = policy.NewOfferings("", rows)
		return in
	}
	if err := apply(0, numbered(t, guest, 0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var asked, latest atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			floor := latest.Load()
			scores, err := e.Score(context.WithoutCancel(ctx), question())
			if err != nil || len(scores.Policies) != 1 || scores.Policies[0].Error != "" {
				t.Errorf("an evaluation was lost: %v, %+v", err, scores)
				return
			}
			asked.Add(1)
			codes, texts := map[string]bool{}, map[string]bool{}
			for code := range scores.Policies[0].Denied {
				if n, ok := strings.CutPrefix(code, "code"); ok {
					codes[n] = true
				}
			}
			for _, why := range scores.Deny {
				if _, n, ok := strings.Cut(why, "revision 00"); ok {
					texts[n] = true
				}
			}
			var n int64
			for code := range codes {
				if _, err := fmt.Sscanf(code, "%d", &n); err != nil {
					t.Error(err)
				}
			}
			inForce := false
			for m := floor; m <= latest.Load()+1; m++ {
				inForce = inForce || m%modules == n
			}
			if len(codes) != 1 || !maps.Equal(codes, texts) || !inForce {
				t.Errorf("an answer with codes %v and messages %v while revision %d or a later one was in force", codes, texts, floor)
				return
			}
		}
	})
	refused, begin := 0, time.Now()
	for n := 1; n <= swaps; n++ {
		if n%10 == 0 {
			if err := apply(n, guest[:len(guest)/2]); err == nil {
				t.Fatal("half a module took force")
			}
			refused++
		}
		if err := apply(n, numbered(t, guest, n%modules)); err != nil {
			t.Fatal(err)
		}
		latest.Store(int64(n))
	}
	cancel()
	wg.Wait()

	t.Logf("swapped after %s", time.Since(begin))
	logging.Store(true)
	different := map[string]bool{}
	replayed, differences := 0, 0
	for range decisions {
		if _, err := e.Score(t.Context(), question()); err != nil {
			t.Fatal(err)
		}
		var l policy.Logged
		if err := json.Unmarshal(log.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		diffs, err := e.Replay(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		replayed++
		differences += len(diffs)
		different[l.Record.ResultDigest] = true
	}
	t.Logf("runtime=wasm swaps=%d refused=%d evaluations=%d replays=%d verdicts=%d differences=%d", swaps, refused, asked.Load(), replayed, len(different), differences)
	if differences > 0 || len(different) < decisions/2 || asked.Load() < int64(swaps)/10 {
		t.Errorf("%d differences in %d replays of %d verdicts; %d evaluations during the swaps", differences, replayed, len(different), asked.Load())
	}
}
