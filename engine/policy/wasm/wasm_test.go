package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/asm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/guest"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/module"
)

func guests(t testing.TB) map[string][]byte {
	return map[string][]byte{"go": goModule(t), "c": guest.C}
}

// TestGuestsAgreeWithNative: both guests, metered and not, give what the rules in Go give.
func TestGuestsAgreeWithNative(t *testing.T) {
	h := newHost(t)
	for name, wasm := range guests(t) {
		for _, unmetered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s unmetered=%t", name, unmetered), func(t *testing.T) {
				m := load(t, h, Options{Wasm: wasm, Unmetered: unmetered})
				for _, rows := range []int{0, 1, 850, 8160} {
					question := guest.Offerings(rows, "licensed")
					got, stats, err := m.Eval(t.Context(), frame.Score, question)
					if err != nil {
						t.Fatalf("%d rows: %v", rows, err)
					}
					want := guest.Native(question)
					if len(want.Cost) == 0 {
						want.Cost = nil
					}
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%d rows: answer (-native +guest):\n%.2000s", rows, diff)
					}
					if stats.Rows != rows || (stats.Fuel > 0) == unmetered || stats.ResultBytes == 0 {
						t.Errorf("%d rows: stats %+v", rows, stats)
					}
				}
			})
		}
	}
}

// TestDeterminism asks one question a thousand times, of used and new instances.
func TestDeterminism(t *testing.T) {
	h := newHost(t)
	for name, wasm := range guests(t) {
		t.Run(name, func(t *testing.T) {
			m := load(t, h, Options{Wasm: wasm, Instances: 2})
			fresh := load(t, h, Options{Wasm: wasm, Fresh: true})
			question := guest.Offerings(850, "arm")
			want := fmt.Sprint(guest.Native(question))
			var units int64
			for i := range 1000 {
				from := m
				if i%20 == 0 {
					from = fresh
				}
				got, stats, err := from.Eval(t.Context(), frame.Score, question)
				if err != nil {
					t.Fatal(err)
				}
				if text := fmt.Sprint(got); text != want {
					t.Fatalf("answer %d differs", i)
				}
				if from == fresh { // the first call of an instance: equal to the last unit
					if units != 0 && stats.Fuel != units {
						t.Fatalf("answer %d took %d units, not %d", i, stats.Fuel, units)
					}
					units = stats.Fuel
				}
			}
			if opened, _ := fresh.Instances(); opened < 50 {
				t.Errorf("only %d instances were opened", opened)
			}
		})
	}
}

func TestDescription(t *testing.T) {
	m := load(t, newHost(t), Options{Wasm: goModule(t)})
	want := Description{Name: "go-guest", Version: "1.2.3", Columns: []string{
		"cost", "offering.interruptionRate", "instanceType.cpu", "instanceType.memory", "instanceType.family", "instanceType.arch", "offering.capacityType",
	}, Uses: []string{"nodePool.labels"}, TimeResolution: "1m", Guardrail: true}
	if diff := cmp.Diff(want, m.Description()); diff != "" {
		t.Errorf("Description() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]frame.Hook{frame.Score, frame.Admit}, m.Hooks()); diff != "" {
		t.Errorf("Hooks() (-want +got):\n%s", diff)
	}
}

func TestParameters(t *testing.T) {
	h := newHost(t)
	m := load(t, h, Options{Wasm: goModule(t), Parameters: []byte(`{"team":"web"}`)})
	got, _, err := m.Eval(t.Context(), frame.Admit, admission("settings"))
	if err != nil {
		t.Fatal(err)
	}
	if got.Opinions[0].Message != `{"team":"web"}` {
		t.Errorf("the guest has the settings %q", got.Opinions[0].Message)
	}
	_, err = h.Load(t.Context(), Options{Name: "p", Wasm: goModule(t), Parameters: []byte(`{"refuse":1}`)})
	if class(err) != policy.ClassLoad || !strings.Contains(err.Error(), "settings: parameter refuse is not supported") {
		t.Errorf("Load() error = %v", err)
	}
}

// TestParameters_schema: parameters are held against the module's own schema before the
// module sees them.
func TestParameters_schema(t *testing.T) {
	described := func(manifest string) []byte {
		name := append([]byte{byte(len(descriptionSection))}, descriptionSection...)
		return slices.Concat(guest.C, asm.Section(0, append(name, manifest...)))
	}
	const schema = `{"type":"object"}`
	var asked []string
	check := func(schema, parameters []byte) error {
		asked = append(asked, string(schema)+" "+string(parameters))
		if strings.Contains(string(parameters), "bad") {
			return errors.New("bad: is not allowed")
		}
		return nil
	}
	tests := map[string]struct {
		manifest, parameters string
		check                func(schema, parameters []byte) error
		want                 []string
		mention              string
	}{
		"that match":         {manifest: `{"settingsSchema":` + schema + `}`, parameters: `{"a":1}`, check: check, want: []string{schema + ` {"a":1}`}},
		"that do not":        {manifest: `{"settingsSchema":` + schema + `}`, parameters: `{"bad":1}`, check: check, want: []string{schema + ` {"bad":1}`}, mention: "parameters do not match settingsSchema: bad: is not allowed"},
		"none":               {manifest: `{"settingsSchema":` + schema + `}`, check: check, want: []string{schema + " "}},
		"a module without":   {manifest: `{"name":"x"}`, parameters: `{"bad":1}`, check: check},
		"a host that cannot": {manifest: `{"settingsSchema":` + schema + `}`, mention: "this host cannot hold parameters against a schema"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			asked = nil
			h, err := NewHost(HostOptions{CacheDir: cacheDir(t), CheckParameters: test.check})
			if err != nil {
				t.Fatal(err)
			}
			m, err := h.Load(t.Context(), Options{Name: "p", Wasm: described(test.manifest), Parameters: []byte(test.parameters)})
			if m != nil {
				t.Cleanup(m.Close)
			}
			if test.mention != "" && (class(err) != policy.ClassLoad || !strings.Contains(err.Error(), test.mention)) || test.mention == "" && err != nil {
				t.Errorf("Load() error = %v, want class Load with %q", err, test.mention)
			}
			if d := cmp.Diff(test.want, asked); d != "" {
				t.Errorf("checked (-want +got):\n%s", d)
			}
		})
	}
}

// TestGoGuestMisbehaves: each way to fail has its class, and the next call works.
func TestGoGuestMisbehaves(t *testing.T) {
	h := newHost(t)
	m := load(t, h, Options{Name: "my-policy", Wasm: goModule(t)})
	tests := map[string]struct {
		class   policy.Class
		mention string
	}{
		"panic": {policy.ClassTrap, "panic: assignment to entry in nil map"},
		"spin":  {policy.ClassFuel, "dv_admit: out of fuel after 5000000 units"},
		"hoard": {policy.ClassMemory, "out of memory"},
		"fail":  {policy.ClassTrap, "rates: no rate table"},
	}
	for mode, test := range tests {
		t.Run(mode, func(t *testing.T) {
			_, _, err := m.Eval(t.Context(), frame.Admit, admission(mode))
			if class(err) != test.class || !strings.Contains(err.Error(), test.mention) || !strings.Contains(err.Error(), `policy "my-policy"`) {
				t.Errorf("Eval() error = %v, want class %s and %q", err, test.class, test.mention)
			}
			if _, _, err := m.Eval(t.Context(), frame.Admit, admission("")); err != nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

func TestSandbox(t *testing.T) {
	m := load(t, newHost(t), Options{Wasm: goModule(t), Instances: 2})
	ask := func(mode string) (string, Stats) {
		t.Helper()
		a, stats, err := m.Eval(t.Context(), frame.Admit, admission(mode))
		if err != nil {
			t.Fatal(err)
		}
		return a.Opinions[0].Message, stats
	}
	t.Run("the wall clock stands still", func(t *testing.T) {
		for range 3 {
			if got, _ := ask("clock"); got != "2022-01-01T00:00:00Z" {
				t.Errorf("the guest sees the time %s", got)
			}
		}
	})
	t.Run("random bytes are the same in each call", func(t *testing.T) {
		first, _ := ask("random")
		for range 3 {
			if got, _ := ask("random"); got != first {
				t.Errorf("random bytes %q, then %q", first, got)
			}
		}
	})
	t.Run("sleep returns at once", func(t *testing.T) {
		start := time.Now()
		ask("sleep")
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("sleeping took %v", took)
		}
	})
	t.Run("what a guest prints is logged", func(t *testing.T) {
		_, stats := ask("print")
		want := []LogLine{{Error, "to standard error"}, {Warn, "to the log"}}
		if diff := cmp.Diff(want, stats.Log); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
	t.Run("a flood of log lines is cut and counted", func(t *testing.T) {
		_, stats := ask("flood")
		if len(stats.Log) != MaxLogLines || stats.Dropped != 1000-MaxLogLines || len(stats.Log[0].Text) != MaxLogLine {
			t.Errorf("%d lines of %d bytes, %d dropped", len(stats.Log), len(stats.Log[0].Text), stats.Dropped)
		}
	})
}

func TestEvalWithoutHook(t *testing.T) {
	m := load(t, newHost(t), Options{Wasm: guest.C})
	_, _, err := m.Eval(t.Context(), frame.Admit, admission(""))
	if class(err) != policy.ClassUndefined || !strings.Contains(err.Error(), "dv_admit") {
		t.Errorf("Eval() error = %v, want class %s", err, policy.ClassUndefined)
	}
}

func TestEvalCanceled(t *testing.T) {
	m := load(t, newHost(t), Options{Wasm: goModule(t), Budgets: map[frame.Hook]Budget{frame.Admit: {Timeout: time.Minute, Fuel: 1 << 40}}})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	start := time.Now()
	_, _, err := m.Eval(ctx, frame.Admit, admission("spin"))
	if class(err) != policy.ClassCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("Eval() error = %v, want class %s", err, policy.ClassCanceled)
	}
	if took := time.Since(start); took > 80*time.Millisecond {
		t.Errorf("took %v, canceled after 30ms", took)
	}
}

func TestInstancesAreReused(t *testing.T) {
	h := newHost(t)
	question := guest.Offerings(10)
	t.Run("until they are worn out", func(t *testing.T) {
		m := load(t, h, Options{Wasm: guest.C, Instances: 1, Calls: 10})
		before, _ := m.Instances()
		for range 30 {
			if _, _, err := m.Eval(t.Context(), frame.Score, question); err != nil {
				t.Fatal(err)
			}
		}
		if after, _ := m.Instances(); after-before < 2 || after-before > 4 {
			t.Errorf("%d instances for 30 calls of at most 10 each", after-before)
		}
	})
	t.Run("by calls at the same time, one each", func(t *testing.T) {
		m := load(t, h, Options{Wasm: goModule(t), Instances: 2})
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 20 {
					if _, _, err := m.Eval(t.Context(), frame.Score, question); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if opened, discarded := m.Instances(); opened != 2 || discarded != 0 {
			t.Errorf("%d instances opened and %d discarded, want 2 and 0", opened, discarded)
		}
	})
}

func TestCloseWaitsAndEndsTheModule(t *testing.T) {
	h := newHost(t)
	m := load(t, h, Options{Wasm: guest.C})
	question := guest.Offerings(850)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				_, _, err := m.Eval(context.Background(), frame.Score, question)
				if err == nil {
					continue
				}
				if class(err) != policy.ClassLoad || !strings.Contains(err.Error(), "closed") {
					t.Errorf("a call while closing: %v", err)
				}
				return
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	m.Close()
	wg.Wait()
}

func TestNewHostRefuses(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		opts    HostOptions
		mention string
	}{
		"a cache that others may write to": {HostOptions{CacheDir: open}, "mode 0777"},
		"a child process without a cache":  {HostOptions{CompileCommand: []string{"x"}}, "needs a cache directory"},
		"a negative concurrency":           {HostOptions{Concurrency: -1}, "negative"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := NewHost(test.opts); err == nil || !strings.Contains(err.Error(), test.mention) {
				t.Errorf("NewHost() error = %v, want one with %q", err, test.mention)
			}
		})
	}
}

func TestCompileInThisProcess(t *testing.T) {
	h, err := NewHost(HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, h, Options{Wasm: guest.C})
	if _, _, err := m.Eval(t.Context(), frame.Score, guest.Offerings(3)); err != nil {
		t.Error(err)
	}
}

// TestStopTheWorld measures how long a garbage collection waits while a guest spins.
func TestStopTheWorld(t *testing.T) {
	m := load(t, newHost(t), Options{Wasm: goModule(t), Budgets: map[frame.Hook]Budget{frame.Admit: {Timeout: 1500 * time.Millisecond, Fuel: 1 << 40}}})
	done := make(chan error, 1)
	go func() {
		_, _, err := m.Eval(context.Background(), frame.Admit, admission("spin"))
		done <- err
	}()
	var waits []time.Duration
	for {
		select {
		case err := <-done:
			if class(err) != policy.ClassDeadline {
				t.Fatalf("Eval() error = %v, want class %s", err, policy.ClassDeadline)
			}
			slices.Sort(waits)
			n := len(waits)
			t.Logf("%d stops of the world while a guest spins: median %v, 95%% within %v, worst %v", n, waits[n/2], waits[n*95/100], waits[n-1])
			if n < 20 {
				t.Errorf("only %d stops were measured", n)
			}
			// Single stops may have waited for other processes of the machine; a guest that
			// holds the processor makes them all wait.
			if w := waits[n*95/100]; w > 20*time.Millisecond {
				t.Errorf("5%% of the stops took more than %v, want at most 20ms", w)
			}
			return
		default:
		}
		start := time.Now()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats) // stops the world
		waits = append(waits, time.Since(start))
		time.Sleep(5 * time.Millisecond)
	}
}

func BenchmarkScore(b *testing.B) {
	h := newHost(b)
	question := guest.Offerings(850, "licensed")
	b.Run("native", func(b *testing.B) {
		for b.Loop() {
			guest.Native(question)
		}
	})
	for name, wasm := range guests(b) {
		for _, metered := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/metered=%t", name, metered), func(b *testing.B) {
				m := load(b, h, Options{Wasm: wasm, Unmetered: !metered, Instances: 1})
				var used Stats
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if _, used, err = m.Eval(b.Context(), frame.Score, question); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(used.Fuel), "units")
			})
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	h := newHost(b)
	for name, wasm := range guests(b) {
		b.Run(name, func(b *testing.B) {
			m := load(b, h, Options{Wasm: wasm, Fresh: true})
			question := guest.Offerings(10)
			for b.Loop() {
				if _, _, err := m.Eval(b.Context(), frame.Score, question); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	h := newHost(b)
	for name, wasm := range guests(b) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				m, err := h.Load(b.Context(), Options{Name: name, Wasm: wasm})
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
			}
		})
	}
}

func TestStructureOfHonestGuests(t *testing.T) {
	for name, wasm := range guests(t) {
		m := load(t, newHost(t), Options{Wasm: wasm})
		r := m.Structure()
		t.Logf("%s: %+v", name, r)
		if r.Functions == 0 || r.Charges < r.Functions {
			t.Errorf("%s: %+v: fewer charges than functions", name, r)
		}
	}
}

// TestCompileIsLimited: a module that needs more memory than compiling may take.
func TestCompileIsLimited(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHost(HostOptions{CacheDir: t.TempDir(), CompileCommand: []string{self, childArg}, CompileMemory: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	m := &asm.Module{}
	m.Memory(4, -1)
	m.Export("memory", module.KindMemory, 0)
	m.Export("dv_abi_1", module.KindFunc, m.Func(nil, asm.T{asm.I32}, nil, asm.I32C(0)))
	m.Export("dv_alloc", module.KindFunc, m.Func(asm.T{asm.I32}, asm.T{asm.I32}, nil, asm.I32C(0)))
	m.Export("dv_score", module.KindFunc, m.Func(asm.T{asm.I32, asm.I32}, asm.T{asm.I64}, nil, asm.I64C(0)))
	m.Passive(make([]byte, 15<<20))
	_, err = h.Load(t.Context(), Options{Name: "p", Wasm: m.Bytes()})
	if class(err) != policy.ClassLoad || !errors.Is(err, ErrCompile) || !strings.Contains(err.Error(), "more than 8 MiB of memory") {
		t.Errorf("Load() error = %v, want %v", err, ErrCompile)
	}
}

func TestCompilerThatCannotRun(t *testing.T) {
	for name, command := range map[string][]string{
		"no such program": {filepath.Join(t.TempDir(), "none")}, "another program": {"/bin/true"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := NewHost(HostOptions{CacheDir: t.TempDir(), CompileCommand: command})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Load(t.Context(), Options{Name: "p", Wasm: guest.C}); !errors.Is(err, ErrCompile) {
				t.Errorf("Load() error = %v, want %v", err, ErrCompile)
			}
		})
	}
}

// TestCGuestIsReproducible compiles the C guest anew where the compiler is at hand.
func TestCGuestIsReproducible(t *testing.T) {
	version, err := exec.Command("clang", "--version").Output()
	if err != nil || !strings.Contains(string(version), "clang version 14.") {
		t.Skip("needs clang 14")
	}
	if _, err := exec.LookPath("wasm-ld"); err != nil {
		t.Skip("needs lld")
	}
	out := filepath.Join(t.TempDir(), "score.wasm")
	cmd := exec.Command("clang", "--target=wasm32", "-O2", "-nostdlib", "-ffreestanding", "-mbulk-memory",
		"-Wl,--no-entry", "-Wl,--strip-all", "-o", out, "score.c")
	cmd.Dir = filepath.Join("internal", "guest", "testdata", "c")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, msg)
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, guest.C) {
		t.Error("score.wasm is not what score.c compiles to")
	}
}
