//go:build !linux

package cluster

import "syscall"

// processAttributes gives a process a group of its own. Only Linux can tie it to this
// process: elsewhere it outlives one that is killed.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
