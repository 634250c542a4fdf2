package set_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dovetail-sh/dovetail/engine/policy"
	"github.com/dovetail-sh/dovetail/engine/policy/set"
	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
)

// module is a Wasm policy of the hooks given, admit or launch. It has no opinion on the one
// object of an admission or the three claims of a launch.
func module(t testing.TB, hooks ...frame.Hook) string {
	t.Helper()
	vec := func(items ...string) string { return string(rune(len(items))) + strings.Join(items, "") }
	leb := func(n int) string {
		var out []byte
		for n >= 64 {
			out = append(out, byte(n&0x7f|0x80))
			n >>= 7
		}
		return string(append(out, byte(n)))
	}
	text := func(s string) string { return string(rune(len(s))) + s }
	section := func(id byte, body string) string {
		n := leb(len(body))
		if len(body) >= 64 { // unsigned
			n = string([]byte{byte(len(body)&0x7f | 0x80), byte(len(body) >> 7)})
		}
		return string([]byte{id}) + n + body
	}
	body := func(code string) string {
		code = "\x00" + code + "\x0b"
		return string(rune(len(code))) + code
	}
	functions := []string{"\x00", "\x01"}
	exports := []string{text("memory") + "\x02\x00", text("dv_abi_1") + "\x00\x00", text("dv_alloc") + "\x00\x01"}
	codes := []string{body("\x41\x00"), body("\x41" + leb(1<<16))}
	var data []string
	for i, h := range hooks {
		b, err := (&frame.Encoder{}).Encode(&frame.Table{Hook: h, Minor: frame.Minor, Rows: map[frame.Hook]int{frame.Admit: 1, frame.Launch: 3}[h], Strings: &frame.Strings{}})
		if err != nil {
			t.Fatal(err)
		}
		at := 1024 * (i + 1)
		functions = append(functions, "\x02")
		exports = append(exports, text(h.Export())+"\x00"+string([]byte{byte(2 + i)}))
		codes = append(codes, body("\x42"+leb64(int64(at)<<32|int64(len(b)))))
		data = append(data, "\x00\x41"+leb(at)+"\x0b"+leb(len(b))+string(b))
	}
	out := "\x00asm\x01\x00\x00\x00"
	out += section(1, vec("\x60\x00\x01\x7f", "\x60\x01\x7f\x01\x7f", "\x60\x02\x7f\x7f\x01\x7e"))
	out += section(3, vec(functions...))
	out += section(5, vec("\x00\x04"))
	out += section(7, vec(exports...))
	out += section(10, vec(codes...))
	return out + section(11, vec(data...))
}

func leb64(n int64) string {
	var out []byte
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return string(append(out, b))
		}
		out = append(out, b|0x80)
	}
}

const head = "apiVersion: dovetail.sh/v1alpha1\nkind: NodePolicy\n"

func TestFromFolder(t *testing.T) {
	rego := func(pkg string) string {
		return "# METADATA\n# title: a\npackage " + pkg + "\n\nwarn contains \"x\"\n"
	}
	tests := map[string]struct {
		files map[string]string
		// want has a line for each policy: name, hook, runtime, file, files of the artefact.
		want []string
		// wantErrs are parts of the errors, in their order.
		wantErrs []string
		check    func(t *testing.T, found []set.Found)
	}{
		"a package is a policy": {
			files: map[string]string{"score/a.rego": rego("dovetail.score.a"), "score/a_test.rego": "package x_test", "README.md": "read"},
			want:  []string{"a score rego score/a.rego: score/a.rego"},
		},
		"a package may have two files": {
			files: map[string]string{"a1.rego": rego("dovetail.admit.a"), "a2.rego": rego("dovetail.admit.a")},
			want:  []string{"a admit rego a1.rego: a1.rego a2.rego"},
		},
		"equal names of two hooks get the hook": {
			files: map[string]string{"x.rego": rego("dovetail.admit.a"), "y.rego": rego("dovetail.launch.a"), "z.rego": rego("dovetail.launch.b")},
			want:  []string{"admit.a admit rego x.rego: x.rego", "b launch rego z.rego: z.rego", "launch.a launch rego y.rego: y.rego"},
		},
		"libraries come with who refers to them, and with libraries": {
			files: map[string]string{
				"a.rego": rego("dovetail.admit.a") + "\nx := data.acme.prices.y\n", "b.rego": rego("dovetail.admit.b") + "import data.dovetail.lib\n",
				"prices.rego": "package acme.prices\n\ny := data.acme.base.z\n", "base.rego": "package acme.base\n", "other.rego": "package acme.other\n", "lib.rego": "package dovetail.lib.time\n",
			},
			want: []string{"a admit rego a.rego: a.rego base.rego prices.rego", "b admit rego b.rego: b.rego lib.rego"},
		},
		"documents come with Rego policies": {
			files: map[string]string{"a.rego": rego("dovetail.admit.a"), "data.json": `{"x": 1}`, "rates/data.yaml": "m7i: 3\n", "rates/other.json": "[", "values.yaml": "a: 1\n"},
			want:  []string{"a admit rego a.rego: a.rego data.json rates/data.yaml"},
		},
		"a manifest beside the file that has its name": {
			files: map[string]string{
				"a.rego": rego("dovetail.disrupt.a"),
				"a.yaml": head + "metadata: {name: calm}\nspec: {parameters: {x: 1}, order: 7, mode: Shadow, failurePolicy: Ignore, reasons: [Drifted], nodePoolSelector: {matchLabels: {team: a}}}\n",
			},
			want: []string{"calm disrupt rego a.yaml: a.rego"},
			check: func(t *testing.T, found []set.Found) {
				s := found[0].Policy.Spec
				if s.Order != 7 || s.Mode != "Shadow" || s.FailurePolicy != "Ignore" || string(s.Parameters.Raw) != `{"x":1}` || s.NodePoolSelector.MatchLabels["team"] != "a" || s.Reasons[0] != "Drifted" {
					t.Errorf("spec %+v", s)
				}
			},
		},
		"several manifests of one file": {
			files: map[string]string{
				"score/a.rego": rego("dovetail.admit.a"),
				"cluster.yaml": "---\n" + head + "metadata: {name: a-prod}\nspec: {source: {file: {path: score/a.rego}}, parameters: {x: 1}}\n---\n" + head + "metadata: {name: a-dev}\nspec: {source: {file: {path: ./score/a.rego}}}\n---\nkind: ConfigMap\n",
			},
			want: []string{"a-dev admit rego cluster.yaml: score/a.rego", "a-prod admit rego cluster.yaml: score/a.rego"},
		},
		"a manifest with the text in it": {
			files: map[string]string{"a.yaml": head + "metadata: {name: a}\nspec: {hook: admit, runtime: rego, source: {inline: \"package dovetail.admit.a\\nimport data.acme\\n\"}}\n", "acme.rego": "package acme\n"},
			want:  []string{"a admit rego a.yaml: acme.rego policy.rego"},
		},
		"a module is a policy of each hook it has": {
			files: map[string]string{"a.wasm": module(t, frame.Admit), "b.wasm": module(t, frame.Admit, frame.Launch), "data.json": "{}"},
			want:  []string{"a admit wasm a.wasm: a.wasm", "admit.b admit wasm b.wasm: b.wasm", "launch.b launch wasm b.wasm: b.wasm"},
		},
		"a manifest chooses the hook of a module": {
			files: map[string]string{"b.wasm": module(t, frame.Admit, frame.Launch), "b.yml": head + "metadata: {name: b}\nspec: {hook: launch}\n"},
			want:  []string{"b launch wasm b.yml: b.wasm"},
		},
		"one bad file leaves the others alone": {
			files: map[string]string{
				"good.rego": rego("dovetail.admit.good"), "empty.rego": "# nothing\n", "misspelt.rego": rego("dovetail.scores.a"), "late.rego": "import rego.v1\npackage dovetail.admit.b\n",
				"no.wasm": "\x00asm\x01\x00\x00\x00", "cut.wasm": module(t, frame.Admit)[:60], "old.wasm": "\x00asm\x02\x00\x00\x00",
				"sub/data.json": "[1]", "data.yaml": "dovetail: {}\n",
			},
			want: []string{"good admit rego good.rego: good.rego"},
			wantErrs: []string{
				"cut.wasm: module: is cut off", "data.yaml: the name dovetail is reserved", "empty.rego: there is no package clause", "late.rego: line 1: must be the package clause",
				"misspelt.rego: package dovetail.scores.a is not dovetail.<hook>.<name> with a hook of score, disrupt, launch, admit", "no.wasm: module: exports no dv_<hook>",
				"old.wasm: module: does not start as Wasm of version 1", "sub/data.json: sub/data.json:1: must be an object",
			},
		},
		"documents that are at odds": {
			files:    map[string]string{"a.rego": rego("dovetail.admit.a"), "data.json": `{"x": 1}`, "data.yaml": "x: 2\n", "x/data.json": "{}"},
			want:     []string{"a admit rego a.rego: a.rego data.json"},
			wantErrs: []string{`data.yaml: data.yaml:1: document "x" is in another file too`, `x/data.json: x/data.json:1: "x" is a document and a folder`},
		},
		"a policy is as its manifest says or not at all": {
			files: map[string]string{
				"a.rego": rego("dovetail.admit.a"), "a.yaml": head + "metadata: {name: a}\nspec: {ordre: 1}\n",
				"b.rego": rego("dovetail.admit.b"), "b.yaml": head + "metadata: {name: b}\nspec: {hook: score}\n",
				"c.rego": rego("dovetail.admit.c"), "c.yaml": "kind: NodePolicy\nspec: {",
				"d.rego": rego("dovetail.admit.d"), "d.yaml": "apiVersion: dovetail.sh/v1\nkind: NodePolicy\nmetadata: {name: d}\nspec: {}\n",
				"e.yaml": head + "metadata: {name: e}\nspec: {}\n",
				"f.yaml": head + "metadata: {name: f}\nspec: {source: {file: {path: ../a.rego}}}\n",
				"g.yaml": head + "metadata: {name: g}\nspec: {hook: score, runtime: wasm, source: {oci: {ref: x}}}\n",
				"h.rego": rego("dovetail.admit.h"), "h.yaml": head + "spec: {}\n",
				"i.rego": rego("dovetail.admit.i"), "i.yaml": head + "metadata: {name: i}\nspec: {mode: Audit}\n",
				"j.wasm": module(t, frame.Admit, frame.Launch), "j.yaml": head + "metadata: {name: j}\nspec: {}\n",
				"k.rego": rego("dovetail.admit.k"), "k.yaml": head + "metadata: {name: k}\nspec: {}\n---\n" + head + "metadata: {name: k}\nspec: {order: 2}\n",
			},
			want: []string{"k admit rego k.yaml: k.rego"},
			wantErrs: []string{
				`a.yaml: error unmarshaling JSON: while decoding JSON: json: unknown field "ordre"`, "b.yaml: spec.hook: b.rego is for hook admit, not score", "c.yaml: error converting YAML", `d.yaml: apiVersion "dovetail.sh/v1" is not dovetail.sh/v1alpha1`,
				"e.yaml: spec.source: neither given nor is there a e.rego or e.wasm", "f.yaml: spec.source.file.path: there is no file ../a.rego", "g.yaml: spec.source: a manifest in a folder has source inline or file",
				"h.yaml: metadata.name is required", "i.yaml: spec.mode: Unsupported", "j.yaml: spec.hook: required, as j.wasm has several", `k.yaml: the name "k" is that of the policy in k.yaml too`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				write(t, dir+"/"+name, text)
			}
			found, err := set.FromFolder(dir)
			var got []string
			for _, f := range found {
				got = append(got, fmt.Sprintf("%s %s %s %s: %s", f.Policy.Name, f.Policy.Spec.Hook, f.Policy.Spec.Runtime, f.File, strings.Join(slices.Sorted(maps.Keys(f.Artifact.Files)), " ")))
				if err := f.Policy.RuntimeValidate(); err != nil {
					t.Errorf("policy %s: %v", f.Policy.Name, err)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("policies (-want +got):\n%s", diff)
			}
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
				var fe *set.FileError
				if !errors.As(err, &fe) {
					t.Errorf("error %v has no FileError", err)
				}
			}
			if len(lines) != len(tt.wantErrs) {
				t.Fatalf("errors:\n%s\nwant %d", strings.Join(lines, "\n"), len(tt.wantErrs))
			}
			for i, want := range tt.wantErrs {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("error %q, want it to start with %q", lines[i], want)
				}
			}
			if tt.check != nil && len(found) > 0 {
				tt.check(t, found)
			}
		})
	}
	if _, err := set.FromFolder(t.TempDir() + "/gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v of a folder that is not there", err)
	}
}

// TestLoader_LoadFolder_shipped loads the policies that ship with Dovetail.
func TestLoader_LoadFolder_shipped(t *testing.T) {
	loaded, err := loader(t).LoadFolder(t.Context(), "../../../policies")
	if err != nil {
		t.Fatal(err)
	}
	count := map[policy.Hook]int{}
	for _, p := range loaded {
		count[p.Hook]++
	}
	for _, h := range policy.Hooks() {
		files, err := os.ReadDir("../../../policies/" + string(h))
		if err != nil {
			t.Fatal(err)
		}
		want := 0
		for _, f := range files {
			if strings.HasSuffix(f.Name(), ".rego") && !strings.HasSuffix(f.Name(), "_test.rego") {
				want++
			}
		}
		if count[h] != want || want < 4 {
			t.Errorf("%d policies of hook %s, want %d", count[h], h, want)
		}
	}
	if err := policy.NewEngine(policy.Options{}).Swap(loaded); err != nil {
		t.Error(err)
	}
}

func TestLoader_LoadFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.rego", "package dovetail.admit.a\n\nimport data.acme\n\nwarn contains {\"code\": acme.code(input.parameters.number), \"msg\": \"m\"} if data.rates.fee == 12345678901234567\n")
	write(t, dir+"/lib/acme.rego", "package acme\n\ncode(n) := sprintf(\"n%d\", [n])\n")
	write(t, dir+"/rates/data.json", `{"fee": 12345678901234567}`)
	write(t, dir+"/a.yaml", head+"metadata: {name: first}\nspec: {parameters: {number: 7}, order: -1, timeout: 10s}\n")
	write(t, dir+"/b.rego", strings.Replace(warns("b"), "admit.p", "admit.b", 1))
	write(t, dir+"/broken.rego", "package dovetail.admit.broken\n\nwarn contains \"x\" if input.nosuchfield\n")
	write(t, dir+"/off.rego", "package dovetail.admit.off\n\nwarn contains \"off\"\n")
	write(t, dir+"/off.yaml", head+"metadata: {name: off}\nspec: {mode: Disabled}\n")
	write(t, dir+"/w.wasm", module(t, frame.Admit))
	loaded, err := loader(t).LoadFolder(t.Context(), dir)
	if err == nil || !strings.HasPrefix(err.Error(), "broken.rego: policy \"broken\": broken.rego:3: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want that of broken.rego alone", err)
	}
	var names []string
	for _, p := range loaded {
		names = append(names, p.Name)
	}
	if diff := cmp.Diff([]string{"first", "b", "w"}, names); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
	e := policy.NewEngine(policy.Options{})
	if err := e.Swap(loaded); err != nil {
		t.Fatal(err)
	}
	if got := codes(t, e); got != "first:n7 b:b" {
		t.Errorf("warnings %q, want first:n7 b:b", got)
	}
	for _, r := range e.Records()[0].Policies {
		if r.Error != "" {
			t.Errorf("policy %s: %s", r.Name, r.Error)
		}
	}
}
