package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/fuel"
)

const (
	logModule   = "dovetail_v1"
	abortModule = "env"
	wasiModule  = "wasi_snapshot_preview1"

	// MaxLogLines and MaxLogLine bound what a guest may log in one call; the rest is
	// dropped and counted.
	MaxLogLines = 64
	MaxLogLine  = 1024
)

// LogLevel says how serious a guest's log line is.
type LogLevel int

// The levels of the ABI. Standard output is Info and standard error is Error.
const (
	Debug LogLevel = iota
	Info
	Warn
	Error
)

// LogLine is a line that a guest logged.
type LogLine struct {
	Level LogLevel
	Text  string
}

// call is what the host functions of one call work on.
type call struct {
	meter   fuel.Meter
	state   *state
	lines   []LogLine
	dropped int
	partial [2]bytes.Buffer // unfinished lines of standard output and error
	random  uint64
	mod     api.Module // the caller, once it has come back to the host
}

// state is what an instance keeps between calls on the host's side.
type state struct {
	ticks uint64 // of the monotonic clock
}

type callKey struct{}

func (c *call) context(ctx context.Context) context.Context {
	return context.WithValue(fuel.With(ctx, &c.meter), callKey{}, c)
}

func callOf(ctx context.Context, mod api.Module) *call {
	c := ctx.Value(callKey{}).(*call)
	c.mod = mod
	return c
}

// charge takes units for a host function's work and stops the guest if it has none.
func (c *call) charge(ctx context.Context, mod api.Module, units int64) {
	if mod.ExportedGlobal(fuel.GlobalExport) == nil {
		return // a module that is not metered
	}
	if err := c.meter.Charge(ctx, mod, units); err != nil {
		panic(err)
	}
}

func (c *call) log(level LogLevel, text []byte) {
	if len(c.lines) == MaxLogLines {
		c.dropped++
		return
	}
	if len(text) > MaxLogLine {
		text = text[:MaxLogLine]
	}
	c.lines = append(c.lines, LogLine{Level: min(max(level, Debug), Error), Text: strings.ToValidUTF8(string(text), "\uFFFD")})
}

// write takes bytes of standard output (0) or error (1) and logs whole lines.
func (c *call) write(stream int, b []byte) {
	level := Info
	if stream == 1 {
		level = Error
	}
	p := &c.partial[stream]
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if room := MaxLogLine - p.Len(); room > 0 {
			p.Write(line[:min(len(line), room)])
		}
		if whole {
			if p.Len() > 0 {
				c.log(level, p.Bytes())
			}
			p.Reset()
		}
		b = rest
	}
}

// finish logs unfinished lines.
func (c *call) finish() {
	c.write(0, []byte{'\n'})
	c.write(1, []byte{'\n'})
}

// complaint is the line in which a guest's runtime says why it died, or "".
func (c *call) complaint() string {
	last := ""
	for _, l := range c.lines {
		if l.Level != Error {
			continue
		}
		if strings.HasPrefix(l.Text, "panic: ") || strings.HasPrefix(l.Text, "fatal error: ") {
			return l.Text
		}
		last = l.Text
	}
	return last
}

// exitError is a guest that ended itself.
type exitError struct{ code uint32 }

func (e *exitError) Error() string { return fmt.Sprintf("exit with code %d", e.code) }

// abortError is a failed assertion of an AssemblyScript guest.
type abortError struct {
	message, file string
	line, column  uint32
}

func (e *abortError) Error() string {
	return fmt.Sprintf("abort: %s at %s:%d:%d", e.message, e.file, e.line, e.column)
}

var errPointer = errors.New("pointer outside of the memory")

// fetch reads guest memory on behalf of a host function, or stops the guest.
func fetch(mod api.Module, ptr, size uint32) []byte {
	if mod.Memory() == nil {
		panic(errPointer)
	}
	b, ok := mod.Memory().Read(ptr, size)
	if !ok {
		panic(fmt.Errorf("%w: %d bytes at %d", errPointer, size, ptr))
	}
	return b
}

// imports adds the host modules of the ABI to rt.
func imports(ctx context.Context, rt wazero.Runtime) error {
	i32 := api.ValueTypeI32
	_, err := rt.NewHostModuleBuilder(logModule).NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
			c := callOf(ctx, mod)
			c.charge(ctx, mod, 8)
			b := fetch(mod, uint32(s[1]), min(uint32(s[2]), MaxLogLine))
			c.log(LogLevel(int32(s[0])), b)
		}), []api.ValueType{i32, i32, i32}, nil).Export("log").Instantiate(ctx)
	if err != nil {
		return err
	}
	_, err = rt.NewHostModuleBuilder(abortModule).NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, mod api.Module, s []uint64) {
			panic(&abortError{
				message: assemblyString(mod, uint32(s[0])), file: assemblyString(mod, uint32(s[1])),
				line: uint32(s[2]), column: uint32(s[3]),
			})
		}), []api.ValueType{i32, i32, i32, i32}, nil).Export("abort").Instantiate(ctx)
	if err != nil {
		return err
	}
	return wasi(ctx, rt)
}

// assemblyString reads a string of AssemblyScript: UTF-16, its size in bytes before it.
func assemblyString(mod api.Module, ptr uint32) string {
	if ptr < 4 || mod.Memory() == nil {
		return ""
	}
	size, ok := mod.Memory().ReadUint32Le(ptr - 4)
	if !ok {
		return ""
	}
	b, ok := mod.Memory().Read(ptr, min(size, MaxLogLine)&^1)
	if !ok {
		return ""
	}
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = uint16(b[2*i]) | uint16(b[2*i+1])<<8
	}
	return string(utf16.Decode(units))
}
