package observe

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestMetrics_used finds metrics that are registered and that nothing ever sets: a dashboard
// would show nothing, and nobody would know why.
func TestMetrics_used(t *testing.T) {
	used := map[string]bool{}
	for _, root := range []string{"../../cmd", ".."} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "observe/") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil //nolint:nilerr // the compiler says so better
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					used[s.Sel.Name] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[Metrics](), reflect.TypeFor[Objects](), reflect.TypeFor[Conditions]()} {
		for i := range kind.NumField() {
			if f := kind.Field(i); f.IsExported() && !used[f.Name] {
				t.Errorf("nothing sets %s.%s", kind.Name(), f.Name)
			}
		}
	}
}
