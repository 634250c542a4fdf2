// Command genschema writes the JSON Schemas of the policy inputs, made from the Go types
// and their comments.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/dovetail-sh/dovetail/engine/policy"
)

func main() {
	src := flag.String("src", ".", "folder of the Go source the comments are taken from")
	out := flag.String("out", "schemas", "folder to write to: <hook>/input.json")
	flag.Parse()
	if err := run(*src, *out); err != nil {
		fmt.Fprintln(os.Stderr, "genschema:", err)
		os.Exit(1)
	}
}

func run(src, out string) error {
	docs, err := comments(src)
	if err != nil {
		return err
	}
	for hook, t := range policy.InputTypes() {
		s := schema(t, docs)
		s["$schema"] = "http://json-schema.org/draft-07/schema#"
		s["title"] = fmt.Sprintf("Input of hook %s, %s", hook, policy.APIVersion)
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(s); err != nil {
			return err
		}
		dir := filepath.Join(out, string(hook))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "input.json"), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// comments returns the comments of types ("Type") and fields ("Type.Field") in src.
func comments(src string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(src, "*.go"))
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	fset := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			st, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range st.Fields.List {
				for _, id := range field.Names {
					docs[spec.Name.Name+"."+id.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
			return true
		})
	}
	return docs, nil
}

func schema(t reflect.Type, docs map[string]string) map[string]any {
	if t == reflect.TypeFor[policy.Offerings]() {
		return map[string]any{"type": "array", "items": schema(reflect.TypeFor[policy.OfferingRow](), docs)}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), docs)
	case reflect.Struct:
		props := map[string]any{}
		for _, f := range policy.Fields(t) {
			sf := t.FieldByIndex(f.Index)
			s := schema(sf.Type, docs)
			if doc := docs[owner(t, f.Index).Name()+"."+sf.Name]; doc != "" {
				s["description"] = doc
			}
			props[f.Name] = s
		}
		return map[string]any{"type": "object", "properties": props}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schema(t.Elem(), docs)}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schema(t.Elem(), docs)}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Interface:
		return map[string]any{}
	}
	panic("no schema for " + t.String())
}

// owner is the struct that declares the field at index of t.
func owner(t reflect.Type, index []int) reflect.Type {
	for _, i := range index[:len(index)-1] {
		t = t.Field(i).Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t
}
