// Command gen makes the files of charts/dovetail that follow from others: the copies of
// the CustomResourceDefinitions and of the policies, the policies in values.yaml,
// values.schema.json, and the tables of README.md. Its argument is the folder of the chart.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/dovetail-sh/dovetail/engine/api/crds"
	"github.com/dovetail-sh/dovetail/policies"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen CHART")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func generate(chart string) error {
	shipped, err := readPolicies()
	if err != nil {
		return err
	}
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	values, err = withPolicies(values, shipped)
	if err != nil {
		return err
	}
	root, err := parseValues(values)
	if err != nil {
		return err
	}
	schema, err := schemaOf(root, shipped)
	if err != nil {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(chart, "README.md"))
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"values": valuesTable(root), "policies": policiesTable(shipped)} {
		if readme, err = between(readme, name, text); err != nil {
			return fmt.Errorf("README.md: %w", err)
		}
	}
	return errors.Join(
		os.WriteFile(filepath.Join(chart, "values.yaml"), values, 0o644),
		os.WriteFile(filepath.Join(chart, "values.schema.json"), schema, 0o644),
		os.WriteFile(filepath.Join(chart, "README.md"), readme, 0o644),
		copyPolicies(filepath.Join(chart, "policies"), shipped),
		copyCRDs(chart),
	)
}

// policy is a policy that ships with Dovetail, with what its METADATA says.
type policy struct {
	hook, name  string
	text        string
	Title       string `json:"title"`
	Description string `json:"description"`
	Custom      struct {
		Default    bool                      `json:"default"`
		Parameters map[string]map[string]any `json:"parameters"`
	} `json:"custom"`
}

// mode is the mode in which the policy is asked unless a user says otherwise: nothing that
// holds up launches or disruptions takes effect without having been watched.
func (p *policy) mode() string {
	if p.Custom.Default && (p.hook == "score" || p.hook == "admit") {
		return "Enforce"
	}
	return "Shadow"
}

var hooks = []string{"score", "disrupt", "launch", "admit"}

func readPolicies() ([]*policy, error) {
	var out []*policy
	for _, hook := range hooks {
		files, err := fs.Glob(policies.Files, hook+"/*.rego")
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.rego") {
				continue
			}
			text, err := fs.ReadFile(policies.Files, file)
			if err != nil {
				return nil, err
			}
			p := &policy{hook: hook, name: strings.TrimSuffix(path.Base(file), ".rego"), text: string(text)}
			head, _, _ := strings.Cut(p.text, "\npackage ")
			var meta strings.Builder
			for line := range strings.SplitSeq(strings.TrimPrefix(head, "# METADATA\n"), "\n") {
				meta.WriteString(strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ") + "\n")
			}
			if err := yaml.Unmarshal([]byte(meta.String()), p); err != nil {
				return nil, fmt.Errorf("METADATA of %s: %w", file, err)
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// policiesBegin is where the made part of values.yaml begins.
const policiesBegin = "\npolicies:\n"

func withPolicies(values []byte, shipped []*policy) ([]byte, error) {
	head, _, _ := strings.Cut(string(values), policiesBegin)
	var b strings.Builder
	b.WriteString(strings.TrimRight(head, "\n") + "\n" + policiesBegin[1:])
	hook := ""
	for _, p := range shipped {
		if p.hook != hook {
			hook = p.hook
			fmt.Fprintf(&b, "  %s:\n", hook)
		}
		fmt.Fprintf(&b, "    # %s\n    %s:\n      enabled: %t\n      mode: %s\n      parameters: {}\n",
			p.Title, p.name, p.Custom.Default, p.mode())
	}
	return []byte(b.String()), nil
}

// copyPolicies replaces what is in dir, so that a policy that is gone goes there too.
func copyPolicies(dir string, shipped []*policy) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, p := range shipped {
		file := filepath.Join(dir, p.hook, p.name+".rego")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(p.text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// copyCRDs copies the definitions: those of dovetail.sh, which the chart's own objects
// need, to where Helm looks before anything else, and Karpenter's to where templates find
// them. Their revision is an annotation, by which the chart knows whether a cluster has the
// same ones.
func copyCRDs(chart string) error {
	dirs := map[string]string{"dovetail.sh": filepath.Join(chart, "crds"), "karpenter.sh": filepath.Join(chart, "karpenter-crds")}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	files, err := fs.Glob(crds.FS(), "*.yaml")
	if err != nil {
		return err
	}
	type wanted struct {
		Version  string `json:"version"`
		Revision string `json:"revision"`
	}
	all := map[string]wanted{}
	for _, file := range files {
		text, err := fs.ReadFile(crds.FS(), file)
		if err != nil {
			return err
		}
		var crd struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				Group    string `json:"group"`
				Versions []struct {
					Name    string `json:"name"`
					Storage bool   `json:"storage"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		digest := sha256.Sum256(text)
		want := wanted{Revision: hex.EncodeToString(digest[:6])}
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				want.Version = v.Name
			}
		}
		const where = "\n  annotations:\n"
		if bytes.Count(text, []byte(where)) != 1 || want.Version == "" || dirs[crd.Spec.Group] == "" {
			return fmt.Errorf("%s: no annotations, no version that is stored, or another group", file)
		}
		text = bytes.Replace(text, []byte(where), []byte(where+"    dovetail.sh/revision: \""+want.Revision+"\"\n"), 1)
		all[crd.Metadata.Name] = want
		if err := os.WriteFile(filepath.Join(dirs[crd.Spec.Group], file), text, 0o644); err != nil {
			return err
		}
	}
	out, err := yaml.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(chart, "crd-revisions.yaml"), append([]byte("# The definitions of this chart, see templates/checks.yaml. Made by `make generate`.\n"), out...), 0o644)
}

// between replaces what is between <!-- name --> and <!-- /name -->.
func between(text []byte, name, new string) ([]byte, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return nil, fmt.Errorf("no %s... %s", begin, end)
	}
	return []byte(head + begin + new + end + tail), nil
}

func valuesTable(root *value) string {
	var b strings.Builder
	b.WriteString("| value | default | meaning |\n|--|--|--|\n")
	var walk func(v *value)
	walk = func(v *value) {
		if v.key == "policies" {
			return // they have a table of their own
		}
		if v.doc != "" {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.path(), cell(v.literal), v.doc)
			return
		}
		for _, child := range v.children {
			walk(child)
		}
	}
	walk(root)
	return b.String()
}

// cell keeps what is long out of a table.
func cell(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it was decoded from YAML
	}
	if len(text) > 60 {
		return "see values.yaml"
	}
	return strings.ReplaceAll(string(text), "|", "\\|")
}

func policiesTable(shipped []*policy) string {
	var b strings.Builder
	b.WriteString("| `policies.` | on | mode | what it does | parameters and defaults |\n|--|--|--|--|--|\n")
	for _, p := range shipped {
		var params []string
		for name, schema := range p.Custom.Parameters {
			text, err := json.Marshal(schema["default"])
			if err != nil {
				panic(err) // it was decoded from YAML
			}
			params = append(params, fmt.Sprintf("`%s: %s`", name, text))
		}
		slices.Sort(params)
		on := "no"
		if p.Custom.Default {
			on = "yes"
		}
		fmt.Fprintf(&b, "| `%s.%s` | %s | %s | %s | %s |\n", p.hook, p.name, on, p.mode(), p.Title, strings.Join(params, ", "))
	}
	return b.String()
}
