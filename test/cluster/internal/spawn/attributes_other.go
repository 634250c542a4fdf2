//go:build !linux

package spawn

import "syscall"

// attributes gives a process a group of its own. Only Linux can tie it to this
// process: elsewhere it outlives one that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
