//go:build unix

package rego_test

import (
	"syscall"
	"time"
)

// spent is the processor time of this process so far. Unlike wall time it does not grow
// while others have the processor.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
