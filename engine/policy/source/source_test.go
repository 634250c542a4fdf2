package source_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// cluster has ConfigMaps by namespace/name.
type cluster map[string]*corev1.ConfigMap

func (c cluster) ConfigMap(_ context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	if cm := c[namespace+"/"+name]; cm != nil {
		return cm, nil
	}
	return nil, errors.New("not found")
}

func (c cluster) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, errors.New("not found")
}

func packed(t *testing.T, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func text(files map[string][]byte) map[string]string {
	out := map[string]string{}
	for name, b := range files {
		out[name] = string(b)
	}
	return out
}

func TestOpener_Open(t *testing.T) {
	rego, wasm := "package dovetail.score.a", "\x00asm\x01\x00\x00\x00"
	str := func(s string) *string { return &s }
	objects := cluster{
		"ns/policy": {Data: map[string]string{"a.rego": rego, "a_test.rego": "package a_test", "README.md": "read", "data.json": "{}"}},
		"ns/module": {BinaryData: map[string][]byte{"a.wasm.gz": packed(t, []byte(wasm))}},
		"ns/bomb":   {BinaryData: map[string][]byte{"a.wasm.gz": packed(t, make([]byte, source.MaxBytes+1))}},
		"ns/cut":    {BinaryData: map[string][]byte{"a.wasm.gz": packed(t, []byte(wasm))[:15]}},
		"ns/twice":  {Data: map[string]string{"a.rego": rego}, BinaryData: map[string][]byte{"a.rego.gz": packed(t, []byte(rego))}},
		"ns/notes":  {Data: map[string]string{"README.md": "read"}},
		"ns/rates":  {Data: map[string]string{"rates.json": "1", "list.yaml": "[a]", "a.rego": "no document"}},
		"ns/more":   {Data: map[string]string{"rates.yaml": "2"}},
	}
	ref := func(name string) v1alpha1.ConfigMapReference {
		return v1alpha1.ConfigMapReference{Namespace: "ns", Name: name}
	}
	from := func(name, key string) v1alpha1.PolicySource {
		r := ref(name)
		r.Key = key
		return v1alpha1.PolicySource{ConfigMapRef: &r}
	}
	tests := map[string]struct {
		spec          v1alpha1.NodePolicySpec
		opener        source.Opener
		want          map[string]string
		wantDocuments map[string]string
		wantErr       string
		wantIs        error
	}{
		"inline Rego":                    {spec: v1alpha1.NodePolicySpec{Runtime: "rego", Source: v1alpha1.PolicySource{Inline: &rego}}, want: map[string]string{"policy.rego": rego}},
		"inline Wasm":                    {spec: v1alpha1.NodePolicySpec{Runtime: "wasm", Source: v1alpha1.PolicySource{Inline: str(base64.StdEncoding.EncodeToString([]byte(wasm))[:5] + "\n " + base64.StdEncoding.EncodeToString([]byte(wasm))[5:])}}, want: map[string]string{"policy.wasm": wasm}},
		"inline Wasm that is not base64": {spec: v1alpha1.NodePolicySpec{Runtime: "wasm", Source: v1alpha1.PolicySource{Inline: str("(module)")}}, wantErr: "base64"},
		"a ConfigMap":                    {spec: v1alpha1.NodePolicySpec{Source: from("policy", "")}, want: map[string]string{"a.rego": rego, "data.json": "{}"}},
		"a key of a ConfigMap":           {spec: v1alpha1.NodePolicySpec{Source: from("policy", "a.rego")}, want: map[string]string{"a.rego": rego}},
		"a key that is not there":        {spec: v1alpha1.NodePolicySpec{Source: from("policy", "b.rego")}, wantErr: "ConfigMap ns/policy: no key b.rego"},
		"a compressed module":            {spec: v1alpha1.NodePolicySpec{Source: from("module", "a.wasm.gz")}, want: map[string]string{"a.wasm": wasm}},
		"a module that explodes":         {spec: v1alpha1.NodePolicySpec{Source: from("bomb", "")}, wantErr: "ConfigMap ns/bomb: key a.wasm.gz", wantIs: source.ErrTooLarge},
		"a module that is cut off":       {spec: v1alpha1.NodePolicySpec{Source: from("cut", "")}, wantErr: "decompress"},
		"a file twice":                   {spec: v1alpha1.NodePolicySpec{Source: from("twice", "")}, wantErr: "keys a.rego and a.rego.gz"},
		"a ConfigMap without policies":   {spec: v1alpha1.NodePolicySpec{Source: from("notes", "")}, wantErr: "no key is a file of a policy"},
		"a ConfigMap that is not there":  {spec: v1alpha1.NodePolicySpec{Source: from("gone", "")}, wantErr: "ConfigMap ns/gone: not found"},
		"no cluster":                     {spec: v1alpha1.NodePolicySpec{Source: from("policy", "")}, opener: source.Opener{Remote: func(v1alpha1.PolicySource) (source.Source, error) { return nil, nil }}, wantErr: "no cluster"},
		"documents, of which later ones win": {
			spec: v1alpha1.NodePolicySpec{Runtime: "rego", Source: v1alpha1.PolicySource{Inline: &rego}, Data: &v1alpha1.PolicyData{ConfigMapRefs: []v1alpha1.ConfigMapReference{ref("rates"), ref("more")}}},
			want: map[string]string{"policy.rego": rego}, wantDocuments: map[string]string{"rates": "2", "list": "[a]"},
		},
		"documents that are not there": {
			spec:    v1alpha1.NodePolicySpec{Runtime: "rego", Source: v1alpha1.PolicySource{Inline: &rego}, Data: &v1alpha1.PolicyData{ConfigMapRefs: []v1alpha1.ConfigMapReference{ref("gone")}}},
			wantErr: "ConfigMap ns/gone: not found",
		},
		"a registry where none is to be had": {spec: v1alpha1.NodePolicySpec{Source: v1alpha1.PolicySource{OCI: &v1alpha1.OCISource{}}}, wantErr: "not to be had"},
		"no source":                          {wantErr: "exactly one of"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.opener.Remote == nil {
				tt.opener.Objects = objects
			}
			var a source.Artifact
			src, err := tt.opener.Open(&v1alpha1.NodePolicy{Spec: tt.spec})
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
			if diff := cmp.Diff(tt.want, text(a.Files)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if tt.wantDocuments == nil {
				tt.wantDocuments = map[string]string{}
			}
			if diff := cmp.Diff(tt.wantDocuments, text(a.Documents)); diff != "" {
				t.Errorf("documents (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNew(t *testing.T) {
	a, err := source.New(map[string][]byte{"a": []byte("bc")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	revisions := []string{a.Revision}
	for _, m := range []map[string][]byte{{"a": []byte("bd")}, {"ab": []byte("c")}, {"a": []byte("bc"), "b": nil}} {
		b, err := source.New(m, nil)
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, b.Revision)
	}
	b, err := source.New(nil, map[string][]byte{"a": []byte("bc")})
	if err != nil {
		t.Fatal(err)
	}
	revisions = append(revisions, b.Revision)
	slices.Sort(revisions)
	if got := slices.Compact(revisions); len(got) != 5 {
		t.Errorf("%d revisions of 5 different artefacts", len(got))
	}
	half := make([]byte, source.MaxBytes/2+1)
	if _, err := source.New(map[string][]byte{"a": half}, map[string][]byte{"b": half}); !errors.Is(err, source.ErrTooLarge) {
		t.Errorf("too many bytes: error %v, want ErrTooLarge", err)
	}
	many := map[string][]byte{}
	for i := range source.MaxFiles + 1 {
		many[strings.Repeat("a", i+1)] = nil
	}
	if _, err := source.New(many, nil); !errors.Is(err, source.ErrTooLarge) {
		t.Errorf("too many files: error %v, want ErrTooLarge", err)
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFiles_Fetch(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.rego", "a1")
	write(t, dir+"/a_test.rego", "test")
	write(t, dir+"/sub/b.wasm", "b1")
	write(t, dir+"/sub/notes.txt", "notes")
	write(t, dir+"/.hidden/c.rego", "c1")
	// As a kubelet mounts ConfigMaps.
	if err := os.Symlink(filepath.Join(dir, ".hidden", "c.rego"), dir+"/c.rego"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", dir+"/d.rego"); err != nil {
		t.Fatal(err)
	}
	f := &source.Files{Path: dir}
	seen := map[string]bool{}
	var last string
	look := func(step string, changed bool, want map[string]string) {
		t.Helper()
		a, err := f.Fetch(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		if diff := cmp.Diff(want, text(a.Files)); diff != "" {
			t.Errorf("%s: files (-want +got):\n%s", step, diff)
		}
		if changed == (a.Revision == last) || changed && seen[a.Revision] {
			t.Errorf("%s: revision %s after %s, want a new one: %v", step, a.Revision, last, changed)
		}
		last = a.Revision
		seen[last] = true
	}
	want := map[string]string{"a.rego": "a1", "sub/b.wasm": "b1", "c.rego": "c1"}
	look("at first", true, want)
	look("unchanged", false, want)
	write(t, dir+"/a.rego", "a2")
	want["a.rego"] = "a2"
	look("another text of the same length at once", true, want)
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"a.rego", "sub/b.wasm", ".hidden/c.rego"} {
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	look("another time and the same text", false, want)
	look("from memory", false, want)
	write(t, dir+"/sub/b.wasm", "b2")
	want["sub/b.wasm"] = "b2"
	look("one of several", true, want)
	// A kubelet puts another file in the place of the old one.
	write(t, dir+"/.next/c.rego", "c2")
	if err := os.Chtimes(dir+"/.next/c.rego", old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"/.next/c.rego", dir+"/.hidden/c.rego"); err != nil {
		t.Fatal(err)
	}
	want["c.rego"] = "c2"
	look("another file of the same size and time", true, want)
	if err := os.Remove(dir + "/a.rego"); err != nil {
		t.Fatal(err)
	}
	delete(want, "a.rego")
	look("a file gone", true, want)
	if err := os.Rename(dir+"/sub/b.wasm", dir+"/sub/e.wasm"); err != nil {
		t.Fatal(err)
	}
	delete(want, "sub/b.wasm")
	want["sub/e.wasm"] = "b2"
	look("another name", true, want)
}

func TestFiles_Fetch_errors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/empty/notes.txt", "notes")
	write(t, dir+"/big/a.rego", "")
	if err := os.Truncate(dir+"/big/a.rego", source.MaxBytes+1); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/circle", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../circle", dir+"/circle/again"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"gone": "no such file", "empty": "no file of a policy", "big": "too large", "circle": "nest more than"} {
		if _, err := (&source.Files{Path: filepath.Join(dir, path)}).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want part %q", path, err, want)
		}
	}
	write(t, dir+"/one/policy.rego", "x")
	a, err := (&source.Files{Path: dir + "/one/policy.rego"}).Fetch(t.Context())
	if got := slices.Collect(maps.Keys(a.Files)); err != nil || !slices.Equal(got, []string{"policy.rego"}) {
		t.Errorf("one file: %v, %v", got, err)
	}
}
