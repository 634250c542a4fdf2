package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// user is nobody in particular, with the ID that distroless images use. It is a number,
	// so that runAsNonRoot can be checked without a passwd file.
	user = 65532
	// cache is where the program keeps what it compiled from Wasm modules. Mounted over,
	// the rest of the file system may be read only.
	cache = "/var/cache/dovetail"
)

// annotations say what the image is, in the terms of the OCI image specification.
func (g program) annotations() map[string]string {
	const at = "https://github.com/dovetail-sh/dovetail"
	return map[string]string{
		"org.opencontainers.image.title":         "dovetail",
		"org.opencontainers.image.description":   "Kubernetes node autoscaler that speaks Karpenter's API",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.vendor":        "dovetail-sh",
		"org.opencontainers.image.url":           at,
		"org.opencontainers.image.source":        at,
		"org.opencontainers.image.documentation": at + "#readme",
		"org.opencontainers.image.version":       g.version,
		"org.opencontainers.image.revision":      g.revision,
		"org.opencontainers.image.created":       g.time.Format(time.RFC3339),
	}
}

// entry is a file or folder in an image.
type entry struct {
	name  string
	mode  int64
	owner int
	// content is nil for a folder.
	content []byte
}

// layer is a layer with entries, all as old as the program.
func (g program) layer(entries []entry) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.content)),
			ModTime: g.time, Format: tar.FormatUSTAR,
		}
		if e.content == nil {
			h.Typeflag, h.Name = tar.TypeDir, e.name+"/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	return l, nil
}

// image is the image of a compiled program: the program, its licence, and a folder for its
// cache. There is nothing else in it to run.
func (g program) image(p platform, binary string) (v1.Image, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	licence, err := os.ReadFile(filepath.Join(g.source, "LICENSE"))
	if err != nil {
		return nil, err
	}
	l, err := g.layer([]entry{
		{"dovetail", 0o555, 0, content},
		{"licenses", 0o555, 0, nil}, {"licenses/LICENSE", 0o444, 0, licence},
		{"var", 0o755, 0, nil}, {"var/cache", 0o755, 0, nil}, {cache[1:], 0o700, user, nil},
	})
	if err != nil {
		return nil, err
	}
	config := &v1.ConfigFile{
		OS: p.os, Architecture: p.arch, Created: v1.Time{Time: g.time},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       fmt.Sprintf("%d:%[1]d", user),
			Entrypoint: []string{"/dovetail"}, Cmd: []string{"controller"},
			Env:        []string{"PATH=/", "XDG_CACHE_HOME=" + cache},
			WorkingDir: "/", Labels: g.annotations(),
		},
	}
	if p.arch == "arm64" {
		config.Variant = "v8"
	}
	img, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return nil, err
	}
	img, err = mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{
		Created: v1.Time{Time: g.time}, CreatedBy: "make image", Comment: "the program and its licence",
	}})
	if err != nil {
		return nil, err
	}
	img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Annotations(img, g.annotations()).(v1.Image), nil
}

// made is an image for one platform, with the list of what is in it.
type made struct {
	platform platform
	image    v1.Image
	// bom is in CycloneDX's JSON, components how many modules it lists.
	bom        []byte
	components int
	// binary is the size of the program.
	binary int64
}

// index names the images for all platforms.
func (g program) index(images []made) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, m := range images {
		config, err := m.image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: m.image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return mutate.Annotations(index, maps.Clone(g.annotations())).(v1.ImageIndex), nil
}
