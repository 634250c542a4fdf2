package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	bomType   types.MediaType = "application/vnd.cyclonedx+json"
	emptyType types.MediaType = "application/vnd.oci.empty.v1+json"
)

// writeLayout makes the folder dir an OCI layout with the image under a name, which may
// have a registry, and replaces what was there. With boms, the list of what is in it
// refers to each image, as registries know it by their referrers API.
func (g program) writeLayout(dir, name string, images []made, boms bool) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	at, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("layout %s: %w", dir, err)
	}
	index, err := g.index(images)
	if err != nil {
		return err
	}
	// Tools that push layouts look for the tag, containerd for the whole name.
	tag := name[strings.LastIndexByte(name, ':')+1:]
	if err := at.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name,
	})); err != nil {
		return fmt.Errorf("layout %s: %w", dir, err)
	}
	if !boms {
		return nil
	}
	for _, m := range images {
		if err := g.refer(at, m); err != nil {
			return fmt.Errorf("layout %s: bill of materials for %s: %w", dir, m.platform, err)
		}
	}
	return nil
}

// refer adds the list of what is in an image as an artifact that refers to it.
func (g program) refer(at layout.Path, m made) error {
	subject, err := partial.Descriptor(m.image)
	if err != nil {
		return err
	}
	blob := func(content []byte, kind types.MediaType) (v1.Descriptor, error) {
		hash, size, err := v1.SHA256(bytes.NewReader(content))
		if err != nil {
			return v1.Descriptor{}, err
		}
		return v1.Descriptor{MediaType: kind, Digest: hash, Size: size}, at.WriteBlob(hash, io.NopCloser(bytes.NewReader(content)))
	}
	config, err := blob([]byte("{}"), emptyType)
	if err != nil {
		return err
	}
	list, err := blob(m.bom, bomType)
	if err != nil {
		return err
	}
	list.Annotations = map[string]string{"org.opencontainers.image.title": bomName(m.platform)}
	text, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: string(bomType), Config: config, Layers: []v1.Descriptor{list},
		Subject:     &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: map[string]string{"org.opencontainers.image.created": g.annotations()["org.opencontainers.image.created"]},
	})
	if err != nil {
		return err
	}
	manifest, err := blob(text, types.OCIManifestSchema1)
	if err != nil {
		return err
	}
	manifest.ArtifactType = string(bomType)
	return at.AppendDescriptor(manifest)
}

func bomName(p platform) string { return "dovetail-" + p.os + "-" + p.arch + ".cdx.json" }

// writeArchive packs a folder, in the order of names and with nothing of this machine.
func (g program) writeArchive(dir, to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Typeflag: tar.TypeDir, Name: filepath.ToSlash(name) + "/", Mode: 0o755, ModTime: g.time, Format: tar.FormatUSTAR}
		var content []byte
		if !d.IsDir() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
			h.Typeflag, h.Name, h.Mode, h.Size = tar.TypeReg, filepath.ToSlash(name), 0o644, int64(len(content))
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("archive %s: %w", to, err)
	}
	return nil
}
