package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Long work shows what it does: on a terminal in one line that changes, elsewhere in a
// line every few seconds.
const (
	firstTick = 500 * time.Millisecond
	termTick  = 200 * time.Millisecond
	plainTick = 5 * time.Second
)

// progress tells on w what goes on.
type progress struct {
	w        io.Writer
	terminal bool
	mu       sync.Mutex
	stage    string
	since    time.Time
	shown    bool
	done     chan struct{}
	once     sync.Once
	ended    sync.WaitGroup
}

// newProgress starts to tell on w; stop must be called.
func newProgress(w io.Writer) *progress { return startProgress(w, isTerminal(w)) }

func startProgress(w io.Writer, terminal bool) *progress {
	p := &progress{w: w, terminal: terminal, done: make(chan struct{})}
	p.ended.Go(p.loop)
	return p
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// begin names what begins now.
func (p *progress) begin(stage string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage, p.since = stage, time.Now()
}

func (p *progress) loop() {
	tick := plainTick
	wait := plainTick
	if p.terminal {
		tick, wait = termTick, firstTick
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-timer.C:
			p.show()
			timer.Reset(tick)
		}
	}
}

func (p *progress) show() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage == "" {
		return
	}
	seconds := time.Since(p.since).Seconds()
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s … %.1f s", p.stage, seconds)
		p.shown = true
		return
	}
	fmt.Fprintf(p.w, "%s … %.0f s\n", p.stage, seconds)
}

// stop ends the telling and clears the line. It may be called more than once.
func (p *progress) stop() {
	p.once.Do(func() {
		close(p.done)
		p.ended.Wait()
		if p.shown {
			fmt.Fprint(p.w, "\r\x1b[K")
		}
	})
}
