package wasm

import (
	"context"
	"encoding/binary"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// Errors of WASI.
const (
	wasiOK     = 0
	wasiBadFD  = 8
	wasiFault  = 21
	wasiInval  = 28
	wasiNoSys  = 52
	epoch      = 1_640_995_200_000_000_000 // 2022-01-01T00:00:00Z in nanoseconds
	tick       = 1_000_000                 // nanoseconds between two readings of the clock
	randomSeed = 0x9e3779b97f4a7c15
)

// wasiFunc is one function of the subset: its parameters and what it does. It returns an
// error number.
type wasiFunc struct {
	params string // i for i32, I for i64
	run    func(ctx context.Context, c *call, mod api.Module, s []uint64) uint32
}

// wasiFuncs is the subset of WASI that guests may import: what the runtime of Go links.
// Nothing in it depends on the machine, the time or chance.
var wasiFuncs = map[string]wasiFunc{
	"args_get":          {"ii", nothing},
	"args_sizes_get":    {"ii", twoZeros},
	"environ_get":       {"ii", nothing},
	"environ_sizes_get": {"ii", twoZeros},
	"clock_time_get": {"iIi", func(_ context.Context, c *call, mod api.Module, s []uint64) uint32 {
		// The wall clock stands still: time comes in the frame. The monotonic clock moves
		// with each reading, or a guest that sleeps would never wake.
		now := uint64(epoch)
		switch uint32(s[0]) { // of an i32 only the lower half counts
		case 0:
		case 1, 2, 3:
			c.state.ticks++
			now = c.state.ticks * tick
		default:
			return wasiInval
		}
		return store64(mod, uint32(s[2]), now)
	}},
	"random_get": {"ii", func(ctx context.Context, c *call, mod api.Module, s []uint64) uint32 {
		size := uint32(s[1])
		b, ok := mod.Memory().Read(uint32(s[0]), size)
		if !ok {
			return wasiFault
		}
		c.charge(ctx, mod, int64(size)/8)
		for i := range b { // a fixed sequence, begun anew in each call
			c.random ^= c.random << 13
			c.random ^= c.random >> 7
			c.random ^= c.random << 17
			b[i] = byte(c.random >> 32)
		}
		return wasiOK
	}},
	"sched_yield": {"", nothing},
	"proc_exit": {"i", func(_ context.Context, _ *call, _ api.Module, s []uint64) uint32 {
		panic(&exitError{uint32(s[0])})
	}},
	"poll_oneoff": {"iiii", poll},
	"fd_write":    {"iiii", write},
	"fd_close":    {"i", badFD},
	"fd_fdstat_get": {"ii", func(_ context.Context, _ *call, mod api.Module, s []uint64) uint32 {
		if uint32(s[0]) > 2 {
			return wasiBadFD
		}
		b, ok := mod.Memory().Read(uint32(s[1]), 24)
		if !ok {
			return wasiFault
		}
		clear(b)
		b[0] = 2                                   // a character device
		binary.LittleEndian.PutUint64(b[8:], 1<<6) // with the right to write
		return wasiOK
	}},
	"fd_fdstat_set_flags": {"ii", nothing},
	"fd_prestat_get":      {"ii", badFD},
	"fd_prestat_dir_name": {"iii", badFD},
}

func nothing(context.Context, *call, api.Module, []uint64) uint32 { return wasiOK }
func badFD(context.Context, *call, api.Module, []uint64) uint32   { return wasiBadFD }

func twoZeros(_ context.Context, _ *call, mod api.Module, s []uint64) uint32 {
	if !mod.Memory().WriteUint32Le(uint32(s[0]), 0) || !mod.Memory().WriteUint32Le(uint32(s[1]), 0) {
		return wasiFault
	}
	return wasiOK
}

func store64(mod api.Module, ptr uint32, v uint64) uint32 {
	if !mod.Memory().WriteUint64Le(ptr, v) {
		return wasiFault
	}
	return wasiOK
}

// write makes log lines of standard output and error.
func write(ctx context.Context, c *call, mod api.Module, s []uint64) uint32 {
	fd, vectors, count := uint32(s[0]), uint32(s[1]), uint32(s[2])
	if fd != 1 && fd != 2 {
		return wasiBadFD
	}
	if count > 1024 {
		return wasiInval
	}
	list, ok := mod.Memory().Read(vectors, 8*count)
	if !ok {
		return wasiFault
	}
	total := uint32(0)
	for i := range count {
		ptr := binary.LittleEndian.Uint32(list[8*i:])
		size := binary.LittleEndian.Uint32(list[8*i+4:])
		b, ok := mod.Memory().Read(ptr, size)
		if !ok {
			return wasiFault
		}
		c.charge(ctx, mod, 8+int64(size)/16)
		c.write(int(fd-1), b)
		total += size
	}
	if !mod.Memory().WriteUint32Le(uint32(s[3]), total) {
		return wasiFault
	}
	return wasiOK
}

// poll answers every subscription at once: a guest cannot wait for anything.
func poll(ctx context.Context, c *call, mod api.Module, s []uint64) uint32 {
	const subscription, event = 48, 32
	in, out, count := uint32(s[0]), uint32(s[1]), uint32(s[2])
	if count == 0 || count > 1024 {
		return wasiInval
	}
	c.charge(ctx, mod, 8*int64(count))
	subs, ok := mod.Memory().Read(in, subscription*count)
	if !ok {
		return wasiFault
	}
	events, ok := mod.Memory().Read(out, event*count)
	if !ok {
		return wasiFault
	}
	for i := range count {
		sub, e := subs[subscription*i:], events[event*i:event*(i+1)]
		user, kind := binary.LittleEndian.Uint64(sub), sub[8]
		if kind == 0 { // a sleep: the clock jumps
			until := min(binary.LittleEndian.Uint64(sub[24:])/tick, 1<<40)
			if binary.LittleEndian.Uint16(sub[40:])&1 == 0 {
				until += c.state.ticks
			}
			c.state.ticks = max(c.state.ticks, until)
		}
		clear(e)
		binary.LittleEndian.PutUint64(e, user)
		if kind != 0 {
			binary.LittleEndian.PutUint16(e[8:], wasiNoSys)
		}
		e[10] = kind
	}
	if !mod.Memory().WriteUint32Le(uint32(s[3]), count) {
		return wasiFault
	}
	return wasiOK
}

func wasi(ctx context.Context, rt wazero.Runtime) error {
	b := rt.NewHostModuleBuilder(wasiModule)
	for name, f := range wasiFuncs {
		results := []api.ValueType{api.ValueTypeI32}
		if name == "proc_exit" {
			results = nil
		}
		b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(ctx context.Context, mod api.Module, s []uint64) {
			c := callOf(ctx, mod)
			if mod.Memory() == nil {
				panic(errPointer)
			}
			c.charge(ctx, mod, 1)
			if errno := f.run(ctx, c, mod, s); results != nil {
				s[0] = uint64(errno)
			}
		}), valueTypes(f.params), results).Export(name)
	}
	_, err := b.Instantiate(ctx)
	return err
}

func valueTypes(params string) []api.ValueType {
	var list []api.ValueType
	for _, p := range params {
		if p == 'I' {
			list = append(list, api.ValueTypeI64)
		} else {
			list = append(list, api.ValueTypeI32)
		}
	}
	return list
}
