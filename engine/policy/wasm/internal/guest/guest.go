// Package guest has the test guests of the Wasm host, the question they are asked, and
// their rules in Go.
package guest

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the guests
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/dovetail-sh/dovetail/engine/policy/wasm/frame"
)

// C is the guest of testdata/c, in binary form.
//
//go:embed testdata/c/score.wasm
var C []byte

//go:embed testdata/go/main.go
var source []byte

// Go builds the guest of testdata/go with the Go toolchain, once for each state of its
// source and toolchain: binaries are kept in the user's cache directory.
var Go = sync.OnceValues(func() ([]byte, error) {
	h := sha256.New()
	h.Write([]byte(runtime.Version()))
	h.Write(source)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "dovetail-test-guests")
	path := filepath.Join(cache, hex.EncodeToString(h.Sum(nil))+".wasm")
	if b, err := os.ReadFile(path); err == nil {
		return b, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cache, "build")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for name, content := range map[string][]byte{"main.go": source, "go.mod": []byte("module guest\n\ngo 1.24\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return nil, err
		}
	}
	out := filepath.Join(dir, "guest.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the Go guest: %w: %s", err, bytes.TrimSpace(msg))
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	return b, os.Rename(out, path)
})

// Offerings is a score question of n rows as a catalogue would give.
func Offerings(n int, labels ...string) *frame.Table {
	s := &frame.Strings{}
	t := &frame.Table{Hook: frame.Score, Rows: n, Strings: s}
	families := []string{"m7i", "c7g", "r6i", "t4g", "c5", "m5n", "r7iz", "g5"}
	sizes := []string{"large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "24xlarge"}
	zones := []string{"eu-west-1a", "eu-west-1b", "eu-west-1c"}
	cost := frame.Column{ID: 1, Type: frame.I64}
	rate := frame.Column{ID: 3, Type: frame.I32}
	cpu := frame.Column{ID: 4, Type: frame.I32}
	memory := frame.Column{ID: 5, Type: frame.I32}
	gpu := frame.Column{ID: 6, Type: frame.I32}
	pods := frame.Column{ID: 7, Type: frame.I32}
	list := frame.Column{ID: 15, Type: frame.I64}
	text := map[uint16]*frame.Column{}
	for _, id := range []uint16{8, 9, 10, 11, 12, 13} {
		text[id] = &frame.Column{ID: id, Type: frame.String}
	}
	add := func(id uint16, v string) { text[id].Str = append(text[id].Str, s.ID(v)) }
	for i := range n {
		size := i / 3 % len(sizes)
		family := families[i/18%len(families)]
		vcpu := int32(2) << size
		cost.I64 = append(cost.I64, int64(vcpu)*48000+int64(i%7)*1300)
		list.I64 = append(list.I64, int64(vcpu)*50000)
		rate.I32 = append(rate.I32, int32(i%5)*40)
		cpu.I32 = append(cpu.I32, vcpu*1000)
		memory.I32 = append(memory.I32, vcpu*int32(1+i%4)*1024)
		gpu.I32 = append(gpu.I32, 0)
		pods.I32 = append(pods.I32, 58)
		add(8, family)
		add(9, sizes[size])
		add(10, []string{"amd64", "arm64"}[i%9/7])
		add(11, zones[i%3])
		add(12, []string{"on-demand", "spot"}[i/3%2])
		add(13, family+"."+sizes[size])
	}
	t.Columns = []frame.Column{cost, rate, cpu, memory, gpu, pods, list}
	for _, id := range []uint16{8, 9, 10, 11, 12, 13} {
		t.Columns = append(t.Columns, *text[id])
	}
	t.Context = []frame.Value{
		{Key: "nodePool.name", Type: frame.String, Text: "web"},
		{Key: "now.unix", Type: frame.I64, Int: 1_767_225_600},
	}
	for _, l := range labels {
		t.Context = append(t.Context, frame.Value{Key: "nodePool.labels." + l, Type: frame.String, Text: "true"})
	}
	return t
}

// Native are the rules of the guests in Go.
func Native(t *frame.Table) frame.Answer {
	var a frame.Answer
	licensed, arm := false, false
	for _, v := range t.Context {
		licensed = licensed || v.Key == "nodePool.labels.licensed"
		arm = arm || v.Key == "nodePool.labels.arm"
	}
	text := func(c *frame.Column, row int) string { return t.Strings.Text(c.Str[row]) }
	cost, rate, cpu, memory := t.Column(1).I64, t.Column(3).I32, t.Column(4).I32, t.Column(5).I32
	family, arch, capacity := t.Column(8), t.Column(10), t.Column(12)
	a.Cost = make([]frame.Amount, 0, t.Rows)
	for i := range t.Rows {
		name := text(family, i)
		weight := int64(1000)
		switch {
		case name[:2] == "c7", name[:2] == "m7":
			weight = 950
		case name[0] == 'r':
			weight = 1050
		}
		c := cost[i] * weight / 1000
		if licensed {
			c += int64(cpu[i]) / 1000 * 12500
		}
		if text(capacity, i) == "spot" {
			c += cost[i] * int64(rate[i]) / 1000
		}
		a.Cost = append(a.Cost, frame.Amount{Row: i, Value: c})
		code, reason := "", ""
		switch {
		case name[0] == 't':
			code, reason = "burstable", "burstable family"
		case memory[i] < 4096:
			code, reason = "small", "less than 4 GiB"
		case cpu[i] > 64000:
			code, reason = "giant", "more than 64 cores"
		case !arm && text(arch, i) == "arm64":
			code, reason = "arch", "arm64 is not allowed"
		}
		if code != "" {
			a.Denials = append(a.Denials, frame.Denial{Row: i, Code: code, Message: reason})
		}
	}
	return a
}
