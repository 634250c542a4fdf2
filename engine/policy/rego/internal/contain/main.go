// Command contain asks hostile Rego policies and prints a line for each that is not
// contained, and at last a line of totals:
//
//	guests=<n> contained=<n> worst_overrun=<time used, in deadlines>
//
// A policy is contained if it is refused or stopped within its deadline and 20 ms, with
// the error that its head asks for, and another policy answers next. It exits with 1 if
// any is not. With -v it prints a line for each.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

func main() {
	dir := flag.String("dir", "engine/policy/rego/testdata/hostile", "folder of the policies")
	verbose := flag.Bool("v", false, "print a line for each policy")
	flag.Parse()
	if err := run(context.Background(), *dir, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "contain:", err)
		os.Exit(1)
	}
}

// late is how long after its deadline a policy may be stopped.
const late = 20 * time.Millisecond

func run(ctx context.Context, dir string, verbose bool) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.rego"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no policy", dir)
	}
	good := map[policy.Hook]*rego.Module{}
	for _, h := range policy.Hooks() {
		answer := `"m"`
		if h == policy.Score {
			answer = `{"i": 1, "msg": "m"}`
		}
		text := "package dovetail." + string(h) + ".good\n\ndeny contains " + answer
		if good[h], err = rego.Load(ctx, rego.Source{Name: "good", Hook: h, Files: map[string]string{"good.rego": text}}); err != nil {
			return err
		}
	}
	contained, worst := 0, 0.0
	for _, file := range files {
		took, deadline, err := judge(ctx, file, good)
		if err == nil {
			contained++
		} else {
			fmt.Printf("not contained: %s: %v\n", filepath.Base(file), err)
		}
		if verbose {
			fmt.Printf("%-60s %v\n", filepath.Base(file), took.Round(100*time.Microsecond))
		}
		worst = max(worst, float64(took)/float64(deadline))
	}
	fmt.Printf("guests=%d contained=%d worst_overrun=%.2fx\n", len(files), contained, worst)
	if contained < len(files) {
		return fmt.Errorf("%d policies are not contained", len(files)-contained)
	}
	return nil
}

// judge asks a policy, up to three times: on a busy machine a goroutine may wait long for
// a processor, so the best counts.
func judge(ctx context.Context, file string, good map[policy.Hook]*rego.Module) (took, deadline time.Duration, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, 1, err
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
	if good[hook] == nil {
		return 0, 1, fmt.Errorf("hook %q is unknown", hook)
	}
	in := map[policy.Hook]any{policy.Score: sample.Score(60), policy.Disrupt: sample.Disrupt(), policy.Launch: sample.Launch(), policy.Admit: sample.Admit()}[hook]
	deadline = policy.DefaultLimits(hook).Deadline
	var said error
	for try := range 3 {
		m, err := rego.Load(ctx, rego.Source{Name: "bad", Hook: hook, Files: map[string]string{"hostile/" + filepath.Base(file): string(b)}})
		if said = err; err != nil {
			break
		}
		begin := time.Now()
		said = ask(ctx, m, in, deadline)
		if d := time.Since(begin); try == 0 || d < took {
			took = d
		}
		if took <= deadline+late {
			break
		}
	}
	switch class := policy.ClassOf(said); {
	case said == nil:
		return took, deadline, errors.New("it answers, and nothing is refused")
	case !slices.Contains(strings.Fields(head["want"]), string(class)):
		return took, deadline, fmt.Errorf("error %w of class %s, want class %s", said, class, head["want"])
	case !strings.Contains(said.Error(), head["says"]):
		return took, deadline, fmt.Errorf("error %w, want %q in it", said, head["says"])
	case took > deadline+late:
		return took, deadline, fmt.Errorf("it comes back after %s, the deadline is %s", took, deadline)
	}
	if err := ask(ctx, good[hook], in, time.Second); err != nil {
		return took, deadline, fmt.Errorf("the next evaluation of another policy: %w", err)
	}
	return took, deadline, nil
}

func ask(ctx context.Context, m *rego.Module, in any, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	if s, ok := in.(*policy.ScoreInput); ok {
		_, _, err := m.Score(ctx, s)
		return err
	}
	_, _, err := m.Gate(ctx, in.(policy.GateInput))
	return err
}
