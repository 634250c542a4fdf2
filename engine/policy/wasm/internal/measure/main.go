// Command measure times the scoring of offerings in the test guests and prints a line
// for each runtime:
//
//	runtime=native|wasm-c|wasm-go types=<rows> ms=<per call> ratio=<to native> answer=<digest>
//
// followed, for guests, by the cost of metering, metered to unmetered, and by units=<fuel>. A
// call is the whole evaluation: the question is put into a frame, the guest is called, and its
// answer is checked and read. The rules are those that Rego is timed with, as the digest of
// the answer shows.
// Times are the least of many batches, in which the candidates take turns: the machine may
// be busy with others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/internal/sample"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/guest"
)

const childArg = "compile-child"

func main() {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		os.Exit(wasm.CompileChildMain())
	}
	rows := flag.Int("types", 850, "number of offerings")
	batches := flag.Int("batches", 60, "number of batches")
	flag.Parse()
	if err := run(*rows, *batches); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

// candidate is something to time.
type candidate struct {
	name   string
	answer string
	call   func() error
	best   time.Duration
}

func run(rows, batches int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "measure")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	host, err := wasm.NewHost(wasm.HostOptions{CacheDir: dir, CompileCommand: []string{self, childArg}})
	if err != nil {
		return err
	}
	goGuest, err := guest.Go()
	if err != nil {
		return err
	}
	ctx := context.Background()
	in := sample.Licensed(rows)
	question := guest.Offerings(rows, "licensed")
	var units [2]int64
	var rules policy.ScoreAnswer
	for _, c := range guest.Native(question).Cost {
		rules.Cost = append(rules.Cost, policy.RowAmount{Row: c.Row, MicroUSD: c.Value})
	}
	for _, d := range guest.Native(question).Denials {
		rules.Deny = append(rules.Deny, policy.RowDeny{Row: d.Row})
	}
	list := []*candidate{{name: "native", answer: sample.Digest(in, rules), call: func() error { guest.Native(question); return nil }}}
	for i, g := range []struct {
		name string
		wasm []byte
	}{{"wasm-c", guest.C}, {"wasm-go", goGuest}} {
		for _, unmetered := range []bool{false, true} {
			m, err := host.LoadPolicy(ctx, wasm.Source{Name: g.name, Hook: policy.Score, Wasm: g.wasm, Limits: policy.Limits{Deadline: time.Minute}, Instances: 1, Unmetered: unmetered})
			if err != nil {
				return err
			}
			defer m.Close()
			answer, _, err := m.Score(ctx, in)
			if err != nil {
				return err
			}
			list = append(list, &candidate{name: g.name, answer: sample.Digest(in, answer), call: func() error {
				_, stats, err := m.Score(ctx, in)
				units[i] = max(units[i], stats.Fuel)
				return err
			}})
		}
	}
	for _, c := range list {
		c.best = time.Hour
	}
	const calls = 20
	for range batches {
		for _, c := range list {
			start := time.Now()
			for range calls {
				if err := c.call(); err != nil {
					return err
				}
			}
			c.best = min(c.best, time.Since(start)/calls)
		}
	}
	native := list[0].best
	line := func(c *candidate) string {
		return fmt.Sprintf("runtime=%s types=%d ms=%.3f ratio=%.1f answer=%s", c.name, rows, float64(c.best.Nanoseconds())/1e6, float64(c.best)/float64(native), c.answer)
	}
	fmt.Println(line(list[0]))
	for i := range units {
		metered, plain := list[1+2*i], list[2+2*i]
		fmt.Printf("%s metering=%.2f units=%d\n", line(metered), float64(metered.best)/float64(plain.best), units[i])
	}
	return nil
}
