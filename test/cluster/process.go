package cluster

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/dovetail-sh/dovetail/test/cluster/internal/spawn"
)

// process is a program that was started.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	// err is how it ended; read it when done is closed.
	err error
}

// startProcess runs a program in a process group of its own, with env added to this process'
// and its output appended to the file log.
func startProcess(spawner *spawn.Spawner, binary string, args, env []string, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.Command(binary, args...) //nolint:noctx // it outlives every context: stop ends it
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = file, file
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	if err := spawner.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		if p.err == nil {
			p.err = errors.New("exit status 0")
		}
		close(p.done)
	}()
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// stop signals the process and kills it if it has not ended within the timeout. It
// returns when it has.
func (p *process) stop(signal syscall.Signal, timeout time.Duration) {
	// One that has ended already cannot be signalled.
	_ = p.signal(signal)
	if signal != syscall.SIGKILL {
		// A paused process would take no notice.
		_ = p.signal(syscall.SIGCONT)
	}
	select {
	case <-p.done:
		return
	case <-time.After(timeout):
	}
	_ = p.signal(syscall.SIGKILL)
	<-p.done
}
