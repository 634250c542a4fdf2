// Package remote brings policies from OCI registries and web servers. Nothing is used that
// its digest or signature does not vouch for.
package remote

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// Options tune the sources of this package. The zero value works for public registries and
// servers.
type Options struct {
	// Objects reads the Secrets that policies name. Nil refuses policies that name any.
	Objects source.Objects
	// Client makes requests. Defaults to one that gives up after 30 s.
	Client *http.Client
	// PlainHTTP says which registries (HOST or HOST:PORT) are spoken to without TLS.
	// Defaults to none.
	PlainHTTP func(host string) bool
}

// Open returns the source that an OCI or HTTP source describes. It has the signature of
// [source.Opener.Remote].
func (o Options) Open(s v1alpha1.PolicySource) (source.Source, error) {
	if o.Client == nil {
		o.Client = &http.Client{Timeout: 30 * time.Second}
	}
	switch {
	case s.OCI != nil:
		return newRegistry(o, *s.OCI)
	case s.HTTP != nil:
		return newServer(o, *s.HTTP)
	}
	return nil, errors.New("source: neither oci nor http")
}

// digestOf is the digest of b.
func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var (
	gzipMagic = []byte{0x1f, 0x8b}
	wasmMagic = []byte("\x00asm")
)

// unpack makes files of what was downloaded: a compressed archive, a Wasm module, or else
// a Rego file.
func unpack(b []byte) (map[string][]byte, error) {
	switch {
	case bytes.HasPrefix(b, gzipMagic):
		plain, err := source.Gunzip(b, source.MaxBytes)
		if err != nil {
			return nil, err
		}
		if bytes.HasPrefix(plain, wasmMagic) {
			return map[string][]byte{"policy.wasm": plain}, nil
		}
		return untar(plain)
	case bytes.HasPrefix(b, wasmMagic):
		return map[string][]byte{"policy.wasm": b}, nil
	case len(b) == 0:
		return nil, errors.New("the file is empty")
	}
	return map[string][]byte{"policy.rego": b}, nil
}

// untar returns the files of an archive that belong to a policy.
func untar(b []byte) (map[string][]byte, error) {
	files := map[string][]byte{}
	for r, n := tar.NewReader(bytes.NewReader(b)), 0; ; n++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("archive: %w", err)
		}
		if n > 10*source.MaxFiles {
			return nil, fmt.Errorf("archive: more than %d entries: %w", 10*source.MaxFiles, source.ErrTooLarge)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag != tar.TypeReg || !source.Belongs(name) {
			continue
		}
		if _, ok := files[name]; ok {
			return nil, fmt.Errorf("archive: file %s is there twice", name)
		}
		if files[name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("archive: file %s: %w", name, err)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("archive: there is no file of a policy")
	}
	return files, nil
}
