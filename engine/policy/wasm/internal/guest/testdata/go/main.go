//go:build wasip1

// The Go test guest: the score rules of the benchmarks, and ways to misbehave.
//
// Build: GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -ldflags='-s -w' -o guest.wasm .
package main

import (
	"strings"
	"time"
	"unsafe"
)

func main() {}

//go:wasmimport dovetail_v1 log
func hostLog(level uint32, ptr unsafe.Pointer, size uint32)

//go:wasmimport wasi_snapshot_preview1 random_get
func randomGet(ptr unsafe.Pointer, size uint32) uint32

func logf(level uint32, s string) {
	if s != "" {
		hostLog(level, unsafe.Pointer(unsafe.StringData(s)), uint32(len(s)))
	}
}

var (
	request  []uint64 // 8-aligned
	response []uint64
	manifest = `{"name":"go-guest","version":"1.2.3","columns":["cost","offering.interruptionRate","instanceType.cpu","instanceType.memory","instanceType.family","instanceType.arch","offering.capacityType"],"uses":["nodePool.labels"],"timeResolution":"1m","guardrail":true}`
	settings string
	hoard    [][]byte
)

//go:wasmexport dv_abi_1
func abi() int32 { return 0 }

//go:wasmexport dv_alloc
func alloc(size uint32) uint32 {
	words := int(size+7) / 8
	if words > len(request) {
		request = make([]uint64, words)
	}
	return uint32(uintptr(unsafe.Pointer(&request[0])))
}

//go:wasmexport dv_describe
func describe() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.StringData(manifest))))<<32 | uint64(len(manifest))
}

//go:wasmexport dv_configure
func configure(ptr, size uint32) uint64 {
	settings = string(view(ptr, size))
	if strings.Contains(settings, `"refuse"`) {
		return failure("settings", "parameter refuse is not supported")
	}
	return 0
}

func view(ptr, size uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(uintptr(ptr))), size)
}

type frame struct {
	b    unsafe.Pointer
	rows int
}

func (f frame) u32(at uint32) uint32 { return *(*uint32)(unsafe.Add(f.b, at)) }

func (f frame) column(id uint16) unsafe.Pointer {
	n, dir := f.u32(16), f.u32(20)
	for i := range n {
		if *(*uint16)(unsafe.Add(f.b, dir+8*i)) == id {
			return unsafe.Add(f.b, f.u32(dir+8*i+4))
		}
	}
	return nil
}

func (f frame) text(id uint32) string {
	count, at := f.u32(32), f.u32(36)
	if id >= count {
		return ""
	}
	from, to := f.u32(at+4*id), f.u32(at+4*id+4)
	return unsafe.String((*byte)(unsafe.Add(f.b, at+4*(count+1)+from)), to-from)
}

func (f frame) context(key string) string {
	n, at := f.u32(24), f.u32(28)
	for i := range n {
		if e := at + 16*i; f.u32(e+4) == 4 && f.text(f.u32(e)) == key {
			return f.text(f.u32(e + 8))
		}
	}
	return ""
}

// writer appends a frame of words to the response buffer.
type writer struct{ b []byte }

func (w *writer) u16(v uint16) { w.b = append(w.b, byte(v), byte(v>>8)) }
func (w *writer) u32(v uint32) { w.b = append(w.b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24)) }

func buffer(words int) unsafe.Pointer {
	if words > len(response) {
		response = make([]uint64, words)
	}
	return unsafe.Pointer(&response[0])
}

type entry struct{ key, value string }

// records answers with context entries only.
func records(hook uint16, rows uint32, entries ...entry) uint64 {
	w := &writer{}
	var texts []string
	for _, e := range entries {
		texts = append(texts, e.key, e.value)
	}
	strs := 40 + 16*uint32(len(entries))
	w.u32(0x31465644)
	w.u16(hook)
	w.u16(0)
	w.u32(0)
	w.u32(rows)
	w.u32(0)
	w.u32(0)
	w.u32(uint32(len(entries)))
	w.u32(40)
	w.u32(uint32(len(texts)))
	w.u32(strs)
	for i := range entries {
		w.u32(uint32(2 * i))
		w.u32(4)
		w.u32(uint32(2*i + 1))
		w.u32(0)
	}
	at := uint32(0)
	w.u32(0)
	for _, t := range texts {
		at += uint32(len(t))
		w.u32(at)
	}
	for _, t := range texts {
		w.b = append(w.b, t...)
	}
	p := buffer((len(w.b) + 7) / 8)
	out := unsafe.Slice((*byte)(p), len(w.b))
	copy(out, w.b)
	*(*uint32)(unsafe.Add(p, 8)) = uint32(len(w.b))
	return uint64(uintptr(p))<<32 | uint64(len(w.b))
}

func failure(code, message string) uint64 {
	return records(0xffff, 0, entry{"error.code", code}, entry{"error.message", message})
}

const reasons = "burstableburstable familysmallless than 4 GiBgiantmore than 64 coresarcharm64 is not allowed"

var reasonEnds = [...]uint32{9, 25, 30, 45, 50, 68, 72, 92}

//go:wasmexport dv_score
func score(ptr, size uint32) uint64 {
	f := frame{b: unsafe.Pointer(uintptr(ptr))}
	f.rows = int(f.u32(12))
	rows := uint32(f.rows)
	cost := unsafe.Slice((*int64)(f.column(1)), rows)
	rate := unsafe.Slice((*int32)(f.column(3)), rows)
	cpu := unsafe.Slice((*int32)(f.column(4)), rows)
	memory := unsafe.Slice((*int32)(f.column(5)), rows)
	family := unsafe.Slice((*uint32)(f.column(8)), rows)
	arch := unsafe.Slice((*uint32)(f.column(10)), rows)
	capacity := unsafe.Slice((*uint32)(f.column(12)), rows)
	licensed := f.context("nodePool.labels.licensed") == "true"
	arm := f.context("nodePool.labels.arm") == "true"

	up8 := func(n uint32) uint32 { return (n + 7) &^ 7 }
	costAt := uint32(40 + 8*4)
	denyAt := costAt + 8*rows
	reasonAt := up8(denyAt + rows)
	codeAt := up8(reasonAt + 4*rows)
	textAt := up8(codeAt + 4*rows)
	length := up8(textAt + 4*uint32(len(reasonEnds)+1) + uint32(len(reasons)))
	p := buffer(int(length) / 8)
	for i, v := range [...]uint32{0x31465644, 1, length, rows, 4, 40, 0, 0, uint32(len(reasonEnds)), textAt,
		1 | 2<<16, costAt, 2 | 5<<16, denyAt, 3 | 4<<16, reasonAt, 4 | 4<<16, codeAt} {
		*(*uint32)(unsafe.Add(p, 4*i)) = v
	}
	outCost := unsafe.Slice((*int64)(unsafe.Add(p, costAt)), rows)
	outDeny := unsafe.Slice((*byte)(unsafe.Add(p, denyAt)), rows)
	outReason := unsafe.Slice((*uint32)(unsafe.Add(p, reasonAt)), rows)
	outCode := unsafe.Slice((*uint32)(unsafe.Add(p, codeAt)), rows)
	ends := unsafe.Slice((*uint32)(unsafe.Add(p, textAt)), len(reasonEnds)+1)
	ends[0] = 0
	copy(ends[1:], reasonEnds[:])
	copy(unsafe.Slice((*byte)(unsafe.Add(p, textAt+4*uint32(len(ends)))), len(reasons)), reasons)

	for i := range rows {
		name := f.text(family[i])
		weight := int64(1000)
		switch {
		case strings.HasPrefix(name, "c7") || strings.HasPrefix(name, "m7"):
			weight = 950
		case strings.HasPrefix(name, "r"):
			weight = 1050
		}
		c := cost[i] * weight / 1000
		if licensed {
			c += int64(cpu[i]) / 1000 * 12500
		}
		if f.text(capacity[i]) == "spot" {
			c += cost[i] * int64(rate[i]) / 1000
		}
		outCost[i] = c
		reason := ^uint32(0)
		switch {
		case strings.HasPrefix(name, "t"):
			reason = 0
		case memory[i] < 4096:
			reason = 2
		case cpu[i] > 64000:
			reason = 4
		case !arm && f.text(arch[i]) == "arm64":
			reason = 6
		}
		outDeny[i], outReason[i], outCode[i] = 0, reason, reason
		if reason != ^uint32(0) {
			outDeny[i], outReason[i] = 1, reason+1
		}
	}
	return uint64(uintptr(p))<<32 | uint64(length)
}

//go:wasmexport dv_admit
func admit(ptr, size uint32) uint64 {
	f := frame{b: unsafe.Pointer(uintptr(ptr))}
	rows := f.u32(12)
	switch f.context("test.mode") {
	case "panic":
		var m map[string]int
		m["x"] = 1
	case "spin":
		for i := 0; ; i++ {
			if i < 0 {
				break
			}
		}
	case "hoard":
		for {
			hoard = append(hoard, make([]byte, 100_000))
		}
	case "fail":
		return failure("rates", "no rate table")
	case "print":
		println("to standard error")
		logf(2, "to the log")
	case "flood":
		for range 1000 {
			logf(1, strings.Repeat("x", 5000))
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "clock":
		now := time.Now().UTC().Format(time.RFC3339Nano)
		return records(3, rows, entry{"warn", now})
	case "random":
		b := make([]byte, 8)
		randomGet(unsafe.Pointer(&b[0]), 8)
		return records(3, rows, entry{"warn", string("abcdefghijklmnopqrstuvwxyz0123456789"[b[0]%36]) + string("abcdefghijklmnopqrstuvwxyz0123456789"[b[7]%36])})
	case "settings":
		return records(3, rows, entry{"warn", settings})
	}
	return records(3, rows, entry{"warn", "hello"}, entry{"code", "greeting"})
}
