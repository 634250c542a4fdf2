package load

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds on one input. They are far above what a cluster of 100 000 pods prints.
const (
	// MaxBytes is the size of one input.
	MaxBytes = 1 << 30
	// MaxDepth is how deep maps and lists may nest.
	MaxDepth = 200
	// MaxAliased is the number of values that YAML aliases may add to one document.
	MaxAliased = 100_000
	// exactBytes is the size of document up to which the line of a syntax error is
	// looked for with more than one parse.
	exactBytes = 1 << 20
)

// document is one parsed document and the line before its first.
type document struct {
	node   *yaml.Node
	offset int
}

// documents parses data and calls yield with each document, or with the problem that
// spoilt it, until yield returns false.
//
// The text is split at document markers before parsing, so that a syntax error spoils
// one document and not those after it.
func documents(name string, data []byte, yield func(document, *Problem) bool) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		yield(document{}, &Problem{Severity: Error, File: name, Line: 1 + bytes.Count(data[:i], []byte("\n")),
			Message: "contains a zero byte: this is not a YAML or JSON text"})
		return
	}
	parse := func(chunk []byte, offset int) bool {
		if blank(chunk) {
			return true
		}
		if body, lines := afterMarker(chunk); isJSON(body) {
			docs, err := jsonDocuments(body)
			for _, n := range docs {
				if !yield(document{n, offset + lines}, nil) {
					return false
				}
			}
			return err == nil || yield(document{}, &Problem{Severity: Error, File: name, Line: offset + lines + err.line, Message: "not valid JSON: " + err.msg})
		}
		var n yaml.Node
		if err := parseYAML(chunk, &n); err != nil {
			line, msg := yamlErrorLine(chunk, err)
			return yield(document{}, &Problem{Severity: Error, File: name, Line: offset + line, Message: "not valid YAML: " + msg})
		}
		return n.Kind != yaml.DocumentNode || len(n.Content) != 1 || yield(document{n.Content[0], offset}, nil)
	}
	start, startLine, line := 0, 0, 0
	for pos := 0; pos < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[pos:], '\n'); i >= 0 {
			end = pos + i + 1
		}
		switch text := data[pos:end]; {
		case isMarker(text, "---"):
			if !parse(data[start:pos], startLine) {
				return
			}
			// Content may follow the marker on its line, so the marker stays.
			start, startLine = pos, line
		case isMarker(text, "..."):
			if !parse(data[start:pos], startLine) {
				return
			}
			start, startLine = end, line+1
		}
		pos = end
	}
	parse(data[start:], startLine)
}

// afterMarker is chunk without a document marker that it starts with, and the number of
// lines that this takes away.
func afterMarker(chunk []byte) ([]byte, int) {
	rest, ok := bytes.CutPrefix(chunk, []byte("---"))
	if !ok {
		return chunk, 0
	}
	trimmed := bytes.TrimLeft(rest, " \t\r")
	if len(trimmed) > 0 && trimmed[0] == '\n' {
		return trimmed[1:], 1
	}
	return rest, 0
}

// isJSON reports whether text starts as a JSON object or a list of them does.
func isJSON(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return false
	}
	text = bytes.TrimLeft(text, "[{ \t\r\n")
	return len(text) > 0 && (text[0] == '"' || text[0] == '}' || text[0] == ']')
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// blank reports whether chunk has nothing but white space, comments, directives and a
// bare document marker.
func blank(chunk []byte) bool {
	for line := range bytes.Lines(chunk) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' || line[0] == '%' {
			continue
		}
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok {
			if rest = bytes.TrimSpace(rest); len(rest) == 0 || rest[0] == '#' {
				continue
			}
		}
		return false
	}
	return true
}

// parseYAML never panics: the parser's own failures become errors.
func parseYAML(chunk []byte, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return yaml.Unmarshal(chunk, n)
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// yamlErrorLine is the line, counted from 1, at which chunk stops being YAML. The
// parser names the line where the broken construct began; the shortest beginning of
// chunk that fails in the same way ends at the line where it broke.
func yamlErrorLine(chunk []byte, err error) (int, string) {
	split := func(err error) (int, string) {
		msg := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := yamlLine.FindStringSubmatch(msg); m != nil {
			n, _ := strconv.Atoi(m[1])
			return n, msg[len(m[0]):]
		}
		return 1, msg
	}
	line, msg := split(err)
	if len(chunk) > exactBytes {
		return line, msg
	}
	var ends []int
	for pos := range chunk {
		if chunk[pos] == '\n' {
			ends = append(ends, pos+1)
		}
	}
	if len(ends) == 0 || ends[len(ends)-1] != len(chunk) {
		ends = append(ends, len(chunk))
	}
	lo, hi := 1, len(ends)
	for lo < hi {
		mid := (lo + hi) / 2
		var n yaml.Node
		err := parseYAML(chunk[:ends[mid-1]], &n)
		if err != nil {
			if _, m := split(err); m == msg {
				hi = mid
				continue
			}
		}
		lo = mid + 1
	}
	// Only the end of the text shows that a quote or bracket was left open; where it was
	// opened helps more.
	if hi == len(ends) && strings.Contains(msg, "end of stream") {
		return line, msg
	}
	return hi, msg
}

type jsonError struct {
	line int
	msg  string
}

// jsonDocuments parses a stream of JSON values into the tree YAML is parsed into.
func jsonDocuments(data []byte) ([]*yaml.Node, *jsonError) {
	p := jsonParser{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	p.dec.UseNumber()
	var docs []*yaml.Node
	for {
		n, err := p.value(0)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			var syntax *json.SyntaxError
			pos := p.dec.InputOffset()
			if errors.As(err, &syntax) {
				pos = syntax.Offset
			}
			return docs, &jsonError{p.lineAt(pos), strings.TrimPrefix(err.Error(), "json: ")}
		}
		docs = append(docs, n)
	}
}

type jsonParser struct {
	data []byte
	dec  *json.Decoder
	pos  int64
	line int
}

func (p *jsonParser) lineAt(pos int64) int {
	pos = min(pos, int64(len(p.data)))
	if pos > p.pos {
		p.line += bytes.Count(p.data[p.pos:pos], []byte("\n"))
		p.pos = pos
	}
	return p.line
}

func (p *jsonParser) value(depth int) (*yaml.Node, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", MaxDepth)
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: p.lineAt(p.dec.InputOffset())}
	switch t := tok.(type) {
	case json.Delim:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		if t == '{' {
			n.Kind, n.Tag = yaml.MappingNode, "!!map"
		}
		for p.dec.More() {
			child, err := p.value(depth + 1)
			if err != nil {
				return nil, noEOF(err)
			}
			n.Content = append(n.Content, child)
		}
		if _, err := p.dec.Token(); err != nil {
			return nil, noEOF(err)
		}
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", t.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", strconv.FormatBool(t)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
