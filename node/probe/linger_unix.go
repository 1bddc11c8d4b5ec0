//go:build unix

package probe

import "golang.org/x/sys/unix"

// linger has a socket forgotten when it is closed. That it could not be is no
// reason not to probe.
func linger(fd uintptr) {
	_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
}
