package embedded

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

const lockName = "LOCK"

// lockFolder takes the folder for this process until the returned closer is
// closed or the process ends, however it ends. The error names who has it.
//
// The lock is a flock: it belongs to the open file, so a second Open in the
// same process is turned away like one in another. A file system that is not
// the machine's has its own lock.
func lockFolder(fs vfs.FS, dir string) (io.Closer, error) {
	path := fs.PathJoin(dir, lockName)
	if vfs.Root(fs) != vfs.Default {
		lock, err := fs.Lock(path)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		return lock, nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("folder %s is in use by process %s", dir, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The pid is a courtesy to whoever is turned away: the lock holds without.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}
