// Command measure times the scoring of offerings in the test guests and prints a line
// for each runtime:
//
//	runtime=native|wasm-c|wasm-go types=<rows> ms=<per call> ratio=<to native>
//
// followed, for guests, by the cost of metering, metered to unmetered, and by units=<fuel>.
// Times are the least of many batches, in which the candidates take turns: the machine may
// be busy with others.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
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
	name string
	call func() error
	best time.Duration
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
	question := guest.Offerings(rows, "licensed")
	var units [2]int64
	list := []*candidate{{name: "native", call: func() error { guest.Native(question); return nil }}}
	for i, g := range []struct {
		name string
		wasm []byte
	}{{"wasm-c", guest.C}, {"wasm-go", goGuest}} {
		for _, unmetered := range []bool{false, true} {
			m, err := host.Load(ctx, wasm.Options{Name: g.name, Wasm: g.wasm, Instances: 1, Unmetered: unmetered})
			if err != nil {
				return err
			}
			defer m.Close()
			list = append(list, &candidate{name: g.name, call: func() error {
				_, stats, err := m.Eval(ctx, frame.Score, question)
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
		return fmt.Sprintf("runtime=%s types=%d ms=%.3f ratio=%.1f", c.name, rows, float64(c.best.Nanoseconds())/1e6, float64(c.best)/float64(native))
	}
	fmt.Println(line(list[0]))
	for i := range units {
		metered, plain := list[1+2*i], list[2+2*i]
		fmt.Printf("%s metering=%.2f units=%d\n", line(metered), float64(metered.best)/float64(plain.best), units[i])
	}
	return nil
}
