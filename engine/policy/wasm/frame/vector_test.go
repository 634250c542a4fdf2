package frame

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the vectors anew")

const vectors = "../../../../wasm-sdk/testdata"

// textTable is a table in JSON: strings written out, null for a row without a value.
type textTable struct {
	Hook    string       `json:"hook"`
	Minor   uint16       `json:"minor"`
	Rows    int          `json:"rows"`
	Columns []textColumn `json:"columns"`
	Context []textValue  `json:"context"`
}

type textColumn struct {
	ID     uint16 `json:"id"`
	Type   string `json:"type"`
	Values []any  `json:"values"`
}

type textValue struct {
	Key   string `json:"key"`
	Type  string `json:"type"`
	Value any    `json:"value"`
}

// questionVector is an item of questions.json.
type questionVector struct {
	Name  string    `json:"name"`
	Table textTable `json:"table"`
	Frame string    `json:"frame"`
}

// answerVector is an item of answers.json: Answer or Error is set.
type answerVector struct {
	Name   string  `json:"name"`
	Hook   string  `json:"hook"`
	Rows   int     `json:"rows"`
	Frame  string  `json:"frame"`
	Answer *Answer `json:"answer,omitempty"`
	Error  string  `json:"error,omitempty"`
}

func describe(t *Table) textTable {
	out := textTable{Hook: t.Hook.String(), Minor: t.Minor, Rows: t.Rows, Columns: []textColumn{}, Context: []textValue{}}
	for i := range t.Columns {
		c := &t.Columns[i]
		col := textColumn{ID: c.ID, Type: c.Type.String(), Values: []any{}}
		for row := range t.Rows {
			var v any
			switch c.Type {
			case I32:
				if v = c.I32[row]; c.I32[row] == NoI32 {
					v = nil
				}
			case I64:
				if v = c.I64[row]; c.I64[row] == NoI64 {
					v = nil
				}
			case F64:
				v = c.F64[row]
			case U8:
				v = c.U8[row]
			case String:
				if c.Str[row] != None {
					v = t.Strings.Text(c.Str[row])
				}
			}
			col.Values = append(col.Values, v)
		}
		out.Columns = append(out.Columns, col)
	}
	for _, v := range t.Context {
		item := textValue{Key: v.Key, Type: v.Type.String()}
		switch v.Type {
		case F64:
			item.Value = v.Float
		case String:
			item.Value = v.Text
		default:
			item.Value = v.Int
		}
		out.Context = append(out.Context, item)
	}
	return out
}

func questionVectors(t *testing.T) []questionVector {
	s := &Strings{}
	id := s.ID
	tables := map[string]*Table{
		"the example of ABI.md": small(),
		"no rows, no columns, no context": {
			Hook: Score, Strings: s,
		},
		"every type, with rows that have no value": {
			Hook: Disrupt, Minor: 3, Rows: 3, Strings: s,
			Columns: []Column{
				{ID: 75, Type: U8, U8: []uint8{0, 1, 255}},
				{ID: 2, Type: F64, F64: []float64{0.1, -2.5, 1e300}},
				{ID: 1, Type: I64, I64: []int64{1 << 62, -1, NoI64}},
				{ID: 72, Type: I32, I32: []int32{-7, NoI32, 1 << 30}},
				{ID: 64, Type: String, Str: []uint32{id("node-b"), None, id("")}},
			},
		},
		"context of every type, sorted by key": {
			Hook: Admit, Rows: 1, Strings: s,
			Context: []Value{
				{Key: "object.spec.weight", Type: I32, Int: -5},
				{Key: "dryRun", Type: U8, Int: 1},
				{Key: "now.unix", Type: I64, Int: 1767225600},
				{Key: "share", Type: F64, Float: 0.5},
				{Key: "object.metadata.name", Type: String, Text: "web"},
				{Key: "json", Type: String, Text: `{"a":"é日"}`},
			},
		},
		"a string that is a key, a value and a cell is written once": {
			Hook: Launch, Rows: 2, Strings: s,
			Columns: []Column{{ID: 65, Type: String, Str: []uint32{id("pool"), id("pool")}}},
			Context: []Value{{Key: "pool", Type: String, Text: "pool"}},
		},
	}
	names := []string{"the example of ABI.md", "no rows, no columns, no context", "every type, with rows that have no value",
		"context of every type, sorted by key", "a string that is a key, a value and a cell is written once"}
	var list []questionVector
	for _, name := range names {
		b, err := Encode(tables[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f, err := Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list = append(list, questionVector{Name: name, Table: describe(f.Table()), Frame: hex.EncodeToString(b)})
	}
	return list
}

func answerVectors(t *testing.T) []answerVector {
	example, err := Encode(smallAnswer())
	if err != nil {
		t.Fatal(err)
	}
	reordered := func() []byte { // the example with its directory backwards and a gap
		b := bytes.Clone(example)
		copy(b[40:48], example[56:64])
		copy(b[56:64], example[40:48])
		return b
	}()
	later := bytes.Clone(example)
	later[6] = 9
	unknown := answer(t, Admit, 1, []Column{{ID: 200, Type: F64, F64: []float64{1}}}, number("later.key", 1), text("warn", "m"))
	cut := bytes.Clone(example[:len(example)-8])
	type item struct {
		name string
		hook Hook
		rows int
		b    []byte
	}
	deny := func(reason uint32) []Column {
		return []Column{{ID: AnswerDeny, Type: U8, U8: []uint8{1}}, {ID: AnswerReason, Type: String, Str: []uint32{reason}}}
	}
	var list []answerVector
	for _, i := range []item{
		{"the example of ABI.md", Score, 2, example},
		{"directory entries in another order", Score, 2, reordered},
		{"a later minor version", Score, 2, later},
		{"unknown columns and keys", Admit, 1, unknown},
		{"no opinion", Launch, 5, answer(t, Launch, 5, nil)},
		{"every column of score", Score, 1, answer(t, Score, 1, []Column{
			{ID: AnswerCost, Type: I64, I64: []int64{5}}, deny(why)[0], deny(why)[1],
			{ID: AnswerCode, Type: String, Str: []uint32{x}}, {ID: AnswerPermille, Type: I32, I32: []int32{900}},
			{ID: AnswerAdd, Type: I64, I64: []int64{-1}}, {ID: AnswerBias, Type: I64, I64: []int64{7}},
			{ID: AnswerCover, Type: String, Str: []uint32{ri1}}, {ID: AnswerCoverUnits, Type: I64, I64: []int64{2}},
			{ID: AnswerCoverCost, Type: I64, I64: []int64{0}},
		}, text("commitment", "ri-1"), number("units", 4))},
		{"records of disrupt", Disrupt, 2, answer(t, Disrupt, 2, nil, text("defer", "soon"), number("seconds", 60), text("keep", "busy"), number("row", 1), text("code", "busy"))},
		{"records of launch", Launch, 2, answer(t, Launch, 2, nil, text("restrict", ""), number("row", 0), text("drop", "m7i.metal"), number("maxMicroUSD", 3000000), text("warn", "dear"))},
		{"records of admit", Admit, 1, answer(t, Admit, 1, nil, text("deny", "no limits"), text("code", "limits"))},
		{"an error of the guest", Score, 2, answer(t, Failure, 0, nil, text("error.code", "rates"), text("error.message", "no rate table"))},
		{"a cut frame", Score, 2, cut},
		{"another hook", Admit, 2, example},
		{"another number of rows", Score, 3, example},
		{"a denial without a reason", Score, 1, answer(t, Score, 1, deny(None))},
		{"a negative cost", Score, 1, answer(t, Score, 1, []Column{{ID: AnswerCost, Type: I64, I64: []int64{-1}}})},
		{"a cost of floats", Score, 1, answer(t, Score, 1, []Column{{ID: AnswerCost, Type: F64, F64: []float64{1}}})},
		{"a keep without a row", Disrupt, 1, answer(t, Disrupt, 1, nil, text("keep", "m"))},
		{"a verdict of another hook", Admit, 1, answer(t, Admit, 1, nil, text("defer", "m"), number("seconds", 1))},
	} {
		v := answerVector{Name: i.name, Hook: i.hook.String(), Rows: i.rows, Frame: hex.EncodeToString(i.b)}
		got, err := DecodeAnswer(i.b, i.hook, i.rows)
		if err != nil {
			v.Error = err.Error()
		} else {
			v.Answer = &got
		}
		list = append(list, v)
	}
	return list
}

func hookNamed(t *testing.T, name string) Hook {
	t.Helper()
	for _, h := range Hooks() {
		if h.String() == name {
			return h
		}
	}
	t.Fatalf("hook %q is not known", name)
	return 0
}

// TestVectors holds the package against the files that all implementations share.
func TestVectors(t *testing.T) {
	if *update {
		write(t, "questions.json", questionVectors(t))
		write(t, "answers.json", answerVectors(t))
	}
	t.Run("questions", func(t *testing.T) {
		var have []questionVector
		read(t, "questions.json", &have)
		want := questionVectors(t)
		if len(have) != len(want) {
			t.Fatalf("%d vectors, want %d", len(have), len(want))
		}
		for i, v := range want {
			if have[i].Name != v.Name || have[i].Frame != v.Frame {
				t.Errorf("%s: the encoder gives %s, the file has %s", v.Name, v.Frame, have[i].Frame)
			}
			b, err := hex.DecodeString(have[i].Frame)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Decode(b)
			if err != nil {
				t.Fatalf("%s: %v", v.Name, err)
			}
			if diff := cmp.Diff(normal(t, have[i].Table), normal(t, describe(f.Table()))); diff != "" {
				t.Errorf("%s: table (-file +decoded):\n%s", v.Name, diff)
			}
		}
	})
	t.Run("answers", func(t *testing.T) {
		var have []answerVector
		read(t, "answers.json", &have)
		if len(have) < 15 {
			t.Fatalf("only %d vectors", len(have))
		}
		for _, v := range have {
			b, err := hex.DecodeString(v.Frame)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeAnswer(b, hookNamed(t, v.Hook), v.Rows)
			var guest *GuestError
			switch {
			case v.Answer == nil && (err == nil || !strings.Contains(err.Error(), v.Error)):
				t.Errorf("%s: error %v, want %q", v.Name, err, v.Error)
			case v.Answer == nil && !errors.Is(err, ErrAnswer) && !errors.As(err, &guest):
				t.Errorf("%s: error %v is neither of a bad answer nor of a guest", v.Name, err)
			case v.Answer != nil && err != nil:
				t.Errorf("%s: %v", v.Name, err)
			case v.Answer != nil:
				if diff := cmp.Diff(normal(t, v.Answer), normal(t, got)); diff != "" {
					t.Errorf("%s: answer (-file +decoded):\n%s", v.Name, diff)
				}
			}
		}
	})
}

// normal is v as JSON sees it.
func normal(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var out any
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t *testing.T, name string, v any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectors, name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func write(t *testing.T, name string, v any) {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vectors, name), append(b, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
