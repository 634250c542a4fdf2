package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// platform is what a program is compiled for, as "linux/amd64".
type platform struct{ os, arch string }

func parsePlatform(s string) (platform, error) {
	goos, arch, ok := strings.Cut(s, "/")
	if !ok || goos == "" || arch == "" || strings.Contains(arch, "/") {
		return platform{}, fmt.Errorf("platform %q: must be like linux/amd64", s)
	}
	return platform{goos, arch}, nil
}

func (p platform) String() string { return p.os + "/" + p.arch }

// program is what an image is made of.
type program struct {
	// source is the folder of the Go module, pkg the package in it, such as ./cmd/dovetail.
	source, pkg string
	// version is shown by the program, and revision the commit that it was made from.
	version, revision string
	// time is that of every file, and of the image: that of the commit, so that the same
	// commit gives the same image on every day.
	time time.Time
}

// compile makes the program for p, and writes it to out. It depends on the source and the
// version of Go alone: neither on where the source is nor on settings of the user.
func (g program) compile(ctx context.Context, p platform, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", "-s -w -X main.release="+g.version, "-o", out, g.pkg)
	cmd.Dir, cmd.Stderr = g.source, os.Stderr
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "CGO_") || strings.HasPrefix(e, "GOEXPERIMENT=") || strings.HasPrefix(e, "GODEBUG=")
	}), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off", "GOWORK=off")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s for %s: %w", g.pkg, p, err)
	}
	return nil
}

// fromGit fills in what git knows of the source and g leaves out. SOURCE_DATE_EPOCH, in
// seconds, wins over the time of the commit.
func (g program) fromGit(ctx context.Context) (program, error) {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", g.source}, args...)...)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	var err error
	if g.revision == "" {
		if g.revision, err = git("rev-parse", "HEAD"); err != nil {
			return g, err
		}
	}
	if g.version == "" {
		if g.version, err = git("describe", "--tags", "--match", "v[0-9]*", "--always", "--abbrev=12", "--dirty"); err != nil {
			return g, err
		}
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return g, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		g.time = time.Unix(seconds, 0).UTC()
	}
	if g.time.IsZero() {
		text, err := git("show", "--no-patch", "--format=%ct", "HEAD")
		if err != nil {
			return g, err
		}
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return g, fmt.Errorf("time of the commit: %w", err)
		}
		g.time = time.Unix(seconds, 0).UTC()
	}
	return g, nil
}
