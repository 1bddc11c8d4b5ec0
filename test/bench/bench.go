// Package bench measures Setpoint beside its peers, in one process and one
// run, and says how the two compare. It is a module of its own, so that the
// product does not import its peers.
package bench

import (
	"syscall"
	"time"
)

// CPU is the processor time, user and system, that this process has used.
func CPU() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
