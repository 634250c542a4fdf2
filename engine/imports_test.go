package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/dovetail-sh/dovetail"

// area is a part of the tree with rules of its own. A package belongs to the area with
// the longest path that contains it.
type area struct {
	path string
	// own are the other areas that it may import, and libraries the modules or packages
	// of others; both with what is below them. Packages within an area may import each
	// other, unless they are listed in order.
	own, libraries []string
	// ordered are the packages of the area from the innermost outwards: each may import
	// only those before it.
	ordered []string
	// apart says that packages of the area do not import each other, but for what is in
	// the area's own folder internal.
	apart bool
	// pure says that packages depend on their arguments only: no clock, no files, no
	// network, no shared random numbers.
	pure bool
	// never are packages of others that may not even be reached through libraries.
	never []string
	// anything says that every import is allowed, but for never.
	anything bool
}

// clients talk to something outside the process, or run foreign code.
var clients = []string{
	"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/aws", "github.com/open-policy-agent",
	"github.com/tetratelabs/wazero", "github.com/prometheus", "oras.land",
}

// kubernetes are the kinds of Kubernetes, as data.
var kubernetes = []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/component-helpers"}

// judges are what Dovetail is compared with. They are imported by modules under test only.
var judges = []string{"sigs.k8s.io/karpenter", "k8s.io/kubernetes"}

func areas() []area {
	kinds, core := "engine/api", "engine/core"
	return []area{
		{path: "engine"},
		{path: kinds, libraries: []string{"k8s.io/api", "k8s.io/apimachinery"}, pure: true, never: clients},
		{
			path: core, own: []string{kinds}, libraries: append([]string{"github.com/robfig/cron/v3"}, kubernetes...), pure: true, never: clients,
			ordered: []string{"resources", "requirements", "catalog", "snapshot", "candidate", "schedule", "consolidate"},
		},
		{path: "engine/policy", own: []string{kinds, core, "policies"}, libraries: append([]string{"github.com/robfig/cron/v3"}, kubernetes...), never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/aws"}},
		{path: "engine/policy/rego", own: []string{kinds, core, "engine/policy", "policies"}, libraries: append([]string{"github.com/open-policy-agent/opa"}, kubernetes...), never: []string{"github.com/tetratelabs/wazero"}},
		{path: "engine/policy/wasm", own: []string{kinds, core, "engine/policy", "policies"}, libraries: append([]string{"github.com/tetratelabs/wazero"}, kubernetes...), never: []string{"github.com/open-policy-agent/opa"}},
		{path: "engine/policy/source", own: []string{kinds, core, "engine/policy"}, libraries: kubernetes, never: clients},
		{path: "engine/policy/source/remote", own: []string{kinds, "engine/policy/source"}, libraries: append([]string{"oras.land/oras-go/v2", "github.com/opencontainers", "github.com/open-policy-agent/opa"}, kubernetes...), never: []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/tetratelabs/wazero"}},
		{path: "engine/policy/set", own: []string{kinds, core, "engine/policy", "engine/policy/source"}, libraries: append([]string{"sigs.k8s.io/yaml"}, kubernetes...), never: clients},
		{path: "engine/cloud", own: []string{kinds, core}, libraries: kubernetes, never: clients},
		{path: "engine/cloud/sim", own: []string{kinds, core, "engine/cloud"}, libraries: append([]string{"sigs.k8s.io/yaml"}, kubernetes...), never: clients},
		{path: "engine/cloud/sim/kube", own: []string{kinds, core, "engine/cloud", "engine/cloud/sim"}, libraries: append([]string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"}, kubernetes...), never: []string{"github.com/aws"}},
		{path: "engine/cloud/aws", own: []string{kinds, core, "engine/cloud"}, libraries: append([]string{"github.com/aws", "k8s.io/client-go", "sigs.k8s.io/controller-runtime"}, kubernetes...)},
		{path: "engine/state", own: []string{kinds, core, "engine/cloud"}, libraries: append([]string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"}, kubernetes...), never: []string{"github.com/aws", "github.com/open-policy-agent", "github.com/tetratelabs/wazero"}},
		{path: "engine/controller", apart: true, own: []string{kinds, core, "engine/state", "engine/policy", "engine/policy/set", "engine/policy/source", "engine/cloud", "engine/observe"}, libraries: append([]string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/robfig/cron/v3"}, kubernetes...), never: []string{"github.com/aws", "github.com/open-policy-agent", "github.com/tetratelabs/wazero"}},
		{path: "engine/webhook", own: []string{kinds, core, "engine/policy", "engine/policy/source", "engine/observe"}, libraries: append([]string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/open-policy-agent/cert-controller"}, kubernetes...), never: []string{"github.com/aws", "github.com/open-policy-agent/opa", "github.com/tetratelabs/wazero"}},
		{
			path: "engine/simulate", own: []string{kinds, core, "engine/policy", "engine/cloud", "engine/cloud/sim", "engine/observe"},
			libraries: append([]string{"sigs.k8s.io/yaml", "go.yaml.in/yaml", "github.com/robfig/cron/v3"}, kubernetes...),
			never:     []string{"sigs.k8s.io/controller-runtime", "k8s.io/client-go", "github.com/aws", "github.com/open-policy-agent", "github.com/tetratelabs/wazero"},
		},
		{path: "engine/observe", own: []string{kinds, core}, libraries: append([]string{"github.com/prometheus"}, kubernetes...), never: []string{"sigs.k8s.io/controller-runtime"}},
		{path: "policies", never: clients},
		{path: "wasm-sdk", never: clients},
		{path: "examples", never: clients},
		{path: "cmd", anything: true, never: judges},
		{path: "test", anything: true, never: judges},
	}
}

// listed is what `go list -json` tells about a package.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	Imports         []string
	Deps            []string
	GoFiles         []string
}

// TestImports keeps imports pointing inwards, directly and through libraries.
func TestImports(t *testing.T) {
	packages := list(t)
	found := map[string]bool{}
	for _, pkg := range packages {
		path, ok := strings.CutPrefix(pkg.ImportPath, module+"/")
		if !ok {
			t.Errorf("package %s is outside of the folders of the layout", pkg.ImportPath)
			continue
		}
		a, ok := areaOf(path)
		if !ok {
			t.Errorf("package %s belongs to no area: put it where the layout has a place for it", path)
			continue
		}
		found[a.path] = true
		for _, fault := range faults(a, path, pkg) {
			t.Errorf("%s %s", path, fault)
		}
		if a.pure {
			for _, fault := range impurities(t, pkg) {
				t.Errorf("%s: %s: a plan depends on its arguments only", path, fault)
			}
		}
	}
	for _, path := range []string{"engine", "engine/api", "engine/core"} {
		if !found[path] {
			t.Errorf("no package of %s was checked", path)
		}
	}
}

// TestImportRules checks that the rules refuse what they are there to refuse.
func TestImportRules(t *testing.T) {
	tests := map[string]struct {
		path    string
		imports string
		deps    []string
		want    string
	}{
		"core may use kinds":                         {path: "engine/core/snapshot", imports: module + "/engine/api/karpenter/v1"},
		"core may use what is further in":            {path: "engine/core/snapshot", imports: module + "/engine/core/catalog"},
		"core may not use what is further out":       {path: "engine/core/catalog", imports: module + "/engine/core/snapshot", want: "imports engine/core/snapshot, which is further out"},
		"a part of a core package counts as it":      {path: "engine/core/schedule/internal/pack", imports: module + "/engine/core/schedule/internal/relax"},
		"core may not use policies":                  {path: "engine/core/schedule", imports: module + "/engine/policy", want: "imports engine/policy"},
		"core may not use other libraries":           {path: "engine/core/schedule", imports: "github.com/spf13/cobra", want: "imports github.com/spf13/cobra"},
		"core may not reach a client":                {path: "engine/core/schedule", deps: []string{"k8s.io/client-go/rest"}, want: "reaches k8s.io/client-go/rest"},
		"kinds may not use core":                     {path: "engine/api/karpenter/v1", imports: module + "/engine/core/resources", want: "imports engine/core/resources"},
		"rego may not use wasm":                      {path: "engine/policy/rego", imports: module + "/engine/policy/wasm", want: "imports engine/policy/wasm"},
		"a set of policies may not name a runtime":   {path: "engine/policy/set", imports: module + "/engine/policy/rego", want: "imports engine/policy/rego"},
		"a set of policies may not reach a registry": {path: "engine/policy/set", deps: []string{"oras.land/oras-go/v2"}, want: "reaches oras.land/oras-go/v2"},
		"a controller may not use another":           {path: "engine/controller/disrupt", imports: module + "/engine/controller/provision", want: "imports engine/controller/provision"},
		"controllers may share what is internal":     {path: "engine/controller/disrupt", imports: module + "/engine/controller/internal/fleet"},
		"a controller may not name a cloud":          {path: "engine/controller/disrupt", imports: module + "/engine/cloud/aws", want: "imports engine/cloud/aws"},
		"simulate may not use state":                 {path: "engine/simulate", imports: module + "/engine/state", want: "imports engine/state"},
		"the simulated cloud may not reach a client": {path: "engine/cloud/sim", deps: []string{"k8s.io/client-go/rest"}, want: "reaches k8s.io/client-go/rest"},
		"its adapter may use one":                    {path: "engine/cloud/sim/kube", imports: "sigs.k8s.io/controller-runtime/pkg/client"},
		"the command may name a cloud":               {path: "cmd/dovetail", imports: module + "/engine/cloud/aws"},
		"the command may not reach a judge":          {path: "cmd/dovetail", deps: []string{"sigs.k8s.io/karpenter/pkg/apis/v1"}, want: "reaches sigs.k8s.io/karpenter/pkg/apis/v1"},
		"a library that only starts alike is no ban": {path: "cmd/dovetail", deps: []string{"k8s.io/kubernetes-tools/a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, ok := areaOf(tt.path)
			if !ok {
				t.Fatalf("%s has no area", tt.path)
			}
			pkg := listed{Deps: tt.deps}
			if tt.imports != "" {
				pkg.Imports = []string{tt.imports}
			}
			got := strings.Join(faults(a, tt.path, pkg), "; ")
			if (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("faults %q, want %q", got, tt.want)
			}
		})
	}
}

// list returns the packages of the module. Packages that do not compile are listed too.
func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Standard,Imports,Deps,GoFiles", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var pkg listed
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, pkg)
	}
}

func areaOf(path string) (area, bool) {
	var best area
	ok := false
	for _, a := range areas() {
		if below(path, a.path) && len(a.path) >= len(best.path) && (a.path != "engine" || path == "engine") {
			best, ok = a, true
		}
	}
	return best, ok
}

// below reports whether path is root or in it.
func below(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// faults are the imports of a package that its area does not allow.
func faults(a area, path string, pkg listed) []string {
	var out []string
	for _, imported := range pkg.Imports {
		if a.anything || standard(imported) || imported == "C" {
			continue
		}
		inner, own := strings.CutPrefix(imported, module+"/")
		switch {
		case !own:
			if !slices.ContainsFunc(a.libraries, func(root string) bool { return below(imported, root) }) {
				out = append(out, "imports "+imported+", which is not among the libraries of "+a.path)
			}
		default:
			if fault := ownFault(a, path, inner); fault != "" {
				out = append(out, fault)
			}
		}
	}
	for _, reached := range pkg.Deps {
		if slices.ContainsFunc(a.never, func(root string) bool { return below(reached, root) }) {
			out = append(out, "reaches "+reached+": move the caller to an adapter package")
		}
	}
	return out
}

func ownFault(a area, path, imported string) string {
	to, ok := areaOf(imported)
	if !ok || to.path != a.path {
		if ok && slices.Contains(a.own, to.path) {
			return ""
		}
		return fmt.Sprintf("imports %s, and %s may not", imported, a.path)
	}
	if a.apart && part(a, path) != part(a, imported) && part(a, imported) != "internal" {
		return fmt.Sprintf("imports %s: packages of %s stand apart", imported, a.path)
	}
	if a.ordered != nil && part(a, path) != part(a, imported) {
		from, to := slices.Index(a.ordered, part(a, path)), slices.Index(a.ordered, part(a, imported))
		if from < 0 || to < 0 || to > from {
			return fmt.Sprintf("imports %s, which is further out", imported)
		}
	}
	return ""
}

// part is the first folder of a package below its area.
func part(a area, path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, a.path), "/"), "/")
	return first
}

// standard reports whether a package is of the standard library.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// impurities are what makes a package depend on more than its arguments.
func impurities(t *testing.T, pkg listed) []string {
	t.Helper()
	var out []string
	for _, imported := range pkg.Imports {
		switch first, _, _ := strings.Cut(imported, "/"); {
		case first == "os", first == "net" && imported != "net/netip", first == "syscall", first == "log", imported == "math/rand":
			out = append(out, "imports "+imported)
		}
	}
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := selector.X.(*ast.Ident)
			if !ok {
				return true
			}
			switch name := from.Name + "." + selector.Sel.Name; name {
			case "time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.NewTimer", "time.NewTicker", "time.Tick",
				"rand.Int", "rand.IntN", "rand.Int64", "rand.Int64N", "rand.Uint64", "rand.Float64", "rand.Perm", "rand.Shuffle", "rand.N":
				out = append(out, "uses "+name)
			}
			return true
		})
	}
	return out
}
