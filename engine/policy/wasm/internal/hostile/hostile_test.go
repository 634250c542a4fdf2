package hostile

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm"
)

const childArg = "compile-child"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		os.Exit(wasm.CompileChildMain())
	}
	os.Exit(m.Run())
}

// TestHostile: each module is refused or stopped in time and within its memory, with the
// right error, and the next call works.
func TestHostile(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host, err := wasm.NewHost(wasm.HostOptions{CacheDir: t.TempDir(), CompileCommand: []string{self, childArg}, CompileSeconds: 1})
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJudge(context.Background(), host)
	if err != nil {
		t.Fatal(err)
	}
	cases := Cases()
	if len(cases) < 50 {
		t.Errorf("only %d cases", len(cases))
	}
	names := map[string]bool{}
	for _, c := range cases {
		if names[c.Name] {
			t.Errorf("the name %q is used twice", c.Name)
		}
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			r := j.Run(context.Background(), c)
			t.Logf("%v: %v", r.Took.Round(100*time.Microsecond), r.Err)
			if r.Problem != "" {
				t.Error(r.Problem)
			}
		})
	}
}
