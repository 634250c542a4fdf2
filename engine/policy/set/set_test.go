package set_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
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
	"github.com/dovetail-sh/dovetail/engine/policy/source/remote"
)

func TestSet_Apply(t *testing.T) {
	activity := &set.Activity{}
	e := policy.NewEngine(policy.Options{OnDecision: activity.Observe})
	var mu sync.Mutex
	told := map[string]int{}
	s := set.New(set.Options{Engine: e, Loader: loader(t), Activity: activity, Changed: func(name string) {
		mu.Lock()
		defer mu.Unlock()
		told[name]++
	}})
	step := func(what string, np *v1alpha1.NodePolicy, wantCodes, wantReady, wantFetched, wantCompiled, wantErr string) v1alpha1.NodePolicyStatus {
		t.Helper()
		err := s.Apply(t.Context(), np)
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%s: error %v, want part %q", what, err, wantErr)
		}
		if got := codes(t, e); got != wantCodes {
			t.Errorf("%s: warnings %q, want %q", what, got, wantCodes)
		}
		st, ok := s.Status(np.Name)
		if !ok {
			t.Fatalf("%s: no status", what)
		}
		for kind, want := range map[string]string{v1alpha1.ConditionReady: wantReady, v1alpha1.ConditionFetched: wantFetched, v1alpha1.ConditionCompiled: wantCompiled} {
			if got := condition(st, kind); got != want {
				t.Errorf("%s: condition %s is %s, want %s", what, kind, got, want)
			}
		}
		if (st.LastError == "") != (wantErr == "") || !strings.Contains(st.LastError, wantErr) {
			t.Errorf("%s: last error %q, want part %q", what, st.LastError, wantErr)
		}
		if st.ObservedGeneration != np.Generation {
			t.Errorf("%s: observed generation %d, want %d", what, st.ObservedGeneration, np.Generation)
		}
		return st
	}
	const yes = "True/Succeeded"
	broken := inline("b", "package dovetail.admit.b\n\nwarn contains {")
	step("a policy that was never good", broken, "", "False/LoadFailed", yes, "False/LoadFailed", `policy "b": policy.rego:3:`)
	s.Remove("b")
	if _, ok := s.Status("b"); ok {
		t.Error("there is a status of a policy that was removed")
	}

	first := step("the first revision", inline("a", warns("one")), "a:one", yes, yes, yes, "")
	if !strings.HasPrefix(first.Revision, "sha256:") || !strings.HasPrefix(first.SourceDigest, "sha256:") {
		t.Errorf("revision %q, source digest %q, want digests", first.Revision, first.SourceDigest)
	}
	np := inline("a", warns("two"))
	np.Generation = 2
	second := step("the second revision", np, "a:two", yes, yes, yes, "")
	if second.Revision == first.Revision {
		t.Error("both revisions have one digest")
	}
	np = inline("a", "package dovetail.admit.p\n\nwarn contains {\"msg\": input.object.nonsense.x} if input.colour == 1\n")
	np.Generation = 3
	bad := step("a broken revision", np, "a:two", "True/LastGoodRevision", yes, "False/LoadFailed", "policy.rego:3:")
	if bad.Revision != second.Revision || !strings.Contains(bad.LastError, "revision "+second.Revision+" stays in force") {
		t.Errorf("revision %s, error %q, want that %s stays in force", bad.Revision, bad.LastError, second.Revision)
	}
	np = inline("a", warns("three"))
	np.Spec.Mode = "Audit"
	step("an invalid spec", np, "a:two", "True/LastGoodRevision", yes, "False/Invalid", "spec.mode: Unsupported")
	np = inline("a", warns("three"))
	np.Spec.Runtime, np.Spec.Source.Inline = "rego", nil
	np.Spec.Source.ConfigMapRef = &v1alpha1.ConfigMapReference{Namespace: "ns", Name: "p"}
	step("a source that cannot be had", np, "a:two", "True/LastGoodRevision", "False/FetchFailed", yes, "no cluster")
	np = inline("a", warns("three"))
	np.Spec.Mode = v1alpha1.ModeDisabled
	off := step("disabled", np, "", "False/Disabled", "Unknown/Disabled", "Unknown/Disabled", "")
	if off.Revision != "" {
		t.Errorf("revision %s of a disabled policy", off.Revision)
	}
	np = inline("a", warns("three"))
	np.Spec.Mode = v1alpha1.ModeShadow
	step("in the shadow", np, "", yes, yes, yes, "")
	step("back again", inline("a", warns("three")), "a:three", yes, yes, yes, "")
	before := told["a"]
	step("applied again", inline("a", warns("three")), "a:three", yes, yes, yes, "")
	if told["a"] != before {
		t.Errorf("told of %d changes where nothing has changed", told["a"]-before)
	}
	if told["a"] < 7 || told["b"] != 1 {
		t.Errorf("told of %d changes of a and %d of b", told["a"], told["b"])
	}
	st, _ := s.Status("a")
	if st.LastHour == nil || st.LastHour.Evaluations < 5 || st.LastHour.Errors != 0 || st.LastHour.MaxMicros < st.LastHour.MedianMicros {
		t.Errorf("last hour %+v", st.LastHour)
	}
	if err := s.Apply(t.Context(), inline("z", warns("z")), inline("b", "nonsense"), inline("0", warns("0"))); err == nil || strings.Count(err.Error(), "policy \"") != 1 {
		t.Errorf("error %v, want that of one policy of three", err)
	}
	if got, want := codes(t, e), "0:0 a:three z:z"; got != want {
		t.Errorf("warnings %q, want %q: a broken policy does not stop others", got, want)
	}
	s.Remove("a", "0", "unknown")
	if got := codes(t, e); got != "z:z" {
		t.Errorf("warnings %q after others were removed, want z:z", got)
	}
}

func TestSet_Apply_changedSpecWhileSourceIsDown(t *testing.T) {
	e := policy.NewEngine(policy.Options{})
	c := &cluster{maps: map[string]map[string]string{"ns/p": {"p.rego": "package dovetail.admit.p\n\nwarn contains {\"code\": input.parameters.code, \"msg\": \"m\"}\n"}}}
	s := set.New(set.Options{Engine: e, Loader: loader(t), Open: source.Opener{Objects: c}.Open})
	with := func(code string) *v1alpha1.NodePolicy {
		np := inline("a", "")
		np.Spec.Source = v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "ns", Name: "p"}}
		np.Spec.Parameters = raw(`{"code": %q}`, code)
		return np
	}
	if err := s.Apply(t.Context(), with("one")); err != nil {
		t.Fatal(err)
	}
	c.put("ns/p", nil)
	if err := s.Apply(t.Context(), with("two")); err == nil || !strings.Contains(err.Error(), "ConfigMap ns/p: not found") {
		t.Errorf("error %v, want that of the source", err)
	}
	if got := codes(t, e); got != "a:two" {
		t.Errorf("warnings %q, want a:two: new parameters for the files fetched before", got)
	}
	st, _ := s.Status("a")
	if got := condition(st, v1alpha1.ConditionFetched) + " " + condition(st, v1alpha1.ConditionReady); got != "False/FetchFailed True/LastGoodRevision" {
		t.Errorf("conditions %s", got)
	}
	if !strings.Contains(st.LastError, "stays in force") {
		t.Errorf("last error %q does not say what is in force", st.LastError)
	}
}

// TestSet_Run_reload measures how long after a change of its source a policy takes force.
func TestSet_Run_reload(t *testing.T) {
	dir := t.TempDir()
	c := &cluster{maps: map[string]map[string]string{}}
	file := filepath.Join(dir, "file", "p.rego")
	folder := filepath.Join(dir, "folder")
	var body atomic.Pointer[[]byte]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf("%q", digestOf(string(*body.Load())))
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", tag)
		_, _ = w.Write(*body.Load())
	}))
	defer server.Close()
	key := &v1alpha1.VerificationKey{Algorithm: "HS256", SecretRef: &v1alpha1.SecretKeyReference{SecretReference: v1alpha1.SecretReference{Namespace: "ns", Name: "key"}, Key: "hmac"}}
	sources := map[string]struct {
		source v1alpha1.PolicySource
		put    func(s *set.Set, text string)
	}{
		"file":   {v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: file}}, func(_ *set.Set, text string) { write(t, file, text) }},
		"folder": {v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: folder}}, func(_ *set.Set, text string) { write(t, folder+"/sub/p.rego", text) }},
		"ConfigMap with a watch": {v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "ns", Name: "p"}}, func(s *set.Set, text string) {
			c.put("ns/p", map[string]string{"p.rego": text})
			if err := s.Refresh(t.Context(), "p"); err != nil && strings.HasPrefix(text, "package") {
				t.Errorf("Refresh() = %v", err)
			}
		}},
		"ConfigMap without": {v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "ns", Name: "q"}}, func(_ *set.Set, text string) {
			c.put("ns/q", map[string]string{"p.rego": text})
		}},
		"signed bundle": {v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: server.URL, VerificationKey: key}}, func(_ *set.Set, text string) {
			b := signed(t, text)
			body.Store(&b)
		}},
	}
	for name, tt := range sources {
		t.Run(name, func(t *testing.T) {
			e := policy.NewEngine(policy.Options{})
			s := set.New(set.Options{Engine: e, Loader: loader(t), Open: source.Opener{Objects: c, Remote: remote.Options{Objects: c}.Open}.Open})
			tt.put(s, warns("one"))
			start(t, s)
			np := inline("p", "")
			np.Spec.Source = tt.source
			if err := s.Apply(t.Context(), np); err != nil {
				t.Fatal(err)
			}
			if got := codes(t, e); got != "p:one" {
				t.Fatalf("warnings %q, want p:one", got)
			}
			tt.put(s, "nonsense")
			eventually(t, "the status tells of the broken revision", func() bool {
				st, _ := s.Status("p")
				return strings.Contains(st.LastError, "stays in force")
			})
			if got := codes(t, e); got != "p:one" {
				t.Errorf("warnings %q, want p:one after a broken revision", got)
			}
			tt.put(s, warns("two"))
			took := eventually(t, "the second revision is in force", func() bool { return codes(t, e) == "p:two" })
			t.Logf("in force after %s", took)
			if took > time.Second {
				t.Errorf("in force %s after the change, want less than 1s", took)
			}
			st, _ := s.Status("p")
			if st.LastError != "" || condition(st, v1alpha1.ConditionReady) != "True/Succeeded" {
				t.Errorf("status %+v after the repair", st)
			}
		})
	}
}

// TestSet_Run_serverDown lets a web server fail and come back.
func TestSet_Run_serverDown(t *testing.T) {
	text := warns("one")
	var down atomic.Bool
	down.Store(true)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	a, err := source.New(map[string][]byte{"policy.rego": []byte(text)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: loader(t), Open: source.Opener{Remote: remote.Options{}.Open}.Open, Poll: 20 * time.Millisecond, MaxBackoff: 80 * time.Millisecond})
	start(t, s)
	np := inline("p", "")
	np.Spec.Source = v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: server.URL + "/p.rego", Digest: digestOf(text)}}
	if err := s.Apply(t.Context(), np); err == nil || !strings.Contains(err.Error(), "503") {
		t.Fatalf("error %v, want status 503", err)
	}
	eventually(t, "the server is asked again", func() bool { return asked.Load() > 3 })
	down.Store(false)
	eventually(t, "the policy is in force", func() bool { return codes(t, e) == "p:one" })
	st, _ := s.Status("p")
	if st.SourceDigest != a.Revision {
		t.Errorf("source digest %s, want %s", st.SourceDigest, a.Revision)
	}
	eventually(t, "the policy is at rest", func() bool {
		n := asked.Load()
		time.Sleep(100 * time.Millisecond)
		return asked.Load() == n
	})
}

// TestSet_swapUnderLoad swaps 1000 times while policies are asked all the time. Each
// revision says its number in its text, its parameters and its documents, and there are
// two policies which change together: an answer that mixes any of it shows.
func TestSet_swapUnderLoad(t *testing.T) {
	swaps := 1000
	if testing.Short() {
		swaps = 100
	}
	e := policy.NewEngine(policy.Options{})
	// A library of their own makes the policies compile without the one that ships.
	open := func(np *v1alpha1.NodePolicy) (source.Source, error) {
		a, err := source.New(map[string][]byte{"p.rego": []byte(*np.Spec.Source.Inline), "lib.rego": []byte("package dovetail.lib.own\n\none := 1\n")}, nil)
		return source.Fixed{Artifact: a}, err
	}
	s := set.New(set.Options{Engine: e, Loader: loader(t), Open: open})
	revision := func(name string, n int) *v1alpha1.NodePolicy {
		np := inline(name, fmt.Sprintf("package dovetail.admit.p\n\nwarn contains {\"code\": sprintf(\"%d/%%d/%%d\", [input.parameters.n, data.n]), \"msg\": \"m\"}\n", n))
		np.Spec.Parameters, np.Spec.Data = raw(`{"n": %d}`, n), &v1alpha1.PolicyData{Inline: raw(`{"n": %d}`, n)}
		return np
	}
	broken := func(name string, n int) *v1alpha1.NodePolicy {
		np := revision(name, n)
		text := strings.Replace(*np.Spec.Source.Inline, "sprintf", "nosuchfunction", 1)
		np.Spec.Source.Inline = &text
		return np
	}
	if err := s.Apply(t.Context(), revision("a", 0), revision("b", 0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var asked, latest atomic.Int64
	seen := make([]map[string]bool, 2)
	for i := range seen {
		seen[i] = map[string]bool{}
		wg.Go(func() {
			for ctx.Err() == nil {
				floor := latest.Load()
				v, err := e.Admit(context.WithoutCancel(ctx), sample.Admit())
				if err != nil {
					t.Errorf("an evaluation was lost: %v", err)
					return
				}
				asked.Add(1)
				if len(v.Policies) != 2 || len(v.Warn) != 2 || v.Policies[0].Error != "" || v.Policies[1].Error != "" {
					t.Errorf("verdict %+v, want a warning of each policy", v)
					return
				}
				var n int64
				if _, err := fmt.Sscanf(v.Warn[0].Code, "%d/", &n); err != nil {
					t.Errorf("code %q: %v", v.Warn[0].Code, err)
					return
				}
				if want := fmt.Sprintf("%d/%d/%d", n, n, n); v.Warn[0].Code != want || v.Warn[1].Code != want {
					t.Errorf("answers %s and %s mix revisions", v.Warn[0].Code, v.Warn[1].Code)
					return
				}
				if n < floor {
					t.Errorf("revision %d answers after %d took force", n, floor)
					return
				}
				seen[i][fmt.Sprint(n, v.Policies[0].Revision, v.Policies[1].Revision)] = true
			}
		})
	}
	refused := 0
	begin := time.Now()
	for n := 1; n <= swaps; n++ {
		if n%5 == 0 {
			if err := s.Apply(t.Context(), broken("a", n), broken("b", n)); err == nil {
				t.Fatal("a broken revision took force")
			}
			refused++
		}
		if err := s.Apply(t.Context(), revision("a", n), revision("b", n)); err != nil {
			t.Fatal(err)
		}
		latest.Store(int64(n))
	}
	took := time.Since(begin)
	cancel()
	wg.Wait()
	// A revision has one digest, whoever saw it.
	all := map[string]bool{}
	numbers := map[string]bool{}
	for _, m := range seen {
		for k := range m {
			all[k] = true
			n, _, _ := strings.Cut(k, "sha256")
			numbers[n] = true
		}
	}
	if len(all) != len(numbers) {
		t.Errorf("%d revisions answered under %d digests", len(numbers), len(all))
	}
	if len(numbers) < swaps/20 {
		t.Errorf("only %d revisions were asked in %d swaps", len(numbers), swaps)
	}
	t.Logf("swaps=%d refused=%d evaluations=%d revisions_asked=%d ms_per_swap=%.2f", swaps, refused, asked.Load(), len(numbers), float64(took.Microseconds())/1000/float64(swaps))
}

// closing is an evaluator that must not be asked after it was closed.
type closing struct {
	policy.Evaluator
	closed *atomic.Int64
	done   atomic.Bool
}

func (c *closing) Gate(ctx context.Context, _ policy.GateInput) (policy.GateAnswer, policy.Stats, error) {
	runtime.Gosched()
	if c.done.Load() {
		return policy.GateAnswer{}, policy.Stats{}, errors.New("asked after it was closed")
	}
	return policy.GateAnswer{}, policy.Stats{}, nil
}

func (c *closing) Reads() policy.Reads { return nil }

func (c *closing) Close() {
	c.done.Store(true)
	c.closed.Add(1)
}

// TestSet_closes swaps evaluators that need to be closed: each is once it is out of use,
// and none before.
func TestSet_closes(t *testing.T) {
	var made, closed atomic.Int64
	l := &set.Loader{Compilers: map[v1alpha1.Runtime]set.Compiler{v1alpha1.RuntimeRego: func(context.Context, set.Program) (policy.Evaluator, error) {
		made.Add(1)
		return &closing{closed: &closed}, nil
	}}}
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: l})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				v, err := e.Admit(context.WithoutCancel(ctx), sample.Admit())
				if err != nil || len(v.Policies) > 0 && v.Policies[0].Error != "" {
					t.Errorf("verdict %+v, %v", v, err)
					return
				}
			}
		})
	}
	const swaps = 1000
	for n := range swaps {
		if err := s.Apply(t.Context(), inline("a", warns(fmt.Sprint(n)))); err != nil {
			t.Fatal(err)
		}
		if n%100 == 0 {
			runtime.GC()
		}
	}
	// A spec that is applied again is not compiled again.
	if err := s.Apply(t.Context(), inline("a", warns(fmt.Sprint(swaps-1)))); err != nil {
		t.Fatal(err)
	}
	cancel()
	wg.Wait()
	s.Remove("a")
	eventually(t, "all evaluators are closed", func() bool {
		runtime.GC()
		return closed.Load() == swaps
	})
	if made.Load() != swaps {
		t.Errorf("%d evaluators were made in %d swaps", made.Load(), swaps)
	}
	runtime.KeepAlive(s)
	runtime.KeepAlive(e)
}

// stuck is a source that does not answer.
type stuck struct{}

func (stuck) Fetch(ctx context.Context) (source.Artifact, error) {
	<-ctx.Done()
	return source.Artifact{}, ctx.Err()
}

func TestSet_Run_stuckSource(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/p.rego", warns("one"))
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: loader(t), FetchTimeout: 100 * time.Millisecond, Poll: time.Millisecond, Open: func(np *v1alpha1.NodePolicy) (source.Source, error) {
		switch np.Name {
		case "stuck":
			return stuck{}, nil
		case "panics":
			return source.Source(nil), nil
		}
		return source.Opener{}.Open(np)
	}})
	start(t, s)
	hang, panics, p := inline("stuck", "x"), inline("panics", "x"), inline("p", "")
	p.Spec.Source = v1alpha1.PolicySource{File: &v1alpha1.FileSource{Path: dir}}
	if err := s.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), hang, panics); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the source panicked") {
		t.Errorf("error %v, want that the fetch took too long and that the other panicked", err)
	}
	write(t, dir+"/p.rego", warns("two"))
	if took := eventually(t, "the other policy is reloaded", func() bool { return codes(t, e) == "p:two" }); took > time.Second {
		t.Errorf("reloaded after %s beside a stuck source", took)
	}
}

func TestSet_Run_folder(t *testing.T) {
	dir := t.TempDir()
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: loader(t), Folder: dir, FilePoll: 20 * time.Millisecond})
	start(t, s)
	eventually(t, "the empty folder is reported", func() bool { return s.FolderError() != nil })
	manifest := func(name, code string) string {
		return fmt.Sprintf("apiVersion: dovetail.sh/v1alpha1\nkind: NodePolicy\nmetadata: {name: %s}\nspec: {parameters: {code: %s}, timeout: 10s}\n", name, code)
	}
	write(t, dir+"/a.rego", "package dovetail.admit.a\n\nwarn contains {\"code\": input.parameters.code, \"msg\": \"m\"}\n")
	write(t, dir+"/a.yaml", manifest("a", "one"))
	eventually(t, "a is in force", func() bool { return codes(t, e) == "a:one" })
	if err := s.FolderError(); err != nil {
		t.Errorf("FolderError() = %v", err)
	}
	write(t, dir+"/a.yaml", manifest("a", "two"))
	eventually(t, "the new parameters are in force", func() bool { return codes(t, e) == "a:two" })
	write(t, dir+"/a.yaml", "kind: NodePolicy\nspec: {")
	eventually(t, "the broken manifest is reported", func() bool { return s.FolderError() != nil && strings.Contains(s.FolderError().Error(), "a.yaml") })
	if got := codes(t, e); got != "a:two" {
		t.Errorf("warnings %q after the manifest broke, want a:two", got)
	}
	// A NodePolicy of the cluster and one of the folder may have one name.
	if err := s.Apply(t.Context(), inline("b", warns("cluster"))); err != nil {
		t.Fatal(err)
	}
	write(t, dir+"/b.rego", strings.Replace(warns("folder"), "admit.p", "admit.b", 1))
	write(t, dir+"/a.yaml", manifest("a", "three"))
	eventually(t, "all are in force", func() bool { return codes(t, e) == "a:three b:cluster folder/b:folder" })
	if err := os.Remove(dir + "/b.rego"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that of the folder is gone", func() bool { return codes(t, e) == "a:three b:cluster" })
	s.Remove("a")
	if got := codes(t, e); got != "a:three b:cluster" {
		t.Errorf("warnings %q, want that policies of the folder stay", got)
	}
}

// TestSet_restart starts anew while a source is down.
func TestSet_restart(t *testing.T) {
	dir := t.TempDir()
	c := &cluster{maps: map[string]map[string]string{"ns/p": {"p.rego": warns("one")}}}
	begin := func() (*set.Set, *policy.Engine) {
		e := policy.NewEngine(policy.Options{})
		return set.New(set.Options{Engine: e, Loader: loader(t), Open: source.Opener{Objects: c}.Open, CacheDir: dir}), e
	}
	np := func() *v1alpha1.NodePolicy {
		np := inline("p", "")
		np.Spec.Source = v1alpha1.PolicySource{ConfigMapRef: &v1alpha1.ConfigMapReference{Namespace: "ns", Name: "p"}}
		return np
	}
	s, _ := begin()
	if err := s.Apply(t.Context(), np()); err != nil {
		t.Fatal(err)
	}
	// What was refused is not kept.
	c.put("ns/p", map[string]string{"p.rego": "nonsense"})
	if err := s.Refresh(t.Context()); err == nil {
		t.Fatal("nonsense took force")
	}
	c.put("ns/p", nil)
	s, e := begin()
	if err := s.Apply(t.Context(), np()); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("error %v, want that of the source", err)
	}
	if got := codes(t, e); got != "p:one" {
		t.Errorf("warnings %q after a restart, want p:one", got)
	}
	if st, _ := s.Status("p"); condition(st, v1alpha1.ConditionReady) != "True/LastGoodRevision" || !strings.Contains(st.LastError, "stays in force") {
		t.Errorf("status %+v", st)
	}

	other := np()
	other.Spec.Source.ConfigMapRef.Key = "p.rego"
	s, e = begin()
	if err := s.Apply(t.Context(), other); err == nil || codes(t, e) != "" {
		t.Errorf("error %v, warnings %q: another source got what was kept", err, codes(t, e))
	}
	files, err := filepath.Glob(dir + "/*")
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v (%v), want one", files, err)
	}
	kept, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	write(t, files[0], strings.Replace(string(kept), `"p.rego"`, `"q.rego"`, 1))
	s, e = begin()
	if err := s.Apply(t.Context(), np()); err == nil || codes(t, e) != "" {
		t.Errorf("error %v, warnings %q: a damaged file was used", err, codes(t, e))
	}
	s.Remove("p")
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 0 {
		t.Errorf("files %v of a policy that was removed", files)
	}
}

// TestSet_staleDocuments tells a policy that its documents are old.
func TestSet_staleDocuments(t *testing.T) {
	rates := map[string]string{"rates.json": `{"m7i": 3}`}
	c := &cluster{maps: map[string]map[string]string{"ns/rates": rates}}
	e := policy.NewEngine(policy.Options{})
	s := set.New(set.Options{Engine: e, Loader: loader(t), Open: source.Opener{Objects: c}.Open, StaleAfter: 10 * time.Millisecond})
	np := inline("p", "package dovetail.admit.p\n\nwarn contains {\"code\": sprintf(\"%v/%v\", [input.documents.rates.stale, input.documents.fee.stale]), \"msg\": \"m\"} if data.rates.m7i == 3\n")
	np.Spec.Data = &v1alpha1.PolicyData{Inline: raw(`{"fee": 1}`), ConfigMapRefs: []v1alpha1.ConfigMapReference{{Namespace: "ns", Name: "rates"}}}
	if err := s.Apply(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	if got := codes(t, e); got != "p:false/false" {
		t.Errorf("warnings %q of fresh documents", got)
	}
	c.put("ns/rates", nil)
	eventually(t, "the documents are stale", func() bool {
		if err := s.Refresh(t.Context()); err == nil {
			t.Fatal("Refresh() succeeded without the ConfigMap")
		}
		return codes(t, e) == "p:true/false"
	})
	c.put("ns/rates", rates)
	if err := s.Refresh(t.Context(), "p"); err != nil {
		t.Fatal(err)
	}
	if got := codes(t, e); got != "p:false/false" {
		t.Errorf("warnings %q of documents that are fresh again", got)
	}
}
