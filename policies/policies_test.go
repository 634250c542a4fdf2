package policies_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/rego"
)

var hooks = []string{"score", "disrupt", "launch", "admit"}

// opa is the plain binary, built once from the module that the main module requires.
var opa = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/open-policy-agent/opa").Output()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "opa")
	if err != nil {
		return "", err
	}
	opaDir = dir
	bin := filepath.Join(dir, "opa")
	cmd := exec.Command("go", "build", "-C", strings.TrimSpace(string(out)), "-ldflags=-s -w", "-o", bin, ".")
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	cmd.Stderr = os.Stderr
	return bin, cmd.Run()
})

// opaDir holds the binary, if it was built.
var opaDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if opaDir != "" {
		os.RemoveAll(opaDir)
	}
	os.Exit(code)
}

func run(t *testing.T, args ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the opa binary")
	}
	bin, err := opa()
	if err != nil {
		t.Fatalf("build opa: %v", err)
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("opa %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestOPA_Test(t *testing.T) {
	out := run(t, "test", ".", "-v")
	if !strings.Contains(out, "PASS: ") || strings.Contains(out, "FAIL") || strings.Contains(out, "SKIPPED") {
		t.Errorf("opa test:\n%s", out)
	}
	// What the hosts refuse must not be needed here either.
	run(t, "test", ".", "--capabilities", "capabilities.json")
}

func TestOPA_Coverage(t *testing.T) {
	var report struct {
		Coverage float64 `json:"coverage"`
		Files    map[string]struct {
			Coverage float64 `json:"coverage"`
		} `json:"files"`
	}
	if err := json.Unmarshal([]byte(run(t, "test", ".", "--coverage")), &report); err != nil {
		t.Fatal(err)
	}
	if report.Coverage < 95 {
		t.Errorf("coverage is %.1f %%, want at least 95 %%", report.Coverage)
	}
	for name, f := range report.Files {
		if f.Coverage < 95 {
			t.Errorf("%s: coverage is %.1f %%, want at least 95 %%", name, f.Coverage)
		}
	}
}

func TestOPA_Check(t *testing.T) {
	for _, h := range hooks {
		run(t, "check", "--strict", "--capabilities", "capabilities.json", "--schema", filepath.Join("schemas", h, "input.json"), "lib", h)
	}
}

// TestOPA_CheckFindsTypos checks that the schemas are worth something.
func TestOPA_CheckFindsTypos(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the opa binary")
	}
	bin, err := opa()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "typo.rego")
	text := "package dovetail.score.typo\n\ndeny contains {\"i\": i, \"msg\": \"m\"} if {\n\tsome i, c in input.candidates\n\tc.instanceType.gpus > 1\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "check", "--strict", "--schema", "schemas/score/input.json", file).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "undefined ref: input.candidates[__local0__].instanceType.gpus") && !strings.Contains(string(out), "gpus") {
		t.Errorf("opa check of a misspelt field: error %v, output:\n%s", err, out)
	}
}

func TestOPA_Fmt(t *testing.T) {
	if out := run(t, "fmt", "--fail", "--list", "."); out != "" {
		t.Errorf("opa fmt would change:\n%s", out)
	}
}

// TestTests checks that each policy has tests that allow, refuse and look at bad
// parameters.
func TestTests(t *testing.T) {
	for _, h := range hooks {
		files, err := filepath.Glob(h + "/*.rego")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.rego") {
				continue
			}
			b, err := os.ReadFile(strings.TrimSuffix(f, ".rego") + "_test.rego")
			if err != nil {
				t.Error(err)
				continue
			}
			if n := strings.Count(string(b), "\ntest_"); n < 4 {
				t.Errorf("%s has %d tests, want at least 4", f, n)
			}
			if !strings.Contains(string(b), "\ntest_bad_parameter") {
				t.Errorf("%s has no test of bad parameters", f)
			}
		}
	}
}

// TestReadme checks that the example of the README loads.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "```rego\n")
	text, _, ok2 := strings.Cut(text, "```\n")
	if !ok || !ok2 {
		t.Fatal("README.md has no example")
	}
	m, err := rego.Load(t.Context(), rego.Source{Name: "readme", Hook: policy.Launch, Files: map[string]string{"readme.rego": text}, Parameters: map[string]any{"window": "Mon 08:00-09:00"}})
	if err != nil {
		t.Fatal(err)
	}
	if m.Metadata().Title != "No GPUs at night" {
		t.Errorf("title %q", m.Metadata().Title)
	}
	// Every policy is in the table.
	for _, h := range hooks {
		files, err := filepath.Glob(h + "/*.rego")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if name := strings.TrimSuffix(f, ".rego"); !strings.HasSuffix(name, "_test") && !strings.Contains(string(b), "| `"+name+"` |") {
				t.Errorf("README.md does not list %s", name)
			}
		}
	}
}

// TestSchemas checks that the committed schemas are those of the Go types.
func TestSchemas(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "../engine/policy/internal/genschema", "-src", "../engine/policy", "-out", dir).CombinedOutput(); err != nil {
		t.Fatalf("genschema: %v\n%s", err, out)
	}
	caps := filepath.Join(dir, "capabilities.json")
	if out, err := exec.Command("go", "run", "../engine/policy/rego/internal/gencaps", "-out", caps).CombinedOutput(); err != nil {
		t.Fatalf("gencaps: %v\n%s", err, out)
	}
	pairs := map[string]string{caps: "capabilities.json"}
	for _, h := range hooks {
		pairs[filepath.Join(dir, h, "input.json")] = filepath.Join("schemas", h, "input.json")
	}
	for made, have := range pairs {
		a, err := os.ReadFile(made)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(have)
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) {
			t.Errorf("%s is out of date: run go generate ./engine/policy/...", have)
		}
	}
}
