//go:build linux || darwin

package wasm

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// limitProcess limits this process to seconds of processor time and to memory bytes of
// address space more than it has, and lets others run first.
func limitProcess(seconds int, memory int64) error {
	set := func(what string, resource int, limit uint64) error {
		l := syscall.Rlimit{Cur: limit, Max: limit}
		if err := syscall.Setrlimit(resource, &l); err != nil {
			return fmt.Errorf("%s to %d: %w", what, limit, err)
		}
		return nil
	}
	if err := set("processor time", syscall.RLIMIT_CPU, uint64(seconds)); err != nil {
		return err
	}
	if err := set("core dumps", syscall.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if size, ok := addressSpace(); ok {
		if err := set("address space", syscall.RLIMIT_AS, size+uint64(memory)); err != nil {
			return err
		}
	}
	return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10)
}

// addressSpace is the size of this process: a Go program reserves much more than it uses.
// Where the system does not tell, the limit is left out.
func addressSpace() (uint64, bool) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	var pages uint64
	if _, err := fmt.Fscan(bytes.NewReader(b), &pages); err != nil {
		return 0, false
	}
	return pages * uint64(os.Getpagesize()), true
}
