package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is the worked example of ABI.md.
func small() *Table {
	s := &Strings{}
	return &Table{
		Hook: Score, Rows: 2, Strings: s,
		Columns: []Column{
			{ID: 8, Type: String, Str: []uint32{s.ID("m7i"), s.ID("t4g")}},
			{ID: 1, Type: I64, I64: []int64{100800, 33600}},
		},
		Context: []Value{
			{Key: "now.unix", Type: I64, Int: 1767225600},
			{Key: "nodePool.name", Type: String, Text: "web"},
		},
	}
}

func TestWorkedExample(t *testing.T) {
	doc, err := os.ReadFile("../../../../wasm-sdk/ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range []struct {
		mark  string
		table *Table
	}{{"question", small()}, {"answer", smallAnswer()}} {
		_, rest, ok := strings.Cut(string(doc), "<!-- example: "+example.mark+" -->\n\n```\n")
		block, _, _ := strings.Cut(rest, "```")
		if !ok {
			t.Fatalf("ABI.md has no example %q", example.mark)
		}
		var digits strings.Builder
		for line := range strings.Lines(block) {
			// offset, bytes, meaning; two spaces between them
			fields := strings.Split(strings.TrimLeft(line, " "), "  ")
			digits.WriteString(strings.ReplaceAll(fields[1], " ", ""))
		}
		want, err := hex.DecodeString(digits.String())
		if err != nil {
			t.Fatalf("example %q: %v", example.mark, err)
		}
		got, err := Encode(example.table)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("example %q: the encoder gives\n%s\nABI.md has\n%s", example.mark, hex.Dump(got), hex.Dump(want))
		}
	}
}

// smallAnswer answers small: the second row is denied, the first 10 % dearer.
func smallAnswer() *Table {
	s := &Strings{}
	return &Table{
		Hook: Score, Rows: 2, Strings: s, Ordered: true,
		Columns: []Column{
			{ID: AnswerDeny, Type: U8, U8: []uint8{0, 1}},
			{ID: AnswerReason, Type: String, Str: []uint32{None, s.ID("burstable")}},
			{ID: AnswerPermille, Type: I32, I32: []int32{1100, 1000}},
		},
	}
}

func TestSpecsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../../../wasm-sdk/ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, s := range Specs() {
		var hooks []string
		for _, h := range s.Hooks {
			hooks = append(hooks, h.String())
		}
		want.WriteString(strings.Join([]string{"|", itoa(s.ID), "|", s.Type.String(), "| `" + s.Name + "` |", s.Unit, "|", strings.Join(hooks, ", "), "|", itoa(s.Since), "|\n"}, " "))
	}
	if !strings.Contains(string(doc), want.String()) {
		t.Errorf("ABI.md lacks this table of the columns:\n%s", want.String())
	}
	type key struct {
		id   uint16
		hook Hook
	}
	seen := map[key]bool{}
	for _, s := range Specs() {
		for _, h := range s.Hooks {
			if seen[key{s.ID, h}] {
				t.Errorf("column %d of %s has two meanings", s.ID, h)
			}
			seen[key{s.ID, h}] = true
		}
	}
}

func itoa(n uint16) string { return string(appendUint(nil, n)) }

func appendUint(b []byte, n uint16) []byte {
	if n >= 10 {
		b = appendUint(b, n/10)
	}
	return append(b, byte('0'+n%10))
}

// TestEncodeIsCanonical builds one table in different orders.
func TestEncodeIsCanonical(t *testing.T) {
	want, err := Encode(small())
	if err != nil {
		t.Fatal(err)
	}
	other := small()
	set := &Strings{}
	for _, s := range []string{"unused", "t4g", "web", "nodePool.name", "m7i"} {
		set.ID(s)
	}
	other.Strings = set
	other.Columns[0].Str = []uint32{set.ID("m7i"), set.ID("t4g")}
	slices.Reverse(other.Columns)
	slices.Reverse(other.Context)
	var e Encoder
	for range 3 { // an encoder that is used again gives the same
		got, err := e.Encode(other)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("another order gives\n%s\nwant\n%s", hex.Dump(got), hex.Dump(want))
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	tests := map[string]struct {
		change  func(*Table)
		mention string
	}{
		"a column that is too short": {func(t *Table) { t.Columns[1].I64 = []int64{1} }, "column 1 has 1 values for 2 rows"},
		"a repeated column":          {func(t *Table) { t.Columns[0].ID = 1 }, "column 1 is repeated"},
		"a repeated key":             {func(t *Table) { t.Context[0].Key = "nodePool.name" }, `key "nodePool.name" is repeated`},
		"an unknown type":            {func(t *Table) { t.Columns[1].Type = 9 }, "type 9"},
		"a string outside the set":   {func(t *Table) { t.Columns[0].Str[1] = 99 }, "string 99 of 2"},
		"not a number":               {func(t *Table) { t.Context[0] = Value{Key: "x", Type: F64, Float: math.NaN()} }, "NaN"},
		"infinity in a column": {func(t *Table) {
			t.Columns[1] = Column{ID: 2, Type: F64, F64: []float64{1, math.Inf(1)}}
		}, "row 1 is +Inf"},
		"too many rows": {func(t *Table) { t.Rows = MaxRows + 1 }, "65537 rows"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table := small()
			test.change(table)
			if _, err := Encode(table); err == nil || !strings.Contains(err.Error(), test.mention) {
				t.Errorf("Encode() error = %v, want one with %q", err, test.mention)
			}
		})
	}
}

func random(seed uint64) *Table {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &Strings{}
	t := &Table{Hook: Hook(1 + r.IntN(4)), Minor: uint16(r.IntN(3)), Rows: r.IntN(20), Strings: s}
	word := func() string { return string([]rune("añ日x")[:r.IntN(5)]) + string(rune('a'+r.IntN(26))) }
	for id := range r.IntN(8) {
		c := Column{ID: uint16(id*7 + r.IntN(7)), Type: Type(1 + r.IntN(5))}
		for range t.Rows {
			switch c.Type {
			case I32:
				c.I32 = append(c.I32, int32(r.Uint32()))
			case I64:
				c.I64 = append(c.I64, int64(r.Uint64()))
			case F64:
				c.F64 = append(c.F64, r.NormFloat64())
			case U8:
				c.U8 = append(c.U8, uint8(r.Uint32()))
			case String:
				if r.IntN(4) == 0 {
					c.Str = append(c.Str, None)
				} else {
					c.Str = append(c.Str, s.ID(word()))
				}
			}
		}
		t.Columns = append(t.Columns, c)
	}
	keys := map[string]bool{}
	for range r.IntN(6) {
		v := Value{Key: word(), Type: Type(1 + r.IntN(5))}
		switch v.Type {
		case I32:
			v.Int = int64(int32(r.Uint32()))
		case I64:
			v.Int = int64(r.Uint64())
		case U8:
			v.Int = int64(r.IntN(2))
		case F64:
			v.Float = r.Float64()
		case String:
			v.Text = word()
		}
		if !keys[v.Key] {
			keys[v.Key] = true
			t.Context = append(t.Context, v)
		}
	}
	return t
}

func TestRoundTrip(t *testing.T) {
	for seed := range uint64(500) {
		first, err := Encode(random(seed))
		if err != nil {
			t.Fatal(err)
		}
		f, err := Decode(first)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, hex.Dump(first))
		}
		table := f.Table()
		again, err := Encode(table)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Fatalf("seed %d: encode, decode, encode gives\n%s\nwant\n%s", seed, hex.Dump(again), hex.Dump(first))
		}
	}
}

func TestRoundTripKeepsValues(t *testing.T) {
	b, err := Encode(small())
	if err != nil {
		t.Fatal(err)
	}
	f, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	table := f.Table()
	if got := table.Column(1).I64; !slices.Equal(got, []int64{100800, 33600}) {
		t.Errorf("costs = %v", got)
	}
	var families []string
	for _, id := range table.Column(8).Str {
		families = append(families, table.Strings.Text(id))
	}
	if !slices.Equal(families, []string{"m7i", "t4g"}) {
		t.Errorf("families = %v", families)
	}
	want := []Value{
		{Key: "nodePool.name", Type: String, Text: "web"},
		{Key: "now.unix", Type: I64, Int: 1767225600},
	}
	if diff := cmp.Diff(want, table.Context); diff != "" {
		t.Errorf("context (-want +got):\n%s", diff)
	}
}

// answer builds a frame of a guest.
func answer(t testing.TB, hook Hook, rows int, columns []Column, context ...Value) []byte {
	t.Helper()
	s := &Strings{}
	for _, text := range []string{"why", "x", "", "ri-1"} {
		s.ID(text)
	}
	b, err := Encode(&Table{Hook: hook, Rows: rows, Columns: columns, Context: context, Strings: s, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	why   = 0
	x     = 1
	empty = 2
	ri1   = 3
)

func text(key, s string) Value         { return Value{Key: key, Type: String, Text: s} }
func number(key string, n int64) Value { return Value{Key: key, Type: I64, Int: n} }

func TestDecodeAnswer(t *testing.T) {
	score := []Column{
		{ID: AnswerCost, Type: I64, I64: []int64{NoI64, 0, 5}},
		{ID: AnswerDeny, Type: U8, U8: []uint8{0, 1, 0}},
		{ID: AnswerReason, Type: String, Str: []uint32{None, why, None}},
		{ID: AnswerCode, Type: String, Str: []uint32{None, x, None}},
		{ID: AnswerPermille, Type: I32, I32: []int32{900, 1000, NoI32}},
		{ID: AnswerAdd, Type: I64, I64: []int64{-7, 0, NoI64}},
		{ID: AnswerBias, Type: I64, I64: []int64{0, -3, 3}},
		{ID: AnswerCover, Type: String, Str: []uint32{ri1, None, ri1}},
		{ID: AnswerCoverUnits, Type: I64, I64: []int64{2, -9, 1}},
		{ID: AnswerCoverCost, Type: I64, I64: []int64{10, -9, 0}},
		{ID: 999, Type: F64, F64: []float64{1, 2, 3}},
	}
	tests := map[string]struct {
		hook  Hook
		frame []byte
		want  Answer
	}{
		"no columns are no opinion": {Score, answer(t, Score, 3, nil), Answer{}},
		"score": {Score, answer(t, Score, 3, score, text("commitment", "ri-1"), number("units", 4)), Answer{
			Denials:     []Denial{{Row: 1, Message: "why", Code: "x"}},
			Cost:        []Amount{{1, 0}, {2, 5}},
			Permille:    []Amount{{0, 900}},
			Add:         []Amount{{0, -7}},
			Bias:        []Amount{{1, -3}, {2, 3}},
			Covers:      []Cover{{Row: 0, Commitment: "ri-1", Units: 2, Cost: 10}, {Row: 2, Commitment: "ri-1", Units: 1}},
			Commitments: []Commitment{{"ri-1", 4}},
		}},
		"unknown keys are left alone": {Admit, answer(t, Admit, 3, nil, number("later", 1), text("warn", "m"), number("later", 1), text("code", "c")), Answer{
			Opinions: []Opinion{{Verdict: Warn, Message: "m", Code: "c"}},
		}},
		"disrupt": {Disrupt, answer(t, Disrupt, 3, nil,
			text("defer", "later"), number("seconds", 60), text("keep", "busy"), number("row", 2), number("row", 0), text("deny", "no"), text("code", "freeze")), Answer{
			Opinions: []Opinion{
				{Verdict: Defer, Message: "later", Seconds: 60},
				{Verdict: Keep, Message: "busy", Rows: []int{2, 0}},
				{Verdict: Deny, Message: "no", Code: "freeze"},
			},
		}},
		"launch": {Launch, answer(t, Launch, 3, nil,
			text("restrict", ""), number("row", 1), text("drop", "a.metal"), text("drop", "b.metal"), number("maxMicroUSD", 3000000)), Answer{
			Opinions: []Opinion{{Verdict: Restrict, Rows: []int{1}, Drop: []string{"a.metal", "b.metal"}, Max: 3000000, HasMax: true}},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeAnswer(test.frame, test.hook, 3)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("DecodeAnswer() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeAnswerRefuses(t *testing.T) {
	i64 := func(id uint16, v int64) []Column { return []Column{{ID: id, Type: I64, I64: []int64{v}}} }
	deny := func(v uint8, reason uint32) []Column {
		return []Column{{ID: AnswerDeny, Type: U8, U8: []uint8{v}}, {ID: AnswerReason, Type: String, Str: []uint32{reason}}}
	}
	cover := func(units, cost int64) []Column {
		return []Column{{ID: AnswerCover, Type: String, Str: []uint32{ri1}}, i64(AnswerCoverUnits, units)[0], i64(AnswerCoverCost, cost)[0]}
	}
	change := func(at int, v uint32) []byte {
		b := slices.Clone(answer(t, Score, 1, deny(1, why), text("commitment", "ri-1"), number("units", 1)))
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	tests := map[string]struct {
		frame   []byte
		hook    Hook
		mention string
	}{
		"a negative cost":           {answer(t, Score, 1, i64(AnswerCost, -1)), Score, "cost: row 0: value -1"},
		"a huge cost":               {answer(t, Score, 1, i64(AnswerCost, 1<<60)), Score, "cost: row 0"},
		"a string as cost":          {answer(t, Score, 1, []Column{{ID: AnswerCost, Type: String, Str: []uint32{x}}}), Score, "cost: column of string, want i64"},
		"a float as cost":           {answer(t, Score, 1, []Column{{ID: AnswerCost, Type: F64, F64: []float64{1}}}), Score, "cost: column of f64, want i64"},
		"a negative factor":         {answer(t, Score, 1, []Column{{ID: AnswerPermille, Type: I32, I32: []int32{-1}}}), Score, "permille: row 0: value -1"},
		"a denial without a reason": {answer(t, Score, 1, deny(1, None)), Score, "deny: row 0: denied without a reason"},
		"an empty reason":           {answer(t, Score, 1, deny(1, empty)), Score, "deny: row 0: denied without a reason"},
		"a denial of 2":             {answer(t, Score, 1, deny(2, why)), Score, "deny: row 0: value 2"},
		"a cover of no units":       {answer(t, Score, 1, cover(0, 0), text("commitment", "ri-1"), number("units", 1)), Score, "cover units: row 0: value 0"},
		"a cover with negative cost": {answer(t, Score, 1, cover(1, -1), text("commitment", "ri-1"), number("units", 1)), Score,
			"cover cost: row 0: value -1"},
		"a cover by an unknown commitment": {answer(t, Score, 1, cover(1, 1)), Score, `commitment "ri-1" is not among`},
		"a commitment without units":       {answer(t, Score, 1, nil, text("commitment", "a")), Score, `"a" has no units`},
		"a repeated commitment": {answer(t, Score, 1, nil, text("commitment", "a"), number("units", 1), text("commitment", "a")), Score,
			`"a" is repeated`},
		"another hook":              {answer(t, Admit, 1, nil), Score, "frame of admit, want score"},
		"another number of rows":    {answer(t, Score, 2, nil), Score, "2 rows, want 1"},
		"a verdict of another hook": {answer(t, Admit, 1, nil, text("keep", "m"), number("row", 0)), Admit, "keep: not a verdict of admit"},
		"a row past the end":        {answer(t, Disrupt, 1, nil, text("keep", "m"), number("row", 1)), Disrupt, "row: value 1, want 0 to 0"},
		"a keep without a row":      {answer(t, Disrupt, 1, nil, text("keep", "m")), Disrupt, "keep: without a row"},
		"a defer without seconds":   {answer(t, Disrupt, 1, nil, text("defer", "m")), Disrupt, "defer: without seconds"},
		"a warning without text":    {answer(t, Admit, 1, nil, text("warn", " ")), Admit, "warn: without a message"},
		"a number as message":       {answer(t, Admit, 1, nil, number("warn", 1)), Admit, "warn: value of i64, want string"},
		"an attribute of nothing":   {answer(t, Disrupt, 1, nil, number("seconds", 1)), Disrupt, "seconds: before any verdict"},
		"a restriction of nothing":  {answer(t, Launch, 1, nil, text("restrict", ""), number("row", 0)), Launch, "restrict: without"},
		"another magic":             {change(0, 1), Score, "magic"},
		"a wrong length":            {change(8, 1), Score, "length 1"},
		"too many rows":             {change(12, 1<<31), Score, "rows"},
		"too many columns":          {change(16, 1<<31), Score, "columns"},
		"a directory outside":       {change(20, 0xfffffff8), Score, "column directory"},
		"an odd directory":          {change(20, 41), Score, "multiple of 8"},
		"a directory in the header": {change(20, 8), Score, "outside"},
		"too much context":          {change(24, 0xffffffff), Score, "context"},
		"a context outside":         {change(28, 0xfffffff0), Score, "context"},
		"too many strings":          {change(32, 0xffffffff), Score, "string table"},
		"a string table outside":    {change(36, 0xfffffff8), Score, "string table"},
		"a column outside":          {change(44, 0x7ffffff8), Score, "column 2"},
		"a string id outside": {func() []byte {
			b := answer(t, Score, 1, deny(1, why))
			at := binary.LittleEndian.Uint32(b[headerSize+columnSize+4:])
			b[at] = 77
			return b
		}(), Score, "column 3, row 0: string 77 of 1"},
		"nothing":      {nil, Score, "0 bytes"},
		"a short tail": {answer(t, Score, 1, nil)[:39], Score, "39 bytes"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeAnswer(test.frame, test.hook, 1)
			if !errors.Is(err, ErrAnswer) || !strings.Contains(err.Error(), test.mention) {
				t.Errorf("DecodeAnswer() error = %v, want %v with %q", err, ErrAnswer, test.mention)
			}
		})
	}
}

func TestDecodeAnswerOfAGuestInTrouble(t *testing.T) {
	b := answer(t, Failure, 0, nil, text("error.code", "rates"), text("error.message", "no rate table"))
	_, err := DecodeAnswer(b, Score, 850)
	var guest *GuestError
	if !errors.As(err, &guest) || errors.Is(err, ErrAnswer) {
		t.Fatalf("error = %v, want a *GuestError", err)
	}
	if diff := cmp.Diff(&GuestError{Code: "rates", Message: "no rate table"}, guest); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	b := answer(t, Admit, 1, nil, text("warn", strings.Repeat("日", 200)))
	got, err := DecodeAnswer(b, Admit, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := got.Opinions[0].Message
	if len(m) > MaxReason || !strings.HasSuffix(m, "日…") {
		t.Errorf("message of %d bytes ends with %q", len(m), m[len(m)-6:])
	}
}

func TestFlatten(t *testing.T) {
	got, err := Flatten("", map[string]any{
		"nodePool": map[string]any{"name": "web", "labels": map[string]any{"example.com/team": "a"}, "weight": 3.0},
		"command":  map[string]any{"replacements": []any{map[string]any{"pool": "p"}, nil}},
		"share":    0.5,
		"dryRun":   true,
		"empty":    []any{},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Value{
		{Key: "command.replacements.0.pool", Type: String, Text: "p"},
		{Key: "dryRun", Type: U8, Int: 1},
		{Key: "nodePool.labels.example.com/team", Type: String, Text: "a"},
		{Key: "nodePool.name", Type: String, Text: "web"},
		{Key: "nodePool.weight", Type: I64, Int: 3},
		{Key: "share", Type: F64, Float: 0.5},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Flatten() (-want +got):\n%s", diff)
	}
}

// FuzzDecode: no bytes make the reader panic, and what it takes survives a round trip.
func FuzzDecode(f *testing.F) {
	for seed := range uint64(20) {
		b, err := Encode(random(seed))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	b, _ := Encode(smallAnswer())
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, h := range Hooks() {
			if a, err := DecodeAnswer(b, h, 2); err == nil {
				for _, d := range a.Denials {
					if d.Row < 0 || d.Row >= 2 || d.Message == "" {
						t.Fatalf("a denial %+v", d)
					}
				}
				for _, o := range a.Opinions {
					for _, row := range o.Rows {
						if row < 0 || row >= 2 {
							t.Fatalf("an opinion about row %d", row)
						}
					}
				}
			}
		}
		frame, err := Decode(b)
		if err != nil {
			return
		}
		table := frame.Table()
		first, err := Encode(table)
		if err != nil {
			return // a value that a question may not have, such as NaN
		}
		frame, err = Decode(first)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		second, err := Encode(frame.Table())
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("the second round trip differs: %v", err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	s := &Strings{}
	t := &Table{Hook: Score, Rows: 850, Strings: s}
	for id := range uint16(13) {
		c := Column{ID: id, Type: Type(1 + id%5)}
		for i := range t.Rows {
			c.I32, c.I64, c.F64, c.U8 = append(c.I32, int32(i)), append(c.I64, int64(i)), append(c.F64, float64(i)), append(c.U8, 0)
			c.Str = append(c.Str, s.ID(strings.Repeat("x", i%40+1)))
		}
		t.Columns = append(t.Columns, c)
	}
	var e Encoder
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(t); err != nil {
			b.Fatal(err)
		}
	}
}
