package cli

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// awaitEnd returns when a process has ended, or when ctx ends. A parent that was
// gone before it could be asked for is one whose child has another parent.
func awaitEnd(ctx context.Context, parent int) {
	fd, err := unix.PidfdOpen(parent, 0)
	if errors.Is(err, unix.ESRCH) || err == nil && os.Getppid() != parent {
		return
	}
	if err != nil { // a kernel that has no such thing
		poll(ctx, parent)
		return
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, -1); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
