// Package memory measures the most memory a piece of work needs.
package memory

import (
	"bytes"
	"os"
	"runtime/metrics"
	"strconv"
	"time"
)

// interval is how often the heap is looked at.
const interval = 5 * time.Millisecond

// Peak is the most memory seen at once, in bytes.
type Peak struct {
	// Heap is memory of objects, live or not yet collected.
	Heap uint64
	// Resident is memory of the whole process (VmHWM), the work's input included; 0
	// where the system does not tell.
	Resident uint64
}

// Watch looks at memory until it is stopped.
type Watch struct {
	stop chan struct{}
	done chan uint64
}

// Start begins to watch, and resets the system's own high-water mark if it can.
func Start() *Watch {
	// 5 resets VmHWM; where that is not possible the mark is the process's so far.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	w := &Watch{stop: make(chan struct{}), done: make(chan uint64)}
	go func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		peak := heap()
		for {
			select {
			case <-tick.C:
				peak = max(peak, heap())
			case <-w.stop:
				w.done <- max(peak, heap())
				return
			}
		}
	}()
	return w
}

// Stop ends the watch.
func (w *Watch) Stop() Peak {
	close(w.stop)
	return Peak{Heap: <-w.done, Resident: resident()}
}

func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func resident() uint64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(raw) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmHWM:")); ok {
			kib, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}
