package spawn

import "syscall"

// attributes ties a process to the thread that starts it: it does not outlive
// this process even if this one is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
