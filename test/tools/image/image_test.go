package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// dist is what `make image` made, which TestProduct is about.
var dist = flag.String("dist", "", "folder with the layout image of the product, and its archive")

var native = platform{runtime.GOOS, runtime.GOARCH}

// small writes a program that is quickly built, and behaves as the product does in what is
// asked of it here.
func small(t *testing.T) program {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE":      "Apache License\n",
		"go.mod":       "module example.com/small\n\ngo 1.26\n\nrequire example.com/part v1.2.3\n\nreplace example.com/part => ./part\n",
		"part/go.mod":  "module example.com/part\n\ngo 1.26\n",
		"part/part.go": "package part\n\nconst Name = \"part\"\n",
		"cmd/dovetail/m.go": `package main

import (
	"os"

	"example.com/part"
)

var release string

func main() { os.Stdout.WriteString("dovetail " + release + " " + part.Name + " " + os.Args[1] + "\n") }
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return program{
		source: dir, pkg: "./cmd/dovetail", version: "v0.1.0+small", revision: strings.Repeat("ab", 20),
		time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
	}
}

// built is what is below a folder: contents by name.
func built(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestBuild_reproducible builds from two folders, on two days, with other settings.
func TestBuild_reproducible(t *testing.T) {
	platforms := []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	dirs := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range dirs {
		g := small(t)
		if i == 1 {
			t.Setenv("GOFLAGS", "-tags=other")
			t.Setenv("GOAMD64", "v3")
			t.Setenv("CGO_ENABLED", "1")
			t.Setenv("TZ", "Asia/Tokyo")
			for name := range built(t, g.source) {
				if err := os.Chtimes(filepath.Join(g.source, name), time.Time{}, time.Unix(1, 0)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := g.build(t.Context(), platforms, "example.com/small", dir, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	first, second := built(t, dirs[0]), built(t, dirs[1])
	if len(first) < 10 {
		t.Errorf("%d files: %v", len(first), slices.Sorted(maps.Keys(first)))
	}
	for name := range first {
		if first[name] != second[name] {
			t.Errorf("%s differs", name)
		}
	}
	if !maps.Equal(first, second) {
		t.Errorf("files %v, then %v", slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(second)))
	}

	// And it is no constant: another time or version is another image.
	digest := func(change func(*program)) v1.Hash {
		g := small(t)
		change(&g)
		m, err := g.make(t.Context(), platforms[0], filepath.Join(t.TempDir(), "dovetail"))
		if err != nil {
			t.Fatal(err)
		}
		d, err := m.image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	base := digest(func(*program) {})
	for name, change := range map[string]func(*program){
		"time":     func(g *program) { g.time = g.time.Add(time.Second) },
		"version":  func(g *program) { g.version = "v0.2.0" },
		"revision": func(g *program) { g.revision = "other" },
	} {
		if digest(change) == base {
			t.Errorf("another %s gives the same image", name)
		}
	}
}

func TestBuild(t *testing.T) {
	g, out := small(t), t.TempDir()
	var told bytes.Buffer
	if err := g.build(t.Context(), []platform{{"linux", "amd64"}, {"linux", "arm64"}}, "example.com/small", out, &told); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"example.com/small:v0.1.0-small\n", "linux/amd64 ", "linux/arm64 ", " MB to pull", " ms until"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("%q is missing in\n%s", want, told.String())
		}
	}
	c := open(t, out)
	c.check(t, []platform{{"linux", "amd64"}, {"linux", "arm64"}})
	if got := c.config(t, native).Created.Time; !got.Equal(g.time) {
		t.Errorf("created %s, want %s", got, g.time)
	}
	root := c.unpack(t, native)
	if got, err := inside(t, root, "controller"); err != nil || got != "dovetail v0.1.0+small part controller\n" {
		t.Errorf("the program says %q, %v", got, err)
	}
	// What is replaced is listed as it is compiled.
	names := c.listed(t, native)
	if !slices.Contains(names, "example.com/part@(devel)") {
		t.Errorf("the bill of materials lists %v, want example.com/part", names)
	}
}

func TestParsePlatform(t *testing.T) {
	for text, want := range map[string]platform{
		"linux/amd64": {"linux", "amd64"}, "linux": {}, "": {}, "/amd64": {}, "linux/": {}, "linux/arm/v7": {},
	} {
		if got, err := parsePlatform(text); got != want || (err == nil) != (want != platform{}) {
			t.Errorf("parsePlatform(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestProgram_fromGit(t *testing.T) {
	g := small(t)
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", g.source, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE=1700000000 +0900")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	git("add", "-A")
	git("commit", "-q", "-m", "a")
	t.Setenv("SOURCE_DATE_EPOCH", "")
	bare := program{source: g.source}
	got, err := bare.fromGit(t.Context())
	if err != nil || !got.time.Equal(time.Unix(1700000000, 0)) || len(got.revision) != 40 || len(got.version) != 12 {
		t.Errorf("fromGit() = %+v, %v, want the time and the hash of the commit", got, err)
	}
	git("tag", "v1.2.3")
	if err := os.WriteFile(filepath.Join(g.source, "LICENSE"), []byte("another\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1600000000")
	if got, err = bare.fromGit(t.Context()); err != nil || got.version != "v1.2.3-dirty" || !got.time.Equal(time.Unix(1600000000, 0)) {
		t.Errorf("fromGit() = %+v, %v, want v1.2.3-dirty and the time that is set", got, err)
	}
	if same, err := g.fromGit(t.Context()); err != nil || same.version != g.version || same.revision != g.revision {
		t.Errorf("fromGit() = %+v, %v, want what is given to stay", same, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if _, err := bare.fromGit(t.Context()); err == nil {
		t.Error("a time that is no number is taken")
	}
}

// TestProduct holds the image of the product to what it promises, and runs it.
func TestProduct(t *testing.T) {
	if *dist == "" {
		t.Skip("make image runs it, with -dist")
	}
	c := open(t, *dist)
	c.check(t, []platform{{"linux", "amd64"}, {"linux", "arm64"}})
	for _, p := range []platform{{"linux", "amd64"}, {"linux", "arm64"}} {
		for _, want := range []string{"github.com/open-policy-agent/opa@v", "github.com/tetratelabs/wazero@v", "sigs.k8s.io/controller-runtime@v", "golang.org/x/crypto/x509roots/fallback@v", "std@go"} {
			if names := c.listed(t, p); !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, want) }) {
				t.Errorf("%s: the bill of materials lacks %s", p, want)
			}
		}
	}
	root := c.unpack(t, native)
	version := c.config(t, native).Config.Labels["org.opencontainers.image.version"]
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "dovetail " + version + " " + runtime.Version()},
		{[]string{"controller", "--help"}, "--leader-elect"},
	} {
		if got, err := inside(t, root, tt.args...); err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("dovetail %v says %q, %v, want %q", tt.args, got, err, tt.want)
		}
	}
	// Time zones are in the program: there are none in the image.
	for name, text := range map[string]string{
		"zones.rego":      "package dovetail.score.zones\n\nimport rego.v1\n\nhour(zone) := time.clock([0, zone])[0]\n",
		"zones_test.rego": "package dovetail.score.zones_test\n\nimport rego.v1\n\nimport data.dovetail.score.zones\n\ntest_zone if zones.hour(\"Europe/Berlin\") == 1\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, "policies"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "policies", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := inside(t, root, "policy", "test", "/policies"); err != nil || !strings.Contains(got, "passed=1 failed=0") {
		t.Errorf("dovetail policy test says %q, %v, want the test to pass", got, err)
	}

	// The same source, in another folder, gives the same image.
	top, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		t.Fatal(err)
	}
	g := program{
		source: copied(t, strings.TrimSpace(string(top))), pkg: "./cmd/dovetail", version: version,
		revision: c.config(t, native).Config.Labels["org.opencontainers.image.revision"], time: c.config(t, native).Created.Time,
	}
	m, err := g.make(t.Context(), native, filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	want, err := c.image(t, native).Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("a second build is %s, the first was %s", got, want)
	}
}

// copied is a copy of what git has or would add of a work tree.
func copied(t *testing.T, top string) string {
	t.Helper()
	list, err := exec.CommandContext(t.Context(), "git", "-C", top, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(top, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted and not committed
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// container is what was built, as somebody else reads it.
type container struct {
	dir   string
	at    layout.Path
	root  *v1.IndexManifest
	index v1.ImageIndex
}

// open reads the layout below a folder.
func open(t *testing.T, dir string) container {
	t.Helper()
	at, err := layout.FromPath(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := at.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	root, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := all.ImageIndex(root.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return container{dir, at, root, index}
}

func (c container) image(t *testing.T, p platform) v1.Image {
	t.Helper()
	m, err := c.index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range m.Manifests {
		if d.Platform != nil && d.Platform.OS == p.os && d.Platform.Architecture == p.arch {
			img, err := c.index.Image(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			return img
		}
	}
	t.Fatalf("no image for %s", p)
	return nil
}

func (c container) config(t *testing.T, p platform) *v1.ConfigFile {
	t.Helper()
	config, err := c.image(t, p).ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// check holds a layout and its archive to what holds for every program.
func (c container) check(t *testing.T, platforms []platform) {
	t.Helper()
	if err := validate.Index(c.index); err != nil {
		t.Errorf("the index is not valid: %v", err)
	}
	name := c.root.Manifests[0].Annotations["io.containerd.image.name"]
	if tag := c.root.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; tag == "" || !strings.HasSuffix(name, ":"+tag) {
		t.Errorf("the image is called %q with tag %q", name, tag)
	}
	m, err := c.index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != len(platforms) {
		t.Errorf("%d images, want one for each of %v", len(m.Manifests), platforms)
	}
	for _, p := range platforms {
		t.Run(p.String(), func(t *testing.T) {
			c.checkConfig(t, p)
			c.checkFiles(t, p)
			c.checkBOM(t, p)
		})
	}
	c.checkArchive(t)
}

func (c container) checkConfig(t *testing.T, p platform) {
	t.Helper()
	config := c.config(t, p)
	got := fmt.Sprint(config.OS, config.Architecture, config.Variant, config.Config.User, config.Config.Entrypoint, config.Config.Cmd, config.Config.Env)
	want := fmt.Sprint(p.os, p.arch, map[string]string{"arm64": "v8"}[p.arch], "65532:65532", []string{"/dovetail"}, []string{"controller"}, []string{"PATH=/", "XDG_CACHE_HOME=/var/cache/dovetail"})
	if got != want {
		t.Errorf("configuration %s, want %s", got, want)
	}
	manifest, err := c.image(t, p).Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(manifest.Annotations, config.Config.Labels) {
		t.Errorf("annotations %v, labels %v, want the same", manifest.Annotations, config.Config.Labels)
	}
	for _, key := range []string{"title", "description", "licenses", "source", "version", "revision", "created"} {
		if config.Config.Labels["org.opencontainers.image."+key] == "" {
			t.Errorf("label %s is missing", key)
		}
	}
	if at, err := time.Parse(time.RFC3339, config.Config.Labels["org.opencontainers.image.created"]); err != nil || !at.Equal(config.Created.Time) || config.History[0].Created.Time != at {
		t.Errorf("created %s by label, %s by configuration, %v by history (%v)", at, config.Created, config.History, err)
	}
}

// files are the entries of all layers of an image.
func (c container) files(t *testing.T, p platform) (headers []*tar.Header, contents map[string][]byte) {
	t.Helper()
	layers, err := c.image(t, p).Layers()
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string][]byte{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for in := tar.NewReader(r); ; {
			h, err := in.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			headers = append(headers, h)
			if contents[h.Name], err = io.ReadAll(in); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return headers, contents
}

func (c container) checkFiles(t *testing.T, p platform) {
	t.Helper()
	headers, contents := c.files(t, p)
	var got []string
	for _, h := range headers {
		got = append(got, fmt.Sprintf("%v %d:%d %s", h.FileInfo().Mode(), h.Uid, h.Gid, h.Name))
		if !h.ModTime.Equal(c.config(t, p).Created.Time) || h.Uname+h.Gname != "" {
			t.Errorf("%s is of %s, by %q, want the time of the image and no name", h.Name, h.ModTime, h.Uname)
		}
	}
	// All of it: no shell, no package manager, nothing that its user can change but a cache.
	want := []string{
		"-r-xr-xr-x 0:0 dovetail", "dr-xr-xr-x 0:0 licenses/", "-r--r--r-- 0:0 licenses/LICENSE",
		"drwxr-xr-x 0:0 var/", "drwxr-xr-x 0:0 var/cache/", "drwx------ 65532:65532 var/cache/dovetail/",
	}
	if !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	f, err := elf.NewFile(bytes.NewReader(contents["dovetail"]))
	if err != nil {
		t.Fatal(err)
	}
	if machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[p.arch]; f.Machine != machine {
		t.Errorf("the program is for %s, want %s", f.Machine, machine)
	}
	libraries, err := f.ImportedLibraries()
	if len(libraries) > 0 || slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
		t.Errorf("the program needs a loader and libraries %v (%v), want it to be static", libraries, err)
	}
	for _, s := range []string{".debug_info", ".zdebug_info", ".symtab"} {
		if f.Section(s) != nil {
			t.Errorf("the program has section %s, which only makes it larger", s)
		}
	}
}

// bomOf reads the bill of materials that refers to an image.
func (c container) bomOf(t *testing.T, p platform) (*cdx.BOM, []byte) {
	t.Helper()
	digest, err := c.image(t, p).Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range c.root.Manifests[1:] {
		text, err := c.at.Bytes(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		var m v1.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		if m.Subject == nil || m.Subject.Digest != digest {
			continue
		}
		if m.ArtifactType != "application/vnd.cyclonedx+json" || d.ArtifactType != m.ArtifactType || m.Config.MediaType != "application/vnd.oci.empty.v1+json" {
			t.Errorf("artifact type %q, %q in the index, configuration %q", m.ArtifactType, d.ArtifactType, m.Config.MediaType)
		}
		if config, err := c.at.Bytes(m.Config.Digest); err != nil || string(config) != "{}" {
			t.Errorf("configuration of the artifact is %q (%v), want {}", config, err)
		}
		content, err := c.at.Bytes(m.Layers[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		if hash, size, err := v1.SHA256(bytes.NewReader(content)); err != nil || hash != m.Layers[0].Digest || size != m.Layers[0].Size {
			t.Errorf("the bill of materials is %s of %d bytes (%v), want %v", hash, size, err, m.Layers[0])
		}
		b := new(cdx.BOM)
		if err := cdx.NewBOMDecoder(bytes.NewReader(content), cdx.BOMFileFormatJSON).Decode(b); err != nil {
			t.Fatal(err)
		}
		return b, content
	}
	t.Fatalf("nothing refers to the image for %s", p)
	return nil, nil
}

// listed are the components of the bill of materials, as "name@version".
func (c container) listed(t *testing.T, p platform) []string {
	t.Helper()
	b, _ := c.bomOf(t, p)
	var out []string
	for _, part := range *b.Components {
		out = append(out, part.Name+"@"+part.Version)
	}
	return out
}

// checkBOM compares the bill of materials with what the program says of itself.
func (c container) checkBOM(t *testing.T, p platform) {
	t.Helper()
	b, content := c.bomOf(t, p)
	if file, err := os.ReadFile(filepath.Join(c.dir, bomName(p))); err != nil || !bytes.Equal(file, content) {
		t.Errorf("the file %s is not what refers to the image (%v)", bomName(p), err)
	}
	_, contents := c.files(t, p)
	info, err := buildinfo.Read(bytes.NewReader(contents["dovetail"]))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"std@" + info.GoVersion}
	for _, m := range info.Deps {
		name := m.Path
		if m.Replace != nil && !strings.HasPrefix(m.Replace.Path, ".") {
			name = m.Replace.Path
		}
		version := m.Version
		if m.Replace != nil {
			version = m.Replace.Version
			if version == "" {
				version = "(devel)"
			}
		}
		want = append(want, name+"@"+version)
	}
	if got := c.listed(t, p); !slices.Equal(got, want) || len(want) < 2 {
		t.Errorf("the bill of materials lists %v, the program has %v", got, want)
	}
	for _, part := range *b.Components {
		if part.PackageURL == "" || part.BOMRef == "" || part.Type != cdx.ComponentTypeLibrary {
			t.Errorf("component %+v", part)
		}
	}
	main := b.Metadata.Component
	sum, _, err := v1.SHA256(bytes.NewReader(contents["dovetail"]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hex.DecodeString(sum.Hex); err != nil || main.Name != info.Main.Path || (*main.Hashes)[0].Value != sum.Hex {
		t.Errorf("the bill of materials is of %s %v, want %s %s", main.Name, *main.Hashes, info.Main.Path, sum.Hex)
	}
	refs := map[string]bool{}
	for _, part := range *b.Components {
		refs[part.BOMRef] = true
	}
	if deps := *b.Dependencies; len(deps) != 1 || deps[0].Ref != main.BOMRef || len(*deps[0].Dependencies) != len(refs) || len(refs) != len(*b.Components) {
		t.Errorf("dependencies %v of %d components with %d names", deps, len(*b.Components), len(refs))
	}
}

// checkArchive holds that the archive is the layout with nothing but the image.
func (c container) checkArchive(t *testing.T) {
	t.Helper()
	f, err := os.Open(filepath.Join(c.dir, "dovetail.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(in); err == nil {
				err = os.WriteFile(path, content, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(all); err != nil {
		t.Errorf("the archive is not valid: %v", err)
	}
	m, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 1 || m.Manifests[0].Digest != c.root.Manifests[0].Digest || m.Manifests[0].Annotations["io.containerd.image.name"] == "" {
		t.Errorf("the archive has %v, want the image of the layout alone", m.Manifests)
	}
}

// unpack makes the file system of an image, without owners where only root can set them.
func (c container) unpack(t *testing.T, p platform) string {
	t.Helper()
	root := t.TempDir()
	// The user of the image must be able to reach it.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	headers, contents := c.files(t, p)
	for _, h := range headers {
		path := filepath.Join(root, h.Name)
		var err error
		if h.Typeflag == tar.TypeDir {
			err = os.Mkdir(path, 0o755)
		} else {
			err = os.WriteFile(path, contents[h.Name], 0o644)
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(path, h.Uid, h.Gid)
		}
		if err == nil {
			// Folders stay writable for the test, which has to remove them.
			err = os.Chmod(path, h.FileInfo().Mode().Perm()|map[bool]fs.FileMode{true: 0o200}[h.FileInfo().IsDir()])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// inside runs the program with the unpacked image as its root and as the image's user: with
// root's rights, or in a user namespace. Where neither is allowed it runs from outside.
func inside(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/dovetail", args...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/", "XDG_CACHE_HOME=" + cache}
	id := syscall.SysProcIDMap{ContainerID: user, Size: 1}
	switch {
	case os.Geteuid() == 0:
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	default:
		id.HostID = os.Getuid()
		groups := syscall.SysProcIDMap{ContainerID: user, HostID: os.Getgid(), Size: 1}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{id}, GidMappings: []syscall.SysProcIDMap{groups}}
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) {
		t.Logf("the program is run outside of its image: %v", err)
		for i, arg := range args {
			if strings.HasPrefix(arg, "/") {
				args[i] = filepath.Join(root, arg)
			}
		}
		cmd = exec.CommandContext(ctx, filepath.Join(root, "dovetail"), args...)
		cmd.Env = []string{"PATH=/", "XDG_CACHE_HOME=" + filepath.Join(root, cache)}
		out, err = cmd.CombinedOutput()
	}
	return string(out), err
}
