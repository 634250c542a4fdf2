package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite what scripts expect")

func TestMain(m *testing.M) {
	// A Wasm host under test starts this program to compile modules.
	if len(os.Args) == 2 && os.Args[1] == compileChild {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testscript.Main(m, map[string]func(){
		"dovetail": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// guest is a Wasm module in C that scores offerings.
const guest = "../../engine/policy/wasm/internal/guest/testdata/c/score.wasm"

// strict is the guest with a schema of its parameters.
func strict(module []byte) []byte {
	const manifest = "\x0fdovetail.policy" + `{"name":"licence","settingsSchema":{"type":"object","properties":{"share":{"type":"integer","minimum":0}},"additionalProperties":false}}`
	size := []byte{0, byte(len(manifest)&0x7f | 0x80), byte(len(manifest) >> 7)}
	return slices.Concat(module, size, []byte(manifest))
}

// TestScripts runs the commands of each script in a folder of its own, with the guest in
// wasm/licence.wasm and wrong/licence.wasm, and in strict/licence.wasm with a schema.
func TestScripts(t *testing.T) {
	module, err := os.ReadFile(guest)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
			for name, module := range map[string][]byte{"wasm": module, "wrong": module, "strict": strict(module)} {
				dir := filepath.Join(env.WorkDir, name)
				if _, err := os.Stat(dir); err != nil {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, "licence.wasm"), module, 0o600); err != nil {
					return err
				}
			}
			return nil
		},
	})
}
