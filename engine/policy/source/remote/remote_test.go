package remote_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	orasremote "oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
	"github.com/dovetail-sh/dovetail/engine/policy/source/remote"
)

const (
	regoFile = "package dovetail.score.a\n\nbias contains {\"i\": 0, \"microUSD\": 1}\n"
	wasmFile = "\x00asm\x01\x00\x00\x00"
)

// secrets has Secrets by namespace/name.
type secrets map[string]map[string][]byte

func (s secrets) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return nil, errors.New("not found")
}

func (s secrets) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if data := s[namespace+"/"+name]; data != nil {
		return &corev1.Secret{Data: data}, nil
	}
	return nil, errors.New("not found")
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// archive is a compressed tar archive of name, content, name, content ...
func archive(t *testing.T, files ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o600, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// hub is an OCI registry in memory: the pushes and pulls of the distribution specification.
type hub struct {
	*httptest.Server
	user, password string // if it wants any

	mu    sync.Mutex
	blobs map[string][]byte // and manifests, by digest
	types map[string]string // of manifests
	pulls int
}

func newHub(t *testing.T) *hub {
	h := &hub{blobs: map[string][]byte{}, types: map[string]string{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) host() string { return strings.TrimPrefix(h.URL, "http://") }

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if user, password, _ := r.BasicAuth(); h.user != "" && (user != h.user || password != h.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	parts := strings.Split(r.URL.Path, "/")
	last, kind := parts[len(parts)-1], parts[len(parts)-2]
	body, _ := io.ReadAll(r.Body)
	switch r.Method {
	case http.MethodPost:
		w.Header().Set("Location", r.URL.Path+"upload")
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPut:
		id := digest(body)
		h.blobs[id] = body
		if kind == "manifests" {
			h.types[id] = r.Header.Get("Content-Type")
		}
		w.Header().Set("Docker-Content-Digest", id)
		w.WriteHeader(http.StatusCreated)
	default:
		b, ok := h.blobs[last]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		h.pulls++
		if kind == "manifests" {
			w.Header().Set("Content-Type", h.types[last])
		}
		w.Header().Set("Docker-Content-Digest", last)
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(b)
		}
	}
}

// push pushes an artefact of layers (media type, content ...) with oras, and returns its
// reference.
func (h *hub) push(t *testing.T, kind string, layers ...string) string {
	t.Helper()
	repo, err := orasremote.NewRepository(h.host() + "/team/policy")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	repo.Client = &auth.Client{Credential: auth.StaticCredential(h.host(), auth.Credential{Username: h.user, Password: h.password})}
	store := memory.New()
	var descs []ocispec.Descriptor
	for i := 0; i < len(layers); i += 2 {
		desc := content.NewDescriptorFromBytes(layers[i], []byte(layers[i+1]))
		if err := store.Push(t.Context(), desc, strings.NewReader(layers[i+1])); err != nil {
			t.Fatal(err)
		}
		descs = append(descs, desc)
	}
	manifest, err := oras.PackManifest(t.Context(), store, oras.PackManifestVersion1_1, kind, oras.PackManifestOptions{Layers: descs})
	if err != nil {
		t.Fatal(err)
	}
	if err := oras.CopyGraph(t.Context(), store, repo, manifest, oras.DefaultCopyGraphOptions); err != nil {
		t.Fatal(err)
	}
	return h.host() + "/team/policy@" + manifest.Digest.String()
}

func plain(string) bool { return true }

func names(a source.Artifact) []string { return slices.Sorted(maps.Keys(a.Files)) }

func TestOCI(t *testing.T) {
	h := newHub(t)
	tests := map[string]struct {
		ref     func(t *testing.T) string
		want    []string
		wantErr string
		wantIs  error
	}{
		"a bundle": {
			ref: func(t *testing.T) string {
				return h.push(t, remote.ArtifactRego, remote.LayerBundle, string(archive(t, "/a.rego", regoFile, "/a_test.rego", "x", ".manifest", "{}", "data.json", "{}")))
			},
			want: []string{"a.rego", "data.json"},
		},
		"a module": {
			ref: func(t *testing.T) string {
				return h.push(t, remote.ArtifactWasm, remote.LayerWasm, wasmFile)
			},
			want: []string{"policy.wasm"},
		},
		"a single Rego file as OPA's tools push it": {
			ref: func(t *testing.T) string {
				return h.push(t, "application/x", "application/vnd.cncf.openpolicyagent.policy.layer.v1+rego", regoFile)
			},
			want: []string{"policy.rego"},
		},
		"an image of something else": {
			ref:     func(t *testing.T) string { return h.push(t, "application/x", "text/plain", "hello") },
			wantErr: "no layer is a policy: there is text/plain",
		},
		"a digest that is not there": {
			ref: func(t *testing.T) string {
				return h.host() + "/team/policy@" + digest([]byte("nothing"))
			},
			wantErr: "not found",
		},
		"a manifest that is not what the digest says": {
			ref: func(t *testing.T) string {
				good := h.push(t, remote.ArtifactWasm, remote.LayerWasm, wasmFile)
				want := digest([]byte("another"))
				h.blobs[want], h.types[want] = h.blobs[good[strings.Index(good, "@")+1:]], ocispec.MediaTypeImageManifest
				return h.host() + "/team/policy@" + want
			},
			wantErr: "manifest", wantIs: source.ErrDigest,
		},
		"a layer that is not what the manifest says": {
			ref: func(t *testing.T) string {
				ref := h.push(t, remote.ArtifactWasm, remote.LayerWasm, wasmFile+"\x00\x01x")
				h.blobs[digest([]byte(wasmFile+"\x00\x01x"))] = []byte(wasmFile + "\x00\x01y")
				return ref
			},
			wantErr: "layer sha256:", wantIs: content.ErrMismatchedDigest,
		},
		"an archive that explodes": {
			ref: func(t *testing.T) string {
				return h.push(t, remote.ArtifactRego, remote.LayerBundle, string(archive(t, "a.rego", strings.Repeat(" ", source.MaxBytes))))
			},
			wantIs: source.ErrTooLarge, wantErr: "decompressed",
		},
		"a tag": {ref: func(*testing.T) string { return h.host() + "/team/policy:v1" }, wantErr: "by digest"},
		"a tag and digest": {
			ref: func(t *testing.T) string {
				return strings.Replace(h.push(t, remote.ArtifactWasm, remote.LayerWasm, wasmFile), "@", ":v1@", 1)
			},
			want: []string{"policy.wasm"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			src, err := remote.Options{PlainHTTP: plain}.Open(v1alpha1.PolicySource{OCI: &v1alpha1.OCISource{Ref: tt.ref(t)}})
			var a source.Artifact
			if err == nil {
				a, err = src.Fetch(t.Context())
			}
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || tt.wantIs != nil && !errors.Is(err, tt.wantIs) {
					t.Fatalf("error %v, want part %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, names(a)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			before := h.pulls
			again, err := src.Fetch(t.Context())
			if err != nil || again.Revision != a.Revision || h.pulls != before {
				t.Errorf("fetched again: %s (%v) after %d pulls, want %s from memory", again.Revision, err, h.pulls-before, a.Revision)
			}
		})
	}
}

func TestOCI_pullSecret(t *testing.T) {
	h := newHub(t)
	h.user, h.password = "robot", "s3cret:with-colon"
	ref := h.push(t, remote.ArtifactWasm, remote.LayerWasm, wasmFile)
	config := func(format string, args ...any) map[string][]byte {
		return map[string][]byte{corev1.DockerConfigJsonKey: fmt.Appendf(nil, format, args...)}
	}
	both := base64.StdEncoding.EncodeToString([]byte(h.user + ":" + h.password))
	objects := secrets{
		"ns/auth":      config(`{"auths": {"https://%s/v2/": {"auth": %q}}}`, h.host(), both),
		"ns/plain":     config(`{"auths": {%q: {"username": %q, "password": %q}}}`, h.host(), h.user, h.password),
		"ns/path":      config(`{"auths": {%q: {"username": "x", "password": "y"}, "%s/team": {"auth": %q}}}`, h.host(), h.host(), both),
		"ns/wrong":     config(`{"auths": {%q: {"username": "robot", "password": "guess"}}}`, h.host()),
		"ns/elsewhere": config(`{"auths": {"registry.example": {"auth": %q}}}`, both),
		"ns/malformed": config(`{"auths": %q}`, h.password),
		"ns/opaque":    {"password": []byte("x")},
	}
	for name, wantErr := range map[string]string{
		"auth": "", "plain": "", "path": "", "wrong": "401", "elsewhere": "no entry for registry " + h.host(),
		"malformed": "is not JSON of the right form", "opaque": "no key .dockerconfigjson", "gone": "pull secret ns/gone: not found", "": "credential not found",
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.OCISource{Ref: ref}
			if name != "" {
				s.PullSecretRef = &v1alpha1.SecretReference{Namespace: "ns", Name: name}
			}
			src, err := remote.Options{PlainHTTP: plain, Objects: objects}.Open(v1alpha1.PolicySource{OCI: s})
			if err != nil {
				t.Fatal(err)
			}
			_, err = src.Fetch(t.Context())
			if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
				t.Errorf("error %v, want part %q", err, wantErr)
			}
			if err != nil && strings.Contains(err.Error(), h.password) {
				t.Errorf("error %q tells the password", err)
			}
		})
	}
}

// web serves one body, with an ETag.
type web struct {
	*httptest.Server
	mu        sync.Mutex
	body      []byte
	status    int
	full, not int // answers with body, and without
}

func newWeb(t *testing.T, body []byte) *web {
	w := &web{body: body}
	w.Server = httptest.NewServer(w)
	t.Cleanup(w.Close)
	return w
}

func (s *web) serve(body []byte, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.body, s.status = body, status
}

func (s *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tag := `"` + digest(s.body) + `"`
	switch {
	case s.status != 0:
		w.WriteHeader(s.status)
	case r.Header.Get("If-None-Match") == tag:
		s.not++
		w.WriteHeader(http.StatusNotModified)
	default:
		s.full++
		w.Header().Set("ETag", tag)
		_, _ = w.Write(s.body)
	}
}

func TestHTTP_digest(t *testing.T) {
	bundle := archive(t, "score/a.rego", regoFile, "data.json", `{"a": 1}`)
	for name, tt := range map[string]struct {
		body    []byte
		digest  string
		want    []string
		wantErr string
		wantIs  error
	}{
		"a bundle":                {body: bundle, want: []string{"data.json", "score/a.rego"}},
		"a Rego file":             {body: []byte(regoFile), want: []string{"policy.rego"}},
		"a module":                {body: []byte(wasmFile), want: []string{"policy.wasm"}},
		"a wrong digest":          {body: bundle, digest: digest([]byte("x")), wantErr: "the file has digest " + digest(bundle), wantIs: source.ErrDigest},
		"nothing":                 {body: []byte{}, wantErr: "empty"},
		"too much":                {body: make([]byte, source.MaxBytes+1), wantErr: "more than", wantIs: source.ErrTooLarge},
		"a damaged bundle":        {body: bundle[:len(bundle)-9], wantErr: "decompress"},
		"an archive of no policy": {body: archive(t, "a.txt", "x"), wantErr: "no file of a policy"},
		"paths out of the folder": {body: archive(t, "../../a.rego", regoFile), want: []string{"a.rego"}},
		"a file twice":            {body: archive(t, "a.rego", regoFile, "./a.rego", regoFile), wantErr: "a.rego is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWeb(t, tt.body)
			if tt.digest == "" {
				tt.digest = digest(tt.body)
			}
			src, err := remote.Options{}.Open(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: w.URL + "/bundle.tar.gz", Digest: tt.digest}})
			if err != nil {
				t.Fatal(err)
			}
			a, err := src.Fetch(t.Context())
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || !strings.Contains(err.Error(), w.URL) || tt.wantIs != nil && !errors.Is(err, tt.wantIs) {
					t.Fatalf("error %v, want parts %q and the URL", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, names(a)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			w.serve([]byte("replaced"), 0)
			if again, err := src.Fetch(t.Context()); err != nil || again.Revision != a.Revision || w.full != 1 {
				t.Errorf("fetched again: %s (%v), %d downloads, want %s and 1", again.Revision, err, w.full, a.Revision)
			}
		})
	}
}

func TestHTTP_unreachable(t *testing.T) {
	w := newWeb(t, nil)
	w.serve(nil, http.StatusBadGateway)
	open := func(client *http.Client) source.Source {
		src, err := remote.Options{Client: client}.Open(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: w.URL, Digest: digest(nil)}})
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
	if _, err := open(nil).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("error %v, want status 502", err)
	}
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer slow.Close()
	w.URL = slow.URL
	if _, err := open(&http.Client{Timeout: 20 * time.Millisecond}).Fetch(t.Context()); err == nil || strings.Count(err.Error(), slow.URL) != 1 {
		t.Errorf("error %v, want the URL once", err)
	}
}

// keyPair makes a key and its public half, both in PEM.
func keyPair(t *testing.T) (private, public string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: b}))
}

// signed is an OPA bundle, as OPA's own library writes and signs it.
func signed(t *testing.T, key, algorithm, keyID, text string) []byte {
	t.Helper()
	b := bundle.Bundle{
		Manifest: bundle.Manifest{Revision: "1"},
		Data:     map[string]any{"rates": map[string]any{"m7i": 3}},
		Modules:  []bundle.ModuleFile{{URL: "a.rego", Path: "/a.rego", RelativePath: "a.rego", Raw: []byte(text), Parsed: ast.MustParseModule(text)}},
	}
	b.Manifest.Init()
	if key != "" {
		if err := b.GenerateSignature(bundle.NewSigningConfig(key, algorithm, ""), keyID, false); err != nil {
			t.Fatal(err)
		}
	}
	var buf bytes.Buffer
	if err := bundle.NewWriter(&buf).DisableFormat(true).Write(b); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// repack changes the content of a file in a compressed archive, or leaves it out.
func repack(t *testing.T, b []byte, name string, change func([]byte) []byte, more ...string) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Trim(h.Name, "/") == name {
			if content = change(content); content == nil {
				continue
			}
		}
		files = append(files, h.Name, string(content))
	}
	return archive(t, append(files, more...)...)
}

func TestHTTP_signature(t *testing.T) {
	private, public := keyPair(t)
	other, _ := keyPair(t)
	good := signed(t, private, "RS256", "default", regoFile)
	tests := map[string]struct {
		body    []byte
		key     v1alpha1.VerificationKey
		wantErr string
	}{
		"a good signature":                   {body: good},
		"a good signature by a named key":    {body: signed(t, private, "RS256", "release", regoFile), key: v1alpha1.VerificationKey{KeyID: "release"}},
		"a shared secret":                    {body: signed(t, "shared", "HS256", "default", regoFile), key: v1alpha1.VerificationKey{Algorithm: "HS256", SecretRef: &v1alpha1.SecretKeyReference{SecretReference: v1alpha1.SecretReference{Namespace: "ns", Name: "key"}, Key: "hmac"}}},
		"a public key in a Secret":           {body: good, key: v1alpha1.VerificationKey{SecretRef: &v1alpha1.SecretKeyReference{SecretReference: v1alpha1.SecretReference{Namespace: "ns", Name: "key"}, Key: "public"}}},
		"a key that the Secret has not":      {body: good, key: v1alpha1.VerificationKey{SecretRef: &v1alpha1.SecretKeyReference{SecretReference: v1alpha1.SecretReference{Namespace: "ns", Name: "key"}, Key: "x"}}, wantErr: "Secret ns/key has no key x"},
		"no signature":                       {body: signed(t, "", "", "", regoFile), wantErr: "missing .signatures.json"},
		"a signature of another key":         {body: signed(t, other, "RS256", "default", regoFile), wantErr: "verif"},
		"another scope":                      {body: good, key: v1alpha1.VerificationKey{Scope: "write"}, wantErr: "scope"},
		"a changed file":                     {body: repack(t, good, "a.rego", func(b []byte) []byte { return append(b, '\n') }), wantErr: "a.rego"},
		"a missing file":                     {body: repack(t, good, "a.rego", func([]byte) []byte { return nil }), wantErr: "a.rego"},
		"a stripped signature":               {body: repack(t, good, ".signatures.json", func([]byte) []byte { return nil }), wantErr: "missing .signatures.json"},
		"a changed document":                 {body: repack(t, good, "data.json", func([]byte) []byte { return []byte(`{"rates": {"m7i": 4}}`) }), wantErr: "data.json"},
		"a file beside the signed ones":      {body: repack(t, good, "", nil, "b.rego", regoFile), wantErr: "b.rego"},
		"no bundle at all":                   {body: []byte(regoFile), wantErr: "decompress"},
		"an algorithm that is not the key's": {body: good, key: v1alpha1.VerificationKey{Algorithm: "ES256"}, wantErr: "key"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWeb(t, tt.body)
			if tt.key.SecretRef == nil {
				tt.key.PublicKey = public
			}
			objects := secrets{"ns/key": {"public": []byte(public), "hmac": []byte("shared")}}
			src, err := remote.Options{Objects: objects}.Open(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: w.URL, VerificationKey: &tt.key}})
			if err != nil {
				t.Fatal(err)
			}
			a, err := src.Fetch(t.Context())
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want part %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{"a.rego": regoFile, "data.json": `{"rates":{"m7i":3}}`}
			got := map[string]string{}
			for name, b := range a.Files {
				got[name] = string(b)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTP_ETag(t *testing.T) {
	private, public := keyPair(t)
	first := signed(t, private, "RS256", "default", regoFile)
	w := newWeb(t, first)
	src, err := remote.Options{}.Open(v1alpha1.PolicySource{HTTP: &v1alpha1.HTTPSource{URL: w.URL, VerificationKey: &v1alpha1.VerificationKey{PublicKey: public}}})
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(wantErr string) string {
		t.Helper()
		a, err := src.Fetch(t.Context())
		if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Fatalf("error %v, want part %q", err, wantErr)
		}
		return a.Revision
	}
	one := fetch("")
	if two := fetch(""); two != one || w.full != 1 || w.not != 1 {
		t.Errorf("unchanged: revision %s after %s, %d downloads and %d answers without, want 1 and 1", two, one, w.full, w.not)
	}
	// A refused download must not make the server's next answer an old one.
	w.serve(signed(t, "", "", "", regoFile), 0)
	fetch("missing .signatures.json")
	fetch("missing .signatures.json")
	w.serve(first, 0)
	if again := fetch(""); again != one {
		t.Errorf("revision %s, want %s again", again, one)
	}
	w.serve(signed(t, private, "RS256", "default", regoFile+"\n# more\n"), 0)
	if two := fetch(""); two == one {
		t.Error("the changed bundle has the same revision")
	}
}
