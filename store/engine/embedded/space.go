package embedded

import (
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"setpoint.dev/setpoint/store/engine"
)

const (
	defaultReserve = 64 << 20
	// The disk is asked for its free room at most this often, or when this
	// share of the reserve was written.
	spaceAge   = 250 * time.Millisecond
	spaceShare = 8
)

// space refuses commits while there is still room: Pebble needs some to flush
// and compact, and a disk filled to the last byte is what leaves a commit's
// outcome unknown. It belongs to the committer.
type space struct {
	disk    vfs.FS
	dir     string
	reserve int64

	asked   time.Time
	free    int64
	unknown bool  // the file system does not say
	written int64 // since asked
}

// check returns ErrNoSpace when size more bytes would leave less than the
// reserve.
func (s *space) check(size int64) error {
	if s.reserve < 0 {
		return nil
	}
	s.written += size
	low := s.free-s.written < s.reserve
	if low || time.Since(s.asked) > spaceAge || s.written > s.reserve/spaceShare {
		s.ask()
		s.written = size
	}
	if !s.unknown && s.free-size < s.reserve {
		return fmt.Errorf("%w: %s has %d bytes left, %d are kept free", engine.ErrNoSpace, s.dir, s.free, s.reserve)
	}
	return nil
}

// checkNow is check for nothing in particular, with a fresh answer.
func (s *space) checkNow() error {
	s.asked = time.Time{}
	return s.check(0)
}

func (s *space) ask() {
	usage, err := s.disk.GetDiskUsage(s.dir)
	s.unknown = err != nil
	s.free = int64(min(usage.AvailBytes, 1<<62))
	s.asked = time.Now()
}
