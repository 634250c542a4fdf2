// Package examples runs the commands of the examples' READMEs.
package examples

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the commands print into the READMEs")

// TestReadmes runs every command that a README shows after "$ " in a console block, from
// the root of the repository, and compares what it prints with what the README shows.
func TestReadmes(t *testing.T) {
	readmes, err := filepath.Glob("*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(readmes) == 0 {
		t.Fatal("there is no example")
	}
	for _, path := range readmes {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shown := sessions(string(text))
		if len(shown) == 0 {
			t.Errorf("%s shows no command", path)
		}
		for _, s := range shown {
			t.Run(filepath.Dir(path), func(t *testing.T) {
				args := strings.Fields(s.command)
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Dir = ".."
				out, err := cmd.Output()
				var failed *exec.ExitError
				if errors.As(err, &failed) {
					t.Logf("%s ended with %v: %s", s.command, err, failed.Stderr)
				} else if err != nil {
					t.Fatal(err)
				}
				if *update {
					text = []byte(strings.Replace(string(text), s.String(), session{s.command, string(out)}.String(), 1))
				} else if diff := cmp.Diff(s.output, string(out)); diff != "" {
					t.Errorf("%s (-README +printed):\n%s\ngo test ./examples -update writes the README anew", s.command, diff)
				}
			})
		}
		if *update {
			if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // a document for everybody
				t.Fatal(err)
			}
		}
	}
}

// session is a command and what it prints.
type session struct{ command, output string }

func (s session) String() string { return "$ " + s.command + "\n" + s.output }

func sessions(text string) []session {
	var out []session
	for block := range strings.SplitSeq(text, "```console\n") {
		body, _, ok := strings.Cut(block, "```")
		command, output, isCommand := strings.Cut(body, "\n")
		command, prompt := strings.CutPrefix(command, "$ ")
		if ok && isCommand && prompt {
			out = append(out, session{command, output})
		}
	}
	return out
}
