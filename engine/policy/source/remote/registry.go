package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// Media types of artefacts. A Rego artefact has one layer that is an OPA bundle, a Wasm
// artefact one that is the module.
const (
	ArtifactRego = "application/vnd.dovetail.policy.rego.v1"
	ArtifactWasm = "application/vnd.dovetail.policy.wasm.v1"
	LayerBundle  = "application/vnd.oci.image.layer.v1.tar+gzip"
	LayerWasm    = "application/vnd.wasm.content.layer.v1+wasm"
)

// layerRego is the layer that OPA's tools push for a single file.
const layerRego = "application/vnd.cncf.openpolicyagent.policy.layer.v1+rego"

// maxManifest is the size of a manifest in bytes.
const maxManifest = 1 << 20

// pulled is an artefact of a registry. Its digest names it for good, so that it is pulled
// once.
type pulled struct {
	opts Options
	src  v1alpha1.OCISource
	ref  registry.Reference

	mu   sync.Mutex
	last source.Artifact
}

func newRegistry(o Options, s v1alpha1.OCISource) (*pulled, error) {
	ref, err := registry.ParseReference(s.Ref)
	if err != nil {
		return nil, fmt.Errorf("source.oci.ref: %w", err)
	}
	if err := ref.ValidateReferenceAsDigest(); err != nil {
		return nil, fmt.Errorf("source.oci.ref: %s must name the artefact by digest: %w", s.Ref, err)
	}
	if s.PullSecretRef != nil && o.Objects == nil {
		return nil, errors.New("source.oci.pullSecretRef: there is no cluster to read Secrets from")
	}
	return &pulled{opts: o, src: s, ref: ref}, nil
}

// Fetch pulls the artefact, unless it has been pulled before.
func (p *pulled) Fetch(ctx context.Context) (source.Artifact, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.Revision != "" {
		return p.last, nil
	}
	files, err := p.pull(ctx)
	if err != nil {
		return source.Artifact{}, fmt.Errorf("artefact %s: %w", p.src.Ref, err)
	}
	if p.last, err = source.New(files, nil); err != nil {
		return source.Artifact{}, fmt.Errorf("artefact %s: %w", p.src.Ref, err)
	}
	return p.last, nil
}

func (p *pulled) pull(ctx context.Context) (map[string][]byte, error) {
	repo := &remote.Repository{Reference: p.ref}
	repo.PlainHTTP = p.opts.PlainHTTP != nil && p.opts.PlainHTTP(p.ref.Registry)
	client := &auth.Client{Client: p.opts.Client}
	if ref := p.src.PullSecretRef; ref != nil {
		secret, err := p.opts.Objects.Secret(ctx, ref.Namespace, ref.Name)
		if err != nil {
			return nil, fmt.Errorf("pull secret %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		credential, err := credentialOf(secret, p.ref)
		if err != nil {
			return nil, fmt.Errorf("pull secret %s/%s: %w", ref.Namespace, ref.Name, err)
		}
		client.Credential = auth.StaticCredential(p.ref.Host(), credential)
	}
	repo.Client = client

	desc, stream, err := repo.FetchReference(ctx, p.ref.Reference)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if desc.Size > maxManifest {
		return nil, fmt.Errorf("manifest of %d bytes, at most %d are allowed: %w", desc.Size, maxManifest, source.ErrTooLarge)
	}
	// What counts is the digest that the policy names, not the one that the registry says.
	want, err := p.ref.Digest()
	if err != nil {
		return nil, err
	}
	desc.Digest = want
	b, err := content.ReadAll(stream, desc)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", source.ErrDigest, err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(b, &manifest); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	files := map[string][]byte{}
	var kinds []string
	for _, layer := range manifest.Layers {
		kinds = append(kinds, layer.MediaType)
		var name string
		switch layer.MediaType {
		case LayerBundle:
		case LayerWasm, "application/wasm":
			name = titleOf(layer, "policy.wasm")
		case layerRego:
			name = titleOf(layer, "policy.rego")
		default:
			continue
		}
		if layer.Size > source.MaxBytes {
			return nil, fmt.Errorf("layer of %d bytes, at most %d are allowed: %w", layer.Size, source.MaxBytes, source.ErrTooLarge)
		}
		b, err := content.FetchAll(ctx, repo, layer)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
		add := map[string][]byte{name: b}
		if layer.MediaType == LayerBundle {
			if add, err = unpack(b); err != nil {
				return nil, fmt.Errorf("layer %s: %w", layer.Digest, err)
			}
		}
		for name, b := range add {
			if _, ok := files[name]; ok {
				return nil, fmt.Errorf("layer %s: file %s is in another layer too", layer.Digest, name)
			}
			files[name] = b
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no layer is a policy: there is %s, want %s or %s", strings.Join(kinds, ", "), LayerBundle, LayerWasm)
	}
	return files, nil
}

// titleOf is the file name that a layer's annotation gives, if it belongs to a policy.
func titleOf(layer ocispec.Descriptor, otherwise string) string {
	title := path.Base(layer.Annotations[ocispec.AnnotationTitle])
	if path.Ext(title) == path.Ext(otherwise) && source.Belongs(title) {
		return title
	}
	return otherwise
}

// credentialOf reads the credential for a registry out of a Secret of type
// kubernetes.io/dockerconfigjson. An entry for a path of the registry is preferred to one
// for all of it.
func credentialOf(secret *corev1.Secret, ref registry.Reference) (auth.Credential, error) {
	raw, ok := secret.Data[corev1.DockerConfigJsonKey]
	if !ok {
		return auth.Credential{}, fmt.Errorf("no key %s: the type must be %s", corev1.DockerConfigJsonKey, corev1.SecretTypeDockerConfigJson)
	}
	var config struct {
		Auths map[string]struct{ Auth, Username, Password, IdentityToken string }
	}
	// The decoder's message may quote the secret.
	if json.Unmarshal(raw, &config) != nil {
		return auth.Credential{}, fmt.Errorf("key %s is not JSON of the right form", corev1.DockerConfigJsonKey)
	}
	best, found := "", ""
	for key := range config.Auths {
		name := strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
		for _, suffix := range []string{"/", "/v1", "/v2"} {
			name = strings.TrimSuffix(name, suffix)
		}
		whole := ref.Registry + "/" + ref.Repository
		if (whole == name || strings.HasPrefix(whole, name+"/")) && (len(name) > len(best) || len(name) == len(best) && key < found) {
			best, found = name, key
		}
	}
	if found == "" {
		return auth.Credential{}, fmt.Errorf("no entry for registry %s", ref.Registry)
	}
	entry := config.Auths[found]
	c := auth.Credential{Username: entry.Username, Password: entry.Password, RefreshToken: entry.IdentityToken}
	if entry.Auth != "" {
		b, err := base64.StdEncoding.DecodeString(entry.Auth)
		user, password, ok := strings.Cut(string(b), ":")
		if err != nil || !ok {
			return auth.Credential{}, fmt.Errorf("the entry for registry %s has no user and password", ref.Registry)
		}
		c.Username, c.Password = user, strings.TrimRight(password, "\x00")
	}
	return c, nil
}
