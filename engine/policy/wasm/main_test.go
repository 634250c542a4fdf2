package wasm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/internal/guest"
)

const childArg = "compile-child"

// TestMain is also the program of the compiler's child process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == childArg {
		os.Exit(CompileChildMain())
	}
	os.Exit(m.Run())
}

func goModule(t testing.TB) []byte {
	t.Helper()
	b, err := guest.Go()
	if err != nil {
		t.Fatalf("build the Go guest: %v", err)
	}
	return b
}

// cacheDir outlives a test run, so that the Go guest need not be compiled in each.
func cacheDir(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		return t.TempDir()
	}
	dir = filepath.Join(dir, "dovetail-test-native")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newHost(t testing.TB) *Host {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h, err := NewHost(HostOptions{CacheDir: cacheDir(t), CompileCommand: []string{self, childArg}})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// patient is for tests that are not about time, on machines that are busy with others.
const patient = 20 * time.Second

func load(t testing.TB, h *Host, opts Options) *Module {
	t.Helper()
	if opts.Budgets == nil {
		opts.Budgets = map[frame.Hook]Budget{frame.Score: {Timeout: patient}, frame.Admit: {Timeout: patient}}
	}
	opts.Init.Timeout = patient
	if opts.Name == "" {
		opts.Name = "test"
	}
	m, err := h.Load(context.Background(), opts)
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}

// admission is an admit question in which the Go guest behaves as mode says.
func admission(mode string) *frame.Table {
	return &frame.Table{Hook: frame.Admit, Rows: 1, Context: []frame.Value{{Key: "test.mode", Type: frame.String, Text: mode}}}
}

func class(err error) policy.Class {
	var e *policy.Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ""
}
