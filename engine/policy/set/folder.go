package set

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/dovetail/v1alpha1"
	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/source"
)

// FileError is what is wrong with a file of a folder of policies.
type FileError struct {
	// File is the path below the folder.
	File string
	Err  error
}

func (e *FileError) Error() string { return e.File + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// Found is a policy of a folder.
type Found struct {
	// File is the manifest, Rego file or module that makes it a policy.
	File string
	// Policy as the manifest says, or as a manifest with nothing but the necessary would.
	Policy *v1alpha1.NodePolicy
	// Artifact has its files.
	Artifact source.Artifact
}

// FromFolder finds the policies of a folder and the folders in it:
//
//   - each Rego package dovetail.<hook>.<name>, which may have several files;
//   - each Wasm module, for each hook that it exports;
//   - each NodePolicy in a file *.yaml or *.yml, which puts a policy in force with
//     parameters, order, mode and so on. Its source is inline, or a file (relative to the
//     manifest), or, if it is left out, the Rego file or module beside the manifest that
//     has its name. Hook and runtime may be left out too, if the file tells them. A file
//     that a manifest names is no policy by itself.
//
// A policy without a manifest is called like its package or module, in the form
// <hook>.<name> if that name is used twice. Other Rego packages are libraries, which come
// with the policies that refer to them. Files data.json and data.yaml have documents, which
// are where their folder says, as in OPA bundles; every Rego policy sees them. Tests are
// left out, and so are other files.
//
// The error joins a [*FileError] for each file that is no good, in the order of names;
// policies that do not need it are found all the same, in the order of names. An error of
// another kind means that the folder cannot be read.
func FromFolder(dir string) ([]Found, error) {
	a, err := (&source.Files{Path: dir}).Fetch(context.Background())
	if err != nil {
		return nil, err
	}
	return find(a)
}

// LoadFolder loads the policies of a folder, in the order of the chain. Policies that
// cannot be loaded are left out, and the error joins a [*FileError] for each. Those that
// are disabled are left out too.
func (l *Loader) LoadFolder(ctx context.Context, dir string) ([]policy.Policy, error) {
	found, err := FromFolder(dir)
	errs := []error{err}
	var out []policy.Policy
	for _, f := range found {
		p, err := l.Load(ctx, f.Policy, f.Artifact)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			errs = append(errs, &FileError{f.File, err})
			continue
		}
		if p.Mode != policy.Disabled {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, byOrder)
	return out, errors.Join(errs...)
}

// catalogue is a folder of policies as it is sorted out.
type catalogue struct {
	files     map[string][]byte
	packages  map[string][]string // Rego files by package
	packageOf map[string]string
	modules   map[string][]v1alpha1.Hook // hooks of Wasm files
	data      map[string][]byte
	taken     map[string]bool // files that manifests name
	found     []Found
	errs      []*FileError
}

func (c *catalogue) fail(file, format string, args ...any) {
	c.errs = append(c.errs, &FileError{file, fmt.Errorf(format, args...)})
}

func find(a source.Artifact) ([]Found, error) {
	c := &catalogue{
		files: a.Files, packages: map[string][]string{}, packageOf: map[string]string{},
		modules: map[string][]v1alpha1.Hook{}, data: map[string][]byte{}, taken: map[string]bool{},
	}
	names := slices.Sorted(maps.Keys(a.Files))
	for _, name := range names {
		b := a.Files[name]
		switch {
		case isData(name):
			if err := c.document(name, b); err != nil {
				c.errs = append(c.errs, &FileError{name, err})
			}
		case strings.HasSuffix(name, ".rego"):
			pkg, err := packageOf(b)
			if err != nil {
				c.errs = append(c.errs, &FileError{name, err})
				continue
			}
			c.packages[pkg] = append(c.packages[pkg], name)
			c.packageOf[name] = pkg
		case strings.HasSuffix(name, ".wasm"):
			hooks, err := hooksOf(b)
			if err != nil {
				c.errs = append(c.errs, &FileError{name, err})
				continue
			}
			c.modules[name] = hooks
		}
	}
	for _, name := range names {
		if ext := path.Ext(name); (ext == ".yaml" || ext == ".yml") && !isData(name) {
			c.manifests(name)
		}
	}
	c.plain()
	return c.result()
}

// document adds a file of documents, unless it is at odds with those before.
func (c *catalogue) document(name string, b []byte) error {
	all := map[string]any{}
	for _, other := range slices.Sorted(maps.Keys(c.data)) {
		if err := place(all, other, c.data[other]); err != nil {
			return err
		}
	}
	if err := place(all, name, b); err != nil {
		return err
	}
	if _, ok := all["dovetail"]; ok {
		return errors.New("the name dovetail is reserved")
	}
	c.data[name] = b
	return nil
}

// manifests adds the NodePolicies of a YAML file.
func (c *catalogue) manifests(file string) {
	docs := bytes.Split(append([]byte("\n"), c.files[file]...), []byte("\n---"))
	docs = slices.DeleteFunc(docs, func(doc []byte) bool { return len(bytes.TrimSpace(doc)) == 0 })
	for i, doc := range docs {
		fail := func(err error) {
			if len(docs) > 1 {
				err = fmt.Errorf("document %d: %w", i+1, err)
			}
			c.errs = append(c.errs, &FileError{file, err})
		}
		lenient := &v1alpha1.NodePolicy{}
		if err := yaml.Unmarshal(doc, lenient); err != nil {
			// A policy is in force as its manifest says, or not at all.
			if bytes.Contains(doc, []byte("NodePolicy")) {
				c.take(file, lenient)
				fail(err)
			}
			continue
		}
		if lenient.Kind != "NodePolicy" {
			continue
		}
		np := &v1alpha1.NodePolicy{}
		if err := yaml.UnmarshalStrict(doc, np); err != nil {
			c.take(file, lenient)
			fail(err)
			continue
		}
		if np.APIVersion != v1alpha1.GroupVersion.String() {
			c.take(file, np)
			fail(fmt.Errorf("apiVersion %q is not %s", np.APIVersion, v1alpha1.GroupVersion))
			continue
		}
		if err := c.manifest(file, np); err != nil {
			fail(err)
		}
	}
}

// take notes the file that a manifest names, and returns it; "" if there is none.
func (c *catalogue) take(file string, np *v1alpha1.NodePolicy) string {
	target := ""
	switch {
	case np.Spec.Source.File != nil:
		target = path.Join(path.Dir(file), filepath.ToSlash(np.Spec.Source.File.Path))
	case np.Spec.Source == v1alpha1.PolicySource{}:
		stem := strings.TrimSuffix(file, path.Ext(file))
		for _, ext := range []string{".rego", ".wasm"} {
			if _, ok := c.files[stem+ext]; ok {
				target = stem + ext
				break
			}
		}
	}
	if target == "" {
		return ""
	}
	c.taken[target] = true
	for _, other := range c.packages[c.packageOf[target]] {
		c.taken[other] = true
	}
	return target
}

func (c *catalogue) manifest(file string, np *v1alpha1.NodePolicy) error {
	s := &np.Spec
	target := c.take(file, np)
	var files map[string][]byte
	switch {
	case s.Source.Inline != nil:
		src, err := source.Opener{}.Open(np)
		if err != nil {
			return err
		}
		a, err := src.Fetch(context.Background())
		if err != nil {
			return err
		}
		files = a.Files
		if s.Runtime != v1alpha1.RuntimeWasm {
			files = c.with(maps.Clone(files))
		}
	case target != "":
		if _, ok := c.files[target]; !ok {
			return fmt.Errorf("spec.source.file.path: there is no file %s", target)
		}
		var err error
		if files, err = c.program(target, np); err != nil {
			return err
		}
		s.Source.File = &v1alpha1.FileSource{Path: target}
	case s.Source == v1alpha1.PolicySource{}:
		stem := strings.TrimSuffix(path.Base(file), path.Ext(file))
		return fmt.Errorf("spec.source: neither given nor is there a %s.rego or %s.wasm", stem, stem)
	default:
		return errors.New("spec.source: a manifest in a folder has source inline or file")
	}
	if np.Name == "" {
		return errors.New("metadata.name is required")
	}
	if err := np.RuntimeValidate(); err != nil {
		return err
	}
	return c.add(file, np, files)
}

// program returns the files of the policy that a file makes, and fills in hook and runtime.
func (c *catalogue) program(target string, np *v1alpha1.NodePolicy) (map[string][]byte, error) {
	s := &np.Spec
	tell := func(hook v1alpha1.Hook, rt v1alpha1.Runtime) error {
		if s.Hook == "" {
			s.Hook = hook
		}
		if s.Runtime == "" {
			s.Runtime = rt
		}
		if s.Hook != hook {
			return fmt.Errorf("spec.hook: %s is for hook %s, not %s", target, hook, s.Hook)
		}
		if s.Runtime != rt {
			return fmt.Errorf("spec.runtime: %s is for runtime %s, not %s", target, rt, s.Runtime)
		}
		return nil
	}
	if hooks, ok := c.modules[target]; ok {
		hook := hooks[0]
		if slices.Contains(hooks, s.Hook) {
			hook = s.Hook
		} else if len(hooks) > 1 && s.Hook == "" {
			return nil, fmt.Errorf("spec.hook: required, as %s has several", target)
		}
		return map[string][]byte{path.Base(target): c.files[target]}, tell(hook, v1alpha1.RuntimeWasm)
	}
	pkg, ok := c.packageOf[target]
	if !ok {
		return nil, fmt.Errorf("spec.source: %s is not a Rego file or Wasm module that can be used", target)
	}
	hook, _, ok := policyPackage(pkg)
	if !ok {
		return nil, fmt.Errorf("spec.source: %s has package %s, not dovetail.<hook>.<name>", target, pkg)
	}
	files := map[string][]byte{}
	for _, name := range c.packages[pkg] {
		files[name] = c.files[name]
	}
	return c.with(files), tell(hook, v1alpha1.RuntimeRego)
}

// with adds the libraries that Rego files refer to, and the documents.
func (c *catalogue) with(files map[string][]byte) map[string][]byte {
	todo := slices.Sorted(maps.Keys(files))
	for len(todo) > 0 {
		refs := references(files[todo[0]])
		todo = todo[1:]
		for _, pkg := range slices.Sorted(maps.Keys(c.packages)) {
			if _, _, ok := policyPackage(pkg); ok || !refersTo(refs, pkg) {
				continue
			}
			for _, name := range c.packages[pkg] {
				if _, ok := files[name]; !ok {
					files[name] = c.files[name]
					todo = append(todo, name)
				}
			}
		}
	}
	maps.Copy(files, c.data)
	return files
}

// plain adds the policies that no manifest names.
func (c *catalogue) plain() {
	for _, pkg := range slices.Sorted(maps.Keys(c.packages)) {
		file := c.packages[pkg][0]
		hook, name, ok := policyPackage(pkg)
		if !ok {
			if parts := strings.Split(pkg, "."); parts[0] == "dovetail" && (len(parts) < 2 || parts[1] != "lib") {
				c.fail(file, "package %s is not dovetail.<hook>.<name> with a hook of %s", pkg, hookList())
			}
			continue
		}
		if c.taken[file] {
			continue
		}
		np := &v1alpha1.NodePolicy{}
		np.Name, np.Spec.Source.File = name, &v1alpha1.FileSource{Path: file}
		files, err := c.program(file, np)
		if err == nil {
			np.Spec.Hook = hook
			err = c.add(file, np, files)
		}
		if err != nil {
			c.fail(file, "%w", err)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(c.modules)) {
		if c.taken[file] {
			continue
		}
		for _, hook := range c.modules[file] {
			np := &v1alpha1.NodePolicy{}
			np.Name = strings.TrimSuffix(path.Base(file), ".wasm")
			np.Spec.Hook, np.Spec.Source.File = hook, &v1alpha1.FileSource{Path: file}
			files, err := c.program(file, np)
			if err == nil {
				err = c.add(file, np, files)
			}
			if err != nil {
				c.fail(file, "%w", err)
			}
		}
	}
}

func (c *catalogue) add(file string, np *v1alpha1.NodePolicy, files map[string][]byte) error {
	a, err := source.New(files, nil)
	if err != nil {
		return err
	}
	c.found = append(c.found, Found{file, np, a})
	return nil
}

// result makes names unique and sorts.
func (c *catalogue) result() ([]Found, error) {
	count := map[string]int{}
	for _, f := range c.found {
		count[f.Policy.Name]++
	}
	for _, f := range c.found {
		if count[f.Policy.Name] > 1 && !isManifest(f.File) {
			f.Policy.Name = string(f.Policy.Spec.Hook) + "." + f.Policy.Name
		}
	}
	slices.SortStableFunc(c.found, func(a, b Found) int { return strings.Compare(a.Policy.Name, b.Policy.Name) })
	var out []Found
	for i, f := range c.found {
		if i > 0 && c.found[i-1].Policy.Name == f.Policy.Name {
			c.fail(f.File, "the name %q is that of the policy in %s too", f.Policy.Name, c.found[i-1].File)
			continue
		}
		out = append(out, f)
	}
	slices.SortStableFunc(c.errs, func(a, b *FileError) int { return strings.Compare(a.File, b.File) })
	errs := make([]error, len(c.errs))
	for i, e := range c.errs {
		errs[i] = e
	}
	return out, errors.Join(errs...)
}

func isManifest(file string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, path.Ext(file))
}

func hookList() string {
	var names []string
	for _, h := range policy.Hooks() {
		names = append(names, string(h))
	}
	return strings.Join(names, ", ")
}

var packageClause = regexp.MustCompile(`^package[ \t]+([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)[ \t]*(?:#.*)?$`)

// packageOf returns the package of a Rego file, whose clause comes before everything but
// comments.
func packageOf(b []byte) (string, error) {
	line := 0
	for text := range strings.Lines(strings.TrimPrefix(string(b), "\ufeff")) {
		line++
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if m := packageClause.FindStringSubmatch(text); m != nil {
			return m[1], nil
		}
		return "", fmt.Errorf("line %d: must be the package clause: package dovetail.<hook>.<name>", line)
	}
	return "", errors.New("there is no package clause")
}

// policyPackage splits dovetail.<hook>.<name>.
func policyPackage(pkg string) (v1alpha1.Hook, string, bool) {
	parts := strings.Split(pkg, ".")
	if len(parts) != 3 || parts[0] != "dovetail" || !slices.Contains(policy.Hooks(), policy.Hook(parts[1])) {
		return "", "", false
	}
	return v1alpha1.Hook(parts[1]), parts[2], true
}

var reference = regexp.MustCompile(`\bdata((?:\.[A-Za-z_][A-Za-z0-9_]*)+)`)

// references are the paths below data that a Rego file may refer to; comments and strings
// count too, which does no harm.
func references(b []byte) []string {
	var out []string
	for _, m := range reference.FindAllSubmatch(b, -1) {
		out = append(out, string(m[1][1:]))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refersTo says whether one of refs is in pkg, or above it.
func refersTo(refs []string, pkg string) bool {
	return slices.ContainsFunc(refs, func(ref string) bool {
		return ref == pkg || strings.HasPrefix(ref, pkg+".") || strings.HasPrefix(pkg, ref+".")
	})
}

// hooksOf returns the hooks that a Wasm module exports, in the order of [policy.Hooks]. It
// runs nothing, and leaves everything but the exports unchecked.
func hooksOf(b []byte) ([]v1alpha1.Hook, error) {
	names, err := exportsOf(b)
	if err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	var out []v1alpha1.Hook
	for _, h := range policy.Hooks() {
		if slices.Contains(names, "dv_"+string(h)) {
			out = append(out, v1alpha1.Hook(h))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("module: exports no dv_<hook> with a hook of %s", hookList())
	}
	return out, nil
}

var errTruncated = errors.New("is cut off")

// exportsOf lists the names that a Wasm module exports.
func exportsOf(b []byte) ([]string, error) {
	if !bytes.HasPrefix(b, []byte("\x00asm\x01\x00\x00\x00")) {
		return nil, errors.New("does not start as Wasm of version 1")
	}
	b = b[8:]
	for len(b) > 0 {
		id := b[0]
		size, rest, err := leb(b[1:])
		if err != nil {
			return nil, err
		}
		if uint64(size) > uint64(len(rest)) {
			return nil, errTruncated
		}
		body := rest[:size]
		b = rest[size:]
		if id != 7 {
			continue
		}
		n, body, err := leb(body)
		if err != nil {
			return nil, err
		}
		var names []string
		for range n {
			length, rest, err := leb(body)
			if err != nil || uint64(length)+1 > uint64(len(rest)) {
				return nil, errTruncated
			}
			names = append(names, string(rest[:length]))
			if _, body, err = leb(rest[length+1:]); err != nil {
				return nil, err
			}
		}
		return names, nil
	}
	return nil, nil
}

// leb reads an unsigned number of 32 bits.
func leb(b []byte) (uint32, []byte, error) {
	var v uint64
	for i := 0; i < 5 && i < len(b); i++ {
		v |= uint64(b[i]&0x7f) << (7 * i)
		if b[i]&0x80 == 0 {
			return uint32(v), b[i+1:], nil
		}
	}
	return 0, nil, errTruncated
}

// folderState is what the folder was when it was looked at last. Only watchFolder uses it,
// but for err.
type folderState struct {
	source   *source.Files
	revision string
	known    map[string]known // by policy name
	err      error            // used by who holds Set.mu
}

// known is a policy of the folder as it was applied last.
type known struct{ file, digest string }

// FolderError is what is wrong with files of the folder that make no policy at all, or with
// the folder. What is wrong with a policy is in its status.
func (s *Set) FolderError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.folder.err
}

// watchFolder keeps the policies of the folder in force.
func (s *Set) watchFolder(ctx context.Context) {
	s.folder.source = &source.Files{Path: s.opts.Folder}
	ticker := time.NewTicker(s.opts.FilePoll)
	defer ticker.Stop()
	for {
		s.lookAtFolder(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (s *Set) lookAtFolder(ctx context.Context) {
	st := &s.folder
	a, err := st.source.Fetch(ctx)
	note := func(err error) {
		s.mu.Lock()
		st.err = err
		s.mu.Unlock()
	}
	if err != nil {
		note(err)
		// Looked at in full once it can be read again.
		st.revision = ""
		return
	}
	if a.Revision == st.revision {
		return
	}
	found, err := find(a)
	note(err)
	bad := map[string]bool{}
	for _, fe := range fileErrors(err) {
		bad[fe.File] = true
	}
	now := map[string]known{}
	artifacts := map[string]source.Artifact{}
	var policies []*v1alpha1.NodePolicy
	for _, f := range found {
		spec, err := json.Marshal(f.Policy.Spec)
		if err != nil {
			note(err)
			continue
		}
		name := f.Policy.Name
		s.mu.Lock()
		// NodePolicies of the cluster keep their names.
		if m := s.members[name]; m != nil && !m.fromDir {
			name = "folder/" + name
		}
		s.mu.Unlock()
		f.Policy.Name = name
		now[name] = known{f.File, digest(f.Artifact.Revision, string(spec))}
		if now[name] != st.known[name] {
			policies = append(policies, f.Policy)
			artifacts[name] = f.Artifact
		}
	}
	var gone []string
	for name, k := range st.known {
		if _, ok := now[name]; ok {
			continue
		}
		if bad[k.file] {
			now[name] = k // the last good revision stays
		} else {
			gone = append(gone, name)
		}
	}
	if len(policies) > 0 {
		_ = s.apply(ctx, policies, true, artifacts) // the status tells
	}
	if ctx.Err() != nil {
		return
	}
	if len(gone) > 0 {
		s.remove(gone, true)
	}
	st.revision, st.known = a.Revision, now
}

// fileErrors returns the errors of files that err joins.
func fileErrors(err error) []*FileError {
	var out []*FileError
	switch e := err.(type) {
	case *FileError:
		out = append(out, e)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			out = append(out, fileErrors(err)...)
		}
	}
	return out
}
