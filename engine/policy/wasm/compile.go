package wasm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

const (
	compileSeconds = 10
	compileMemory  = 1 << 30
)

// job is what the child is told, as one line of JSON before the module.
type job struct {
	Cache  string `json:"cache"`
	Pages  uint32 `json:"pages"`
	CPU    int    `json:"cpuSeconds"`
	Memory int64  `json:"memoryBytes"`
}

// verdict is what it answers.
type verdict struct {
	Error string `json:"error,omitempty"`
}

func runtimeConfig(pages uint32) wazero.RuntimeConfig {
	return wazero.NewRuntimeConfig().WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(pages).WithDebugInfoEnabled(false)
}

// CompileChildMain is the program of the child process that [HostOptions.CompileCommand]
// starts: it limits itself, compiles the module that it reads from standard input into
// the cache directory, and reports on standard output. It returns the exit code. A
// program that sets CompileCommand to itself calls CompileChildMain, and does nothing
// else, when it is started so.
func CompileChildMain() int {
	if err := compileChild(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func compileChild(in io.Reader, out io.Writer) error {
	r := bufio.NewReader(in)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var j job
	if err := json.Unmarshal(line, &j); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	if err := limitProcess(j.CPU, j.Memory); err != nil {
		return fmt.Errorf("limit process: %w", err)
	}
	// Collect early rather than meet the limit.
	debug.SetMemoryLimit(j.Memory / 2)
	wasm, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("read module: %w", err)
	}
	var v verdict
	if err := fillCache(context.Background(), wasm, j.Cache, j.Pages); err != nil {
		v.Error = err.Error()
	}
	return json.NewEncoder(out).Encode(v)
}

func fillCache(ctx context.Context, wasm []byte, dir string, pages uint32) error {
	cache, err := wazero.NewCompilationCacheWithDir(dir)
	if err != nil {
		return err
	}
	defer cache.Close(ctx)
	rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig(pages).WithCompilationCache(cache))
	defer rt.Close(ctx)
	_, err = rt.CompileModule(ctx, wasm)
	return err
}

// compileInChild fills the cache directory with the module's native code. Errors match
// ErrCompile.
func (h *Host) compileInChild(ctx context.Context, wasm []byte, dir string, pages uint32) error {
	j := job{Cache: dir, Pages: pages, CPU: h.opts.CompileSeconds, Memory: h.opts.CompileMemory}
	head, err := json.Marshal(j)
	if err != nil {
		return err
	}
	limit := time.Duration(j.CPU) * time.Second
	wall := 3*limit + 5*time.Second // where others keep the processor, or there are no limits
	ctx, cancel := context.WithTimeout(ctx, wall)
	defer cancel()
	command := h.opts.CompileCommand
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=2"}
	cmd.Stdin = io.MultiReader(bytes.NewReader(head), strings.NewReader("\n"), bytes.NewReader(wasm))
	var stdout, stderr head64
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: not done after %v", ErrCompile, wall)
		}
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return fmt.Errorf("%w: start the compiler: %w", ErrCompile, err)
		}
		first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		// A process that reaches its limit of processor time is killed.
		if !exit.Exited() && exit.SystemTime()+exit.UserTime() > limit/2 {
			return fmt.Errorf("%w: compiling takes more than %v of processor time", ErrCompile, limit)
		}
		if said := stderr.String(); strings.Contains(said, "out of memory") || strings.Contains(said, "cannot allocate memory") || strings.Contains(said, "pthread_create failed") {
			return fmt.Errorf("%w: compiling takes more than %d MiB of memory", ErrCompile, j.Memory>>20)
		}
		return fmt.Errorf("%w: the compiler ended with %v: %s", ErrCompile, err, first)
	}
	var v verdict
	if err := json.Unmarshal(stdout.Bytes(), &v); err != nil {
		return fmt.Errorf("%w: the compiler said %q", ErrCompile, stdout.String())
	}
	if v.Error != "" {
		return fmt.Errorf("%w: %s", ErrCompile, v.Error)
	}
	if !hasEntry(dir) {
		return fmt.Errorf("%w: the compiler left nothing in %s", ErrCompile, dir)
	}
	return nil
}

// head64 keeps the first 64 KiB of what is written to it.
type head64 struct{ bytes.Buffer }

func (b *head64) Write(p []byte) (int, error) {
	if room := 64<<10 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// native reports whether modules are compiled at all: elsewhere they are interpreted,
// which needs neither much time to prepare nor a cache.
func native() bool { return runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64" }

// hasEntry reports whether the directory holds native code. If it does not, compiling
// would happen here, without limits.
func hasEntry(dir string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "wazero-*", "*"))
	return err == nil && slices.ContainsFunc(files, func(f string) bool { return !strings.HasSuffix(f, ".tmp") })
}

// privateDir makes a directory that only this user may write to: its files are code.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Errorf("cache directory %s has mode %#o: others may write to it, and it holds code", dir, mode)
	}
	return nil
}

// maxEntries is how many modules the cache directory keeps.
const maxEntries = 64

// prune removes the modules that were loaded longest ago.
func prune(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= maxEntries {
		return
	}
	type entry struct {
		name string
		used time.Time
	}
	var list []entry
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() {
			list = append(list, entry{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return b.used.Compare(a.used) })
	for _, e := range list[min(len(list), maxEntries):] {
		os.RemoveAll(filepath.Join(dir, e.name))
	}
}
