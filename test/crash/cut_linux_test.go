package crash_test

import (
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/test/crash"
)

var cuts = flag.Int("cuts", 25, "how often the file system is cut")

// disk is an ext4 in a file, mounted through a loop device. It can be cut: all
// that is not on it yet, the journal included, is gone, as when power fails.
type disk struct {
	image, mount string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: cutting a file system needs root, to mount one")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: cutting a file system needs %s (Debian packages e2fsprogs and mount)", tool)
		}
	}
	dir := t.TempDir()
	d := &disk{image: filepath.Join(dir, "image"), mount: filepath.Join(dir, "mnt")}
	f, err := os.Create(d.image)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(2 << 30); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.mount, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-F", d.image)
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "loop", d.image, d.mount).CombinedOutput(); err != nil {
		t.Skipf("skipped: cutting a file system needs loop mounts, which this machine refuses: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", d.mount).Run() }) //nolint:noctx // the test's context has ended by now
	return d
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// cut shuts the file system down without flushing its journal, and returns the
// time just before.
func (d *disk) cut(t *testing.T) time.Time {
	t.Helper()
	f, err := os.Open(d.mount)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read, and on a dead file system
	const (
		ext4Shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
		noLogFlush   = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH
	)
	flags := uint32(noLogFlush)
	before := time.Now()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ext4Shutdown, uintptr(unsafe.Pointer(&flags))); errno != 0 {
		t.Fatalf("shut the file system down: %v", errno)
	}
	return before
}

func (d *disk) remount(t *testing.T) {
	t.Helper()
	run(t, "umount", d.mount)
	run(t, "mount", "-o", "loop", d.image, d.mount)
}

// storms cuts a storm's disk n times and returns what was found.
func (d *disk) storms(t *testing.T, n int, nosync bool) *crash.Verdict {
	t.Helper()
	v := crash.NewVerdict()
	r := &resume{cursors: map[string]store.Revision{}}
	if nosync {
		r = nil // what was lost is missed, too
	}
	dir := filepath.Join(d.mount, "store")
	for range n {
		child, begun, acks := start(t, dir, v, nosync)
		<-begun
		time.Sleep(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		before := d.cut(t)
		_ = child.Process.Kill() // it may have ended by itself, unable to write
		got := <-acks
		_ = child.Wait()
		d.remount(t)
		judge(t, dir, v, r, got, before)
	}
	return v
}

// TestCut takes the disk away under the storm. Acknowledgements given after
// the cut has begun do not count: a sync may return success inside it.
func TestCut(t *testing.T) {
	d := newDisk(t)
	if testing.Short() {
		*cuts = min(*cuts, 5)
	}
	v := d.storms(t, *cuts, false)
	t.Logf("%d cuts: %v", *cuts, v)
	if v.Lost+v.Torn+v.Missed > 0 {
		t.Error("something acknowledged is gone")
	}
}

// TestCutWithoutSync is the control: without syncing, the same cuts do lose.
func TestCutWithoutSync(t *testing.T) {
	d := newDisk(t)
	for i := range 10 {
		v := d.storms(t, 1, true)
		t.Logf("cut %d without sync: %v", i+1, v)
		if v.Lost > 0 {
			return
		}
		d.remount(t)
		run(t, "rm", "-rf", filepath.Join(d.mount, "store"))
	}
	t.Error("nothing was lost without syncing; TestCut shows nothing")
}
