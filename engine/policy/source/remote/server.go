package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/keys"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// served is a file of a web server.
type served struct {
	opts Options
	src  v1alpha1.HTTPSource

	mu   sync.Mutex
	etag string
	last source.Artifact
	key  string // that last was verified with
}

func newServer(o Options, s v1alpha1.HTTPSource) (*served, error) {
	k := s.VerificationKey
	switch {
	case (s.Digest == "") == (k == nil):
		return nil, errors.New("source.http: exactly one of digest and verificationKey is required")
	case k != nil && k.SecretRef != nil && o.Objects == nil:
		return nil, errors.New("source.http.verificationKey.secretRef: there is no cluster to read Secrets from")
	}
	return &served{opts: o, src: s}, nil
}

// Fetch downloads the file if it is not the one it was. A file with a digest does not
// change, and is downloaded once.
func (s *served) Fetch(ctx context.Context) (source.Artifact, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.src.Digest != "" && s.last.Revision != "" {
		return s.last, nil
	}
	a, err := s.fetch(ctx)
	if err != nil {
		// The client's own error names the URL as well.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return source.Artifact{}, fmt.Errorf("bundle %s: %w", s.src.URL, err)
	}
	return a, nil
}

func (s *served) fetch(ctx context.Context) (source.Artifact, error) {
	key, err := s.verificationKey(ctx)
	if err != nil {
		return source.Artifact{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.src.URL, nil)
	if err != nil {
		return source.Artifact{}, err
	}
	// The body must come as it is stored, for its digest.
	req.Header.Set("Accept-Encoding", "identity")
	if s.etag != "" && key == s.key && s.last.Revision != "" {
		req.Header.Set("If-None-Match", s.etag)
	}
	resp, err := s.opts.Client.Do(req)
	if err != nil {
		return source.Artifact{}, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && req.Header.Get("If-None-Match") != "":
		return s.last, nil
	case resp.StatusCode != http.StatusOK:
		return source.Artifact{}, fmt.Errorf("the server answers %s", resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, source.MaxBytes+1))
	if err != nil {
		return source.Artifact{}, err
	}
	if len(body) > source.MaxBytes {
		return source.Artifact{}, fmt.Errorf("more than %d bytes: %w", source.MaxBytes, source.ErrTooLarge)
	}
	var files map[string][]byte
	if s.src.Digest != "" {
		if got := digestOf(body); got != s.src.Digest {
			return source.Artifact{}, fmt.Errorf("the file has digest %s, not %s: %w", got, s.src.Digest, source.ErrDigest)
		}
		files, err = unpack(body)
	} else {
		files, err = s.verified(body, key)
	}
	if err != nil {
		return source.Artifact{}, err
	}
	a, err := source.New(files, nil)
	if err != nil {
		return source.Artifact{}, err
	}
	s.last, s.etag, s.key = a, resp.Header.Get("ETag"), key
	return a, nil
}

// verificationKey returns the key of signatures, which may have been replaced.
func (s *served) verificationKey(ctx context.Context) (string, error) {
	k := s.src.VerificationKey
	if k == nil || k.SecretRef == nil {
		if k != nil {
			return k.PublicKey, nil
		}
		return "", nil
	}
	id := k.SecretRef.Namespace + "/" + k.SecretRef.Name
	secret, err := s.opts.Objects.Secret(ctx, k.SecretRef.Namespace, k.SecretRef.Name)
	if err != nil {
		return "", fmt.Errorf("verification key: Secret %s: %w", id, err)
	}
	key := string(secret.Data[k.SecretRef.Key])
	if key == "" {
		return "", fmt.Errorf("verification key: Secret %s has no key %s", id, k.SecretRef.Key)
	}
	return key, nil
}

// verified returns the files of an OPA bundle whose signature holds, and only those that
// it covers.
func (s *served) verified(body []byte, key string) (map[string][]byte, error) {
	// OPA bounds each file, not all of them together.
	if _, err := source.Gunzip(body, source.MaxBytes); err != nil {
		return nil, err
	}
	k := s.src.VerificationKey
	id := cmp.Or(k.KeyID, "default")
	config, err := keys.NewKeyConfig(key, cmp.Or(k.Algorithm, "RS256"), k.Scope)
	if err != nil {
		return nil, fmt.Errorf("verification key: %w", err)
	}
	verification := bundle.NewVerificationConfig(map[string]*bundle.KeyConfig{id: config}, id, k.Scope, nil)
	b, err := bundle.NewReader(bytes.NewReader(body)).
		WithBundleVerificationConfig(verification).
		WithSizeLimitBytes(source.MaxBytes).
		WithProcessAnnotations(false).
		Read()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, m := range b.Modules {
		name := strings.TrimPrefix(m.RelativePath, "/")
		if source.Belongs(name) {
			files[name] = m.Raw
		}
	}
	for _, m := range b.WasmModules {
		files[strings.TrimPrefix(m.Path, "/")] = m.Raw
	}
	if len(b.Data) > 0 {
		if files["data.json"], err = json.Marshal(b.Data); err != nil {
			return nil, err
		}
	}
	if len(b.Modules)+len(b.WasmModules) == 0 {
		return nil, errors.New("there is no Rego file and no policy.wasm")
	}
	return files, nil
}
