// Package spawn starts processes that do not outlive this one.
package spawn

import (
	"os/exec"
	"runtime"
	"sync"
)

// Spawner starts processes from one thread that lives as long as it does: on Linux, the
// kernel kills a process when the thread that started it ends, which must not be before
// this process does.
type Spawner struct {
	work chan func()
	once sync.Once
}

// New returns a Spawner. It needs to be stopped.
func New() *Spawner {
	s := &Spawner{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range s.work {
			f()
		}
	}()
	return s
}

// Start starts cmd in a process group of its own, so that ^C at a terminal is for this
// process alone, which then stops others in order. It sets cmd.SysProcAttr. Elsewhere
// than on Linux, the process outlives this one if this one is killed.
func (s *Spawner) Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = attributes()
	started := make(chan error)
	s.work <- func() { started <- cmd.Start() }
	return <-started
}

// Stop ends the thread. Processes that still run may be killed by that. Start may not be
// called any more.
func (s *Spawner) Stop() { s.once.Do(func() { close(s.work) }) }
