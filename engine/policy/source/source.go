// Package source brings the files of a policy from where its owner keeps them: from the
// NodePolicy itself, a ConfigMap, a file or folder. Package remote adds registries and web
// servers.
//
// A source is asked again and again; its [Artifact] names what it got by a digest, so that
// a caller sees whether anything has changed.
package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
)

// Limits of an artefact.
const (
	// MaxBytes is the size of all files and documents.
	MaxBytes = 32 << 20
	// MaxFiles is the number of files and documents.
	MaxFiles = 1000
)

// ErrTooLarge is an artefact beyond the limits.
var ErrTooLarge = errors.New("too large")

// ErrDigest is content that is not what its digest says.
var ErrDigest = errors.New("wrong digest")

// Artifact is what a source gives. It is not changed after it was made.
type Artifact struct {
	// Files by slash-separated path.
	Files map[string][]byte
	// Documents are JSON or YAML documents by name, beside those among the files.
	Documents map[string][]byte
	// Revision is the digest of files and documents.
	Revision string
}

// New returns an artefact of files and documents, with its revision. The error is
// [ErrTooLarge] beyond the limits.
func New(files, documents map[string][]byte) (Artifact, error) {
	if n := len(files) + len(documents); n > MaxFiles {
		return Artifact{}, fmt.Errorf("%d files, at most %d are allowed: %w", n, MaxFiles, ErrTooLarge)
	}
	total := 0
	h := sha256.New()
	for _, m := range []map[string][]byte{files, documents} {
		fmt.Fprintf(h, "%d\n", len(m))
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if total += len(m[name]); total > MaxBytes {
				return Artifact{}, fmt.Errorf("the files have more than %d bytes: %w", MaxBytes, ErrTooLarge)
			}
			fmt.Fprintf(h, "%d:%s%d:", len(name), name, len(m[name]))
			h.Write(m[name])
		}
	}
	return Artifact{Files: files, Documents: documents, Revision: "sha256:" + hex.EncodeToString(h.Sum(nil))}, nil
}

// Source gives the present files of a policy. Its methods may be called at the same time.
type Source interface {
	// Fetch returns the files, or an error if they cannot be had or trusted.
	Fetch(ctx context.Context) (Artifact, error)
}

// Objects reads objects of the cluster. An object that does not exist is an error.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Opener makes sources of NodePolicies. The zero value knows inline and file sources.
type Opener struct {
	// Objects reads ConfigMaps and Secrets. Nil refuses policies that refer to any.
	Objects Objects
	// Remote opens OCI and HTTP sources. Nil refuses them.
	Remote func(v1alpha1.PolicySource) (Source, error)
}

// Open returns the source of a policy, with the documents it takes from ConfigMaps.
func (o Opener) Open(p *v1alpha1.NodePolicy) (Source, error) {
	src, err := o.open(p)
	if err != nil {
		return nil, err
	}
	if p.Spec.Data == nil || len(p.Spec.Data.ConfigMapRefs) == 0 {
		return src, nil
	}
	if o.Objects == nil {
		return nil, errors.New("data.configMapRefs: there is no cluster to read ConfigMaps from")
	}
	return &documented{src, o.Objects, p.Spec.Data.ConfigMapRefs}, nil
}

func (o Opener) open(p *v1alpha1.NodePolicy) (Source, error) {
	s := &p.Spec.Source
	switch {
	case s.Inline != nil:
		return inline(p.Spec.Runtime, *s.Inline)
	case s.ConfigMapRef != nil:
		if o.Objects == nil {
			return nil, errors.New("source.configMapRef: there is no cluster to read ConfigMaps from")
		}
		return &configMap{o.Objects, *s.ConfigMapRef}, nil
	case s.File != nil:
		return &Files{Path: s.File.Path}, nil
	case s.OCI != nil, s.HTTP != nil:
		if o.Remote == nil {
			return nil, errors.New("source: OCI and HTTP sources are not to be had here")
		}
		return o.Remote(*s)
	}
	return nil, errors.New("source: exactly one of inline, configMapRef, file, oci and http is required")
}

// Fixed is a source that always gives one artefact.
type Fixed struct{ Artifact Artifact }

// Fetch returns the artefact.
func (f Fixed) Fetch(context.Context) (Artifact, error) { return f.Artifact, nil }

func inline(rt v1alpha1.Runtime, text string) (Source, error) {
	files := map[string][]byte{"policy.rego": []byte(text)}
	if rt == v1alpha1.RuntimeWasm {
		b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
		if err != nil {
			return nil, fmt.Errorf("source.inline: a Wasm module is given in base64: %w", err)
		}
		files = map[string][]byte{"policy.wasm": b}
	}
	a, err := New(files, nil)
	return Fixed{a}, err
}

type configMap struct {
	objects Objects
	ref     v1alpha1.ConfigMapReference
}

func (c *configMap) Fetch(ctx context.Context) (Artifact, error) {
	files, err := keys(ctx, c.objects, c.ref, Belongs)
	if err != nil {
		return Artifact{}, err
	}
	return New(files, nil)
}

// documented adds documents of ConfigMaps to the files of another source.
type documented struct {
	Source
	objects Objects
	refs    []v1alpha1.ConfigMapReference
}

func (d *documented) Fetch(ctx context.Context) (Artifact, error) {
	a, err := d.Source.Fetch(ctx)
	if err != nil {
		return Artifact{}, err
	}
	documents := maps.Clone(a.Documents)
	if documents == nil {
		documents = map[string][]byte{}
	}
	for _, ref := range d.refs {
		files, err := keys(ctx, d.objects, ref, isDocument)
		if err != nil {
			return Artifact{}, err
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			documents[strings.TrimSuffix(name, path.Ext(name))] = files[name]
		}
	}
	return New(a.Files, documents)
}

func isDocument(name string) bool {
	return slices.Contains([]string{".json", ".yaml", ".yml"}, path.Ext(name))
}

// Belongs says whether a file can be part of a policy: Rego but no tests, Wasm, documents.
func Belongs(name string) bool {
	return strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego") || strings.HasSuffix(name, ".wasm") || isDocument(name)
}

// keys reads the keys of a ConfigMap that belong, or the one that ref names.
func keys(ctx context.Context, objects Objects, ref v1alpha1.ConfigMapReference, belongs func(string) bool) (map[string][]byte, error) {
	id := ref.Namespace + "/" + ref.Name
	cm, err := objects.ConfigMap(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", id, err)
	}
	files := map[string][]byte{}
	add := func(key string, value []byte) error {
		name, packed := strings.CutSuffix(key, ".gz")
		if ref.Key != "" && key != ref.Key || !belongs(name) {
			return nil
		}
		if packed {
			if value, err = Gunzip(value, MaxBytes); err != nil {
				return fmt.Errorf("ConfigMap %s: key %s: %w", id, key, err)
			}
		}
		if _, ok := files[name]; ok {
			return fmt.Errorf("ConfigMap %s: there are keys %s and %s.gz", id, name, name)
		}
		files[name] = value
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
		if err := add(key, []byte(cm.Data[key])); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(cm.BinaryData)) {
		if err := add(key, cm.BinaryData[key]); err != nil {
			return nil, err
		}
	}
	switch {
	case len(files) > 0:
		return files, nil
	case ref.Key != "":
		return nil, fmt.Errorf("ConfigMap %s: no key %s that is a file of a policy", id, ref.Key)
	}
	return nil, fmt.Errorf("ConfigMap %s: no key is a file of a policy", id)
}

// Gunzip decompresses b. The error is [ErrTooLarge] if that gives more than most bytes.
func Gunzip(b []byte, most int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	if int64(len(out)) > most {
		return nil, fmt.Errorf("decompressed, more than %d bytes: %w", most, ErrTooLarge)
	}
	return out, nil
}
