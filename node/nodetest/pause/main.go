//go:build unix

// Command pause is the process of a sandbox: it waits until it is told to stop,
// and meanwhile buries the orphans that it inherits as process 1 of a pod whose
// containers share their processes.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for bury() {
		}
	}
}

// bury says whether there was a dead child.
func bury() bool {
	pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	return err == nil && pid > 0
}
