package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// value is a key of values.yaml. One with a comment that begins with "# -- " is a value
// that users set as a whole; others are sections, in which every key is known.
type value struct {
	parent   *value
	key      string
	doc      string
	literal  any
	extra    map[string]any
	children []*value
}

func (v *value) path() string {
	if v.parent == nil || v.parent.parent == nil {
		return v.key
	}
	return v.parent.path() + "." + v.key
}

func parseValues(text []byte) (*value, error) {
	var doc yamlv3.Node
	if err := yamlv3.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	root := &value{}
	return root, root.fill(doc.Content[0], strings.Split(string(text), "\n"))
}

func (v *value) fill(node *yamlv3.Node, lines []string) error {
	if err := node.Decode(&v.literal); err != nil {
		return err
	}
	if node.Kind != yamlv3.MappingNode || v.doc != "" {
		return nil
	}
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		child := &value{parent: v, key: key.Value}
		at := key.Line - 1
		if _, text, ok := strings.Cut(lines[at], "# @schema "); ok {
			if err := json.Unmarshal([]byte(text), &child.extra); err != nil {
				return fmt.Errorf("values.yaml: %s: @schema: %w", child.path(), err)
			}
		}
		if text, ok := strings.CutPrefix(strings.TrimSpace(lines[max(at-1, 0)]), "# -- "); ok {
			child.doc = text
		}
		if err := child.fill(node.Content[i+1], lines); err != nil {
			return err
		}
		v.children = append(v.children, child)
	}
	return nil
}

func (v *value) schema() map[string]any {
	out := map[string]any{}
	switch v.literal.(type) {
	case bool:
		out["type"] = "boolean"
	case int, int64:
		out["type"] = "integer"
	case float64:
		out["type"] = "number"
	case string:
		out["type"] = "string"
	case []any:
		out["type"] = "array"
	case map[string]any:
		out["type"] = "object"
	}
	if v.doc != "" {
		out["description"] = v.doc
	}
	if len(v.children) > 0 {
		properties := map[string]any{}
		for _, child := range v.children {
			properties[child.key] = child.schema()
		}
		out["properties"], out["additionalProperties"] = properties, false
	}
	// A reference and an enumeration say it all.
	if v.extra["$ref"] != nil || v.extra["enum"] != nil {
		delete(out, "type")
	}
	maps.Copy(out, v.extra)
	return out
}

// object is a closed JSON Schema.
func object(properties map[string]any) map[string]any {
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

func enum(values ...string) map[string]any { return map[string]any{"enum": values} }

func schemaOf(root *value, shipped []*policy) ([]byte, error) {
	schema := root.schema()
	mode := enum("Enforce", "Shadow", "Disabled")
	boolean, text, anything := map[string]any{"type": "boolean"}, map[string]any{"type": "string", "minLength": 1}, map[string]any{"type": "object"}
	// What any policy may have.
	common := map[string]any{
		"mode": mode, "data": anything, "nodePoolSelector": anything,
		"reasons":       map[string]any{"type": "array", "items": enum("Empty", "Underutilized", "Drifted", "Expired", "Repair", "Interruption", "Requested", "Unblock")},
		"failurePolicy": enum("Ignore", "Deny"), "timeout": map[string]any{"$ref": "#/$defs/duration"}, "memoryLimit": text,
		"order": map[string]any{"type": "integer", "minimum": -10000, "maximum": 10000},
	}
	user := maps.Clone(common)
	maps.Copy(user, map[string]any{
		"hook": enum(hooks...), "runtime": enum("rego", "wasm"), "rego": text, "source": anything, "parameters": anything,
	})
	userPolicy := object(user)
	userPolicy["required"] = []string{"hook"}

	byHook := map[string]any{}
	for _, hook := range hooks {
		list := map[string]any{}
		for _, p := range shipped {
			if p.hook != hook {
				continue
			}
			parameters := map[string]any{}
			for name, s := range p.Custom.Parameters {
				parameters[name] = s
			}
			fields := maps.Clone(common)
			maps.Copy(fields, map[string]any{"enabled": boolean, "parameters": object(parameters)})
			list[p.name] = object(fields)
			list[p.name].(map[string]any)["description"] = strings.TrimSpace(p.Description)
		}
		byHook[hook] = object(list)
	}
	properties := schema["properties"].(map[string]any)
	properties["policies"] = object(byHook)
	// Helm hands it to every chart.
	properties["global"] = anything
	schema["$schema"] = "http://json-schema.org/draft-07/schema#"
	schema["title"] = "Values of the chart dovetail"
	schema["$defs"] = map[string]any{
		"duration":   map[string]any{"type": "string", "pattern": `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`},
		"userPolicy": userPolicy,
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(schema)
	return out.Bytes(), err
}
