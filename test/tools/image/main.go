// Command image builds the container image of Dovetail without a container engine: static
// binaries for several platforms in an OCI layout, and the same as an archive, each with
// the list of what is in it. The same commit and version of Go give the same bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var g program
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.StringVar(&g.source, "source", ".", "folder of the Go module")
	f.StringVar(&g.pkg, "package", "./cmd/dovetail", "package of the program")
	f.StringVar(&g.version, "version", "", "version of the program; default is what git describes")
	f.StringVar(&g.revision, "revision", "", "commit of the source; default is git's")
	platforms := f.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	name := f.String("name", "ghcr.io/dovetail-sh/dovetail", "name of the image, to which the version is added as its tag")
	out := f.String("out", "dist", "folder for the layout image, the archive dovetail.tar and the lists of what is in them")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%s: there are no arguments", f.Arg(0))
	}
	g, err := g.fromGit(ctx)
	if err != nil {
		return err
	}
	var list []platform
	for text := range strings.SplitSeq(*platforms, ",") {
		p, err := parsePlatform(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	return g.build(ctx, list, *name, *out, stdout)
}

// build makes the images for platforms and writes them below out.
func (g program) build(ctx context.Context, platforms []platform, name, out string, stdout io.Writer) error {
	work, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var images []made
	started := ""
	for _, p := range platforms {
		binary := filepath.Join(work, p.os+"-"+p.arch)
		m, err := g.make(ctx, p, binary)
		if err != nil {
			return err
		}
		images = append(images, m)
		if err := os.WriteFile(filepath.Join(out, bomName(p)), m.bom, 0o644); err != nil {
			return err
		}
		if p == (platform{runtime.GOOS, runtime.GOARCH}) {
			d, err := startTime(ctx, binary)
			if err != nil {
				return err
			}
			started = fmt.Sprintf("%-14s %d ms until it has printed its version, on %s\n", "start", d.Milliseconds(), p)
		}
	}
	name += ":" + tag(g.version)
	dir, archive := filepath.Join(out, "image"), filepath.Join(out, "dovetail.tar")
	if err := errors.Join(
		g.writeLayout(filepath.Join(work, "layout"), name, images, false),
		g.writeArchive(filepath.Join(work, "layout"), archive),
		g.writeLayout(dir, name, images, true),
	); err != nil {
		return err
	}
	index, err := g.index(images)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%-14s %s\n%-14s %s\n%-14s %s, %s\n", "image", name, "digest", digest, "written to", dir, archive)
	for _, m := range images {
		size, err := pulled(m)
		if err != nil {
			return err
		}
		digest, err := m.image.Digest()
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%-14s %s: %.1f MB to pull, %.1f MB of program, %d modules\n", m.platform, digest, float64(size)/1e6, float64(m.binary)/1e6, m.components)
	}
	fmt.Fprint(stdout, started)
	return nil
}

// make compiles the program for a platform to the file binary, and makes its image.
func (g program) make(ctx context.Context, p platform, binary string) (made, error) {
	if err := g.compile(ctx, p, binary); err != nil {
		return made{}, err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return made{}, err
	}
	m := made{platform: p, binary: info.Size()}
	if m.image, err = g.image(p, binary); err != nil {
		return made{}, fmt.Errorf("image for %s: %w", p, err)
	}
	m.bom, m.components, err = g.bom(binary)
	return m, err
}

// tag is a version as a tag, which has no plus.
func tag(version string) string { return strings.ReplaceAll(version, "+", "-") }

// pulled is how many bytes a node fetches to run an image for the first time.
func pulled(m made) (int64, error) {
	manifest, err := m.image.Manifest()
	if err != nil {
		return 0, err
	}
	size := manifest.Config.Size
	for _, l := range manifest.Layers {
		size += l.Size
	}
	return size, nil
}

// startTime is the median of how long the program takes to print its version, everything
// that it does before included.
func startTime(ctx context.Context, binary string) (time.Duration, error) {
	var took []time.Duration
	for range 15 {
		begin := time.Now()
		if err := exec.CommandContext(ctx, binary, "version").Run(); err != nil {
			return 0, fmt.Errorf("version: %w", err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
