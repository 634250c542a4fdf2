package rego_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

// TestHostile asks every policy of testdata/hostile. The head of each file says for which
// hook it is, which error classes are right, and what the error must say.
func TestHostile(t *testing.T) {
	files, err := filepath.Glob("testdata/hostile/*.rego")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("%d hostile policies, want at least 50", len(files))
	}
	good := map[policy.Hook]*rego.Module{}
	for _, h := range policy.Hooks() {
		text := "package dovetail." + string(h) + ".good\n\ndeny contains "
		if h == policy.Score {
			text += `{"i": 1, "msg": "m"}`
		} else {
			text += `"m"`
		}
		good[h] = load(t, source(h, text))
	}
	before := runtime.NumGoroutine()
	contained, worst := 0, 0.0
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".rego"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head := map[string]string{}
			for line := range strings.Lines(string(b)) {
				k, v, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": ")
				if !strings.HasPrefix(line, "# ") || !ok {
					break
				}
				head[k] = strings.TrimSpace(v)
			}
			hook := policy.Hook(head["hook"])
			name := "hostile/" + filepath.Base(file)
			in := input(hook)
			limits := policy.DefaultLimits(hook)
			limit := limits.Deadline + 20*time.Millisecond
			var took time.Duration
			// On a busy machine a goroutine may wait longer than that for a processor, so
			// the best of three counts.
			for range 3 {
				var m *rego.Module
				m, err = rego.Load(t.Context(), rego.Source{Name: "bad", Hook: hook, Files: map[string]string{name: string(b)}})
				if err != nil {
					break
				}
				begin := time.Now()
				_, err = ask(t.Context(), m, in)
				if took = time.Since(begin); took <= limit {
					break
				}
			}
			class := policy.ClassOf(err)
			if !slices.Contains(strings.Fields(head["want"]), string(class)) {
				t.Errorf("error %v of class %q, want class %s", err, class, head["want"])
			}
			if err != nil && !strings.Contains(err.Error(), head["says"]) {
				t.Errorf("error:\n%v\nwant it to contain:\n%s", err, head["says"])
			}
			if took > limit {
				t.Errorf("the evaluation came back after %s, want %s", took, limit)
			} else if err != nil {
				contained++
			}
			worst = max(worst, float64(took)/float64(limits.Deadline))
			if _, err := ask(t.Context(), good[hook], in); err != nil {
				t.Errorf("the next evaluation of another policy: %v", err)
			}
		})
	}
	t.Logf("guests=%d contained=%d worst_overrun=%.2fx deadline", len(files), contained, worst)
	// Operations that could not be interrupted end by themselves after a while.
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(20 * time.Millisecond)
	}
}
