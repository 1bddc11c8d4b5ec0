// Package log reads and rotates the log files that container runtimes write.
//
// In comes the path of a container's log and what somebody wants of it; out go
// the bytes that the container wrote, to one writer or two. A line of the file is
// a record:
//
//	2016-10-06T00:17:09.669794202Z stdout F what was written
//	time                           stream tag
//
// Tag P says that the next record goes on with the same line. Lines that are no
// records are left out. Read follows a file beyond its rotation, and every line
// once; Rotator does the rotating.
package log

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
)

// How a log is followed: lookAgain is how long nothing may be heard of a file
// before it is looked at all the same, and askAgain how often at most the
// runtime is asked whether the container still runs.
const (
	lookAgain = time.Second
	askAgain  = 100 * time.Millisecond
)

// Read writes what opts ask for of the log at path. A writer that is nil gets
// nothing, and what would be for it does not count.
//
// With opts.Follow it goes on until ctx ends, which is an error, or until running
// says that the container has ended and all that it wrote has been read.
// opts.Previous and opts.Container are for those who find the path.
func Read(ctx context.Context, path string, opts *corev1.PodLogOptions, running func(ctx context.Context) (bool, error), stdout, stderr io.Writer) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("failed to open log file %q: %w", path, err)
	}
	r := &reader{path: path, file: file, running: running, follow: opts.Follow, out: newWriter(opts, stdout, stderr), left: -1}
	defer func() { _ = r.file.Close() }() // it is only read
	if opts.TailLines != nil {
		at, err := tail(file, *opts.TailLines)
		if err != nil {
			return fmt.Errorf("failed to tail %d lines of log file %q: %w", *opts.TailLines, path, err)
		}
		if _, err := file.Seek(at, io.SeekStart); err != nil {
			return fmt.Errorf("failed to seek %d in log file %q: %w", at, path, err)
		}
		if !opts.Follow {
			r.left = *opts.TailLines
		}
	}
	r.buffered = bufio.NewReader(file)
	if err := r.read(ctx); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

// errEnough says that all has been written that was asked for.
var errEnough = errors.New("enough")

// reader is on its way through a log.
type reader struct {
	path     string
	file     *os.File
	buffered *bufio.Reader
	running  func(ctx context.Context) (bool, error)
	follow   bool
	out      *writer
	left     int64 // records that may still be written; negative is any number

	rest    []byte // of a record whose end has not been written yet
	asked   time.Time
	ended   bool // the container has: what is there now is all
	rotated bool // the file has another name, and is read once more
}

// read writes records until there are no more.
func (r *reader) read(ctx context.Context) error {
	changes := &changes{dir: filepath.Dir(r.path)}
	defer changes.close()
	for r.left != 0 {
		line, err := r.buffered.ReadBytes('\n')
		r.rest = append(r.rest, line...)
		switch {
		case err == nil:
			if err := r.take(); err != nil {
				return err
			}
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("failed to read log file %q: %w", r.path, err)
		case !r.follow || r.ended:
			return r.take() // what was begun is better than nothing
		}
		if err := r.wait(ctx, changes); err != nil {
			return err
		}
	}
	return nil
}

// take writes the record that has been read.
func (r *reader) take() error {
	line := r.rest
	r.rest = r.rest[:0]
	rec, ok := parse(line)
	if !ok {
		return nil
	}
	if r.left > 0 {
		r.left--
	}
	return r.out.write(rec)
}

// wait returns when there may be more to read.
func (r *reader) wait(ctx context.Context, changes *changes) error {
	if fresh, err := changes.begin(); err != nil || fresh {
		return err // something may have been written before the watch began
	}
	if moved, err := r.reopen(); err != nil || moved {
		return err
	}
	if time.Since(r.asked) >= askAgain {
		r.asked = time.Now()
		runs, err := r.running(ctx)
		if err != nil {
			return err
		}
		if !runs {
			r.ended = true
			return nil
		}
	}
	return changes.wait(ctx)
}

// reopen goes on to the file that has taken the place of the one that is read.
// That one is read to its end first: the runtime may have written to it after it
// was renamed, and does so no more once there is a new one.
func (r *reader) reopen() (moved bool, err error) {
	is, err := os.Stat(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // renamed, and not made anew yet
	}
	if err != nil {
		return false, err
	}
	was, err := r.file.Stat()
	if err != nil || os.SameFile(is, was) {
		return false, err
	}
	if !r.rotated {
		r.rotated = true
		return true, nil
	}
	next, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_ = r.file.Close() // it was only read
	r.file, r.rotated = next, false
	r.buffered.Reset(next)
	return true, r.take()
}

// changes hears of changes to the files of a folder.
type changes struct {
	dir     string
	watcher *fsnotify.Watcher
}

// begin begins to listen; fresh says that it had not before.
func (c *changes) begin() (fresh bool, err error) {
	if c.watcher != nil {
		return false, nil
	}
	if c.watcher, err = fsnotify.NewWatcher(); err != nil {
		return false, fmt.Errorf("failed to create fsnotify watcher: %w", err)
	}
	if err := c.watcher.Add(c.dir); err != nil {
		return false, fmt.Errorf("failed to watch directory %q: %w", c.dir, err)
	}
	return true, nil
}

// wait returns after a change, or after a while.
func (c *changes) wait(ctx context.Context) error {
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.watcher.Events:
	case <-c.watcher.Errors: // whatever was missed is seen by looking
	case <-again.C:
	}
	return nil
}

func (c *changes) close() {
	if c.watcher != nil {
		_ = c.watcher.Close() // nobody listens any more
	}
}

// block is how much of a file is looked at at once for line ends.
const block = 4096

// tail is where the last n lines of a file begin. What comes after the last line
// end is no line.
func tail(f *os.File, n int64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, block)
	seen := int64(0) // line ends behind the current place
	for end := info.Size(); end > 0; {
		from := max(0, end-block)
		part := buf[:end-from]
		if _, err := f.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			if seen++; seen > n {
				return from + int64(i) + 1, nil
			}
		}
		end = from
	}
	return 0, nil
}
