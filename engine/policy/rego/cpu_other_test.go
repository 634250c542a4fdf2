//go:build !unix

package rego_test

import "time"

var started = time.Now()

// spent is wall time where processor time is not to be had.
func spent() time.Duration { return time.Since(started) }
