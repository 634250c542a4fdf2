package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source/remote"
)

// depot is an OCI registry in memory that takes what is pushed and gives it by digest.
type depot struct {
	mu    sync.Mutex
	blobs map[string][]byte // manifests as well
	types map[string]string // of manifests
	tags  []string
}

func (d *depot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts := strings.Split(strings.TrimSuffix(r.URL.Path, "/"), "/")
	last, kind := parts[len(parts)-1], parts[len(parts)-2]
	switch r.Method {
	case http.MethodPost:
		w.Header().Set("Location", r.URL.Path+"upload")
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		sum := sha256.Sum256(body)
		id := "sha256:" + hex.EncodeToString(sum[:])
		d.blobs[id] = body
		if kind == "manifests" {
			d.types[id] = r.Header.Get("Content-Type")
			d.tags = append(d.tags, last)
		}
		w.Header().Set("Docker-Content-Digest", id)
		w.WriteHeader(http.StatusCreated)
	default:
		b, ok := d.blobs[last]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if kind == "manifests" {
			w.Header().Set("Content-Type", d.types[last])
		}
		w.Header().Set("Docker-Content-Digest", last)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

// TestPolicyPush holds that what is pushed is what a NodePolicy fetches, that equal files
// have an equal digest, and that what cannot be used is not pushed.
func TestPolicyPush(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	d := &depot{blobs: map[string][]byte{}, types: map[string]string{}}
	server := httptest.NewServer(d)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	module, err := os.ReadFile(guest)
	if err != nil {
		t.Fatal(err)
	}
	at := files(t, map[string]string{
		"fee.rego":     "package dovetail.score.fee\n\nadjust contains {\"i\": i, \"addMicroUSD\": 5} if some i, _ in input.candidates\n",
		"licence.wasm": string(module),
		"typo.rego":    "package dovetail.score.typo\n\nadjust contains {\"i\": 0, \"addMicroUSD\": input.now.hours}\n",
	})
	push := func(name, ref string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		code = run(t.Context(), []string{"policy", "push", at(name), ref, "--plain-http"}, nil, &stdout, &stderr)
		return code, strings.TrimSpace(stdout.String()), stderr.String()
	}
	for _, name := range []string{"fee.rego", "licence.wasm"} {
		t.Run(name, func(t *testing.T) {
			code, ref, errs := push(name, host+"/team/policy:v1")
			if code != 0 {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			if _, again, _ := push(name, host+"/team/policy:v2"); again != ref {
				t.Errorf("pushed again: %s, first %s", again, ref)
			}
			src, err := remote.Options{PlainHTTP: func(string) bool { return true }}.Open(v1alpha1.PolicySource{OCI: &v1alpha1.OCISource{Ref: ref}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := src.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(at(name))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Files) != 1 || !bytes.Equal(got.Files[filepath.Base(name)], want) {
				t.Errorf("fetched %d files, want %s as it was pushed", len(got.Files), name)
			}
		})
	}
	if got := strings.Join(d.tags, " "); got != "v1 v2 v1 v2" {
		t.Errorf("tags %s", got)
	}
	if code, _, errs := push("typo.rego", host+"/team/typo:v1"); code != 1 || !strings.Contains(errs, "typo.rego:3") {
		t.Errorf("a policy with a fault: exit code %d, %s", code, errs)
	}
	if code, _, errs := push("fee.rego", "Not A Reference"); code != 1 || !strings.Contains(errs, "policy push") {
		t.Errorf("a bad reference: exit code %d, %s", code, errs)
	}
}
