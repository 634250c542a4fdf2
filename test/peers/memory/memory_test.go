package memory

import (
	"runtime"
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	const size = 256 << 20
	w := Start()
	b := make([]byte, size)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	time.Sleep(4 * interval) // real time: the watch is a ticker
	runtime.KeepAlive(b)
	b = nil
	runtime.GC()
	got := w.Stop()
	if got.Heap < size {
		t.Errorf("peak heap = %d bytes, want at least %d", got.Heap, size)
	}
	if got.Resident != 0 && got.Resident < size {
		t.Errorf("peak resident = %d bytes, want at least %d", got.Resident, size)
	}
	again := Start().Stop()
	if again.Heap >= size {
		t.Errorf("peak heap of nothing = %d bytes, want less than %d", again.Heap, size)
	}
}
