package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// version is the Kubernetes version that the control plane reports. It has to be set: a
// server that does not know its version breaks kubectl and whatever depends on it.
const version = "v1.37.2"

// linkerFlags are part of the key of the cached binary. -trimpath is left out on purpose:
// it would compile every package anew.
var linkerFlags = strings.Join([]string{
	"-s -w",
	"-X k8s.io/component-base/version.gitVersion=" + version,
	"-X k8s.io/component-base/version.gitMajor=1",
	"-X k8s.io/component-base/version.gitMinor=37",
	"-X k8s.io/component-base/version.gitTreeState=clean",
	"-X k8s.io/component-base/version.gitCommit=module",
	"-X k8s.io/component-base/version.buildDate=2026-01-01T00:00:00Z",
	"-X k8s.io/client-go/pkg/version.gitVersion=" + version,
}, " ")

// Binary returns the path of the control plane's program and builds it if this version
// of it is not in the user's cache: about 8 minutes on 2 cores when nothing is cached,
// which lines on progress tell about (nil discards them). Of several callers, in other
// processes too, one builds and the others wait.
func Binary(ctx context.Context, progress io.Writer) (string, error) {
	if progress == nil {
		progress = io.Discard
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	key, err := buildKey(ctx, source)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "controlplane-"+key)
	if isExecutable(path) {
		return path, nil
	}
	unlock, err := lock(ctx, filepath.Join(cache, "controlplane.lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isExecutable(path) {
		return path, nil
	}
	if err := build(ctx, source, path, progress); err != nil {
		return "", err
	}
	return path, prune(cache, path)
}

// prune removes binaries of other versions that are older than a week: they are 140 MB
// each. Younger ones may belong to another checkout.
func prune(cache, current string) error {
	old, err := filepath.Glob(filepath.Join(cache, "controlplane-*"))
	if err != nil {
		return err
	}
	for _, name := range old {
		info, err := os.Stat(name)
		if err != nil || name == current || time.Since(info.ModTime()) < 7*24*time.Hour {
			continue
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an earlier control plane: %w", err)
		}
	}
	return nil
}

// sourceDir finds test/controlplane from the working directory, which is that of a
// package in a test and that of the user in a command.
func sourceDir() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		source := filepath.Join(dir, "test", "controlplane")
		if _, err := os.Stat(filepath.Join(source, "go.mod")); err == nil {
			return source, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the source of the control plane: no test/controlplane above %s: run from within the source tree", start)
		}
	}
}

// cacheDir returns Dovetail's folder in the user's cache, and makes it.
func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w", err)
	}
	dir := filepath.Join(base, "dovetail")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the user's cache: %w", err)
	}
	return dir, nil
}

// buildKey hashes all that decides what the program is.
func buildKey(ctx context.Context, source string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "version")
	cmd.Dir = source
	goVersion, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build the control plane: go version in %s: %w", source, errorOutput(err))
	}
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	slices.Sort(files)
	files = append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum"))
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n", goVersion, linkerFlags)
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("build the control plane: %w", err)
		}
		fmt.Fprintf(hash, "%s %d\n%s", filepath.Base(name), len(content), content)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// progressInterval is how often a line tells that the build goes on.
const progressInterval = 10 * time.Second

func build(ctx context.Context, source, path string, progress io.Writer) error {
	start := time.Now()
	temp, err := os.MkdirTemp(filepath.Dir(path), "building-*")
	if err != nil {
		return fmt.Errorf("build the control plane: %w", err)
	}
	defer os.RemoveAll(temp)
	binary := filepath.Join(temp, "controlplane")

	count := exec.CommandContext(ctx, "go", "list", "-deps", ".")
	count.Dir = source
	listed, err := count.Output()
	if err != nil {
		return fmt.Errorf("build the control plane: list packages: %w", errorOutput(err))
	}
	total := strings.Count(string(listed), "\n")
	fmt.Fprintf(progress, "building the control plane of Kubernetes %s: %d packages, about 8 minutes if none is cached\n", version, total)

	// -v names every package that is compiled, and only those that were not cached.
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-buildvcs=false", "-o", binary, "-ldflags", linkerFlags, ".")
	cmd.Dir = source
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build the control plane: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build the control plane: %w", err)
	}
	var compiled atomic.Int64
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				fmt.Fprintf(progress, "building the control plane: %d of at most %d packages compiled after %s\n",
					compiled.Load(), total, time.Since(start).Round(time.Second))
			}
		}
	}()
	var complaints []string
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if line := lines.Text(); strings.ContainsAny(line, " \t") {
			complaints = append(complaints, line)
		} else {
			compiled.Add(1)
		}
	}
	err = cmd.Wait()
	close(done)
	if err != nil {
		const most = 20
		if len(complaints) > most {
			complaints = complaints[len(complaints)-most:]
		}
		return fmt.Errorf("build the control plane with go build in %s: %w\n%s", source, err, strings.Join(complaints, "\n"))
	}
	if err := os.Rename(binary, path); err != nil {
		return fmt.Errorf("build the control plane: %w", err)
	}
	fmt.Fprintf(progress, "built the control plane in %s\n", time.Since(start).Round(time.Second))
	return nil
}

// lock takes an advisory lock on a file, and says so on progress if it has to wait.
func lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	start, told := time.Now(), time.Time{}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Since(told) >= progressInterval {
			told = time.Now()
			fmt.Fprintf(progress, "waiting for another process that builds the control plane: %s\n", time.Since(start).Round(time.Second))
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// errorOutput adds what the program wrote on its standard error.
func errorOutput(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
