package log

import (
	"bytes"
	"io"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// written is how times are shown, always as wide; read is how they may be
// written.
const (
	written = "2006-01-02T15:04:05.000000000Z07:00"
	read    = time.RFC3339Nano
)

// record is one entry of a log.
type record struct {
	time   time.Time
	stderr bool
	text   []byte // with its line end, unless the next record goes on
}

// parse reads a line of a log file; ok is false when it is no record. The text
// is the line's memory.
func parse(line []byte) (rec record, ok bool) {
	when, line, found := bytes.Cut(line, []byte{' '})
	if !found {
		return rec, false
	}
	stream, line, found := bytes.Cut(line, []byte{' '})
	if !found {
		return rec, false
	}
	tags, text, found := bytes.Cut(line, []byte{' '})
	if !found {
		return rec, false
	}
	var err error
	if rec.time, err = time.Parse(read, string(when)); err != nil {
		return rec, false
	}
	switch runtimeapi.LogStreamType(stream) {
	case runtimeapi.Stdout:
	case runtimeapi.Stderr:
		rec.stderr = true
	default:
		return rec, false
	}
	// More tags may come one day.
	tag, _, _ := bytes.Cut(tags, []byte(runtimeapi.LogTagDelimiter))
	if runtimeapi.LogTag(tag) == runtimeapi.LogTagPartial {
		text = bytes.TrimSuffix(text, []byte{'\n'})
	}
	rec.text = text
	return rec, true
}

// writer writes records as they are wanted.
type writer struct {
	stdout, stderr io.Writer
	since          time.Time
	stamped        bool  // lines begin with their time
	left           int64 // bytes that may still be written
	within         bool  // a line that has not ended
}

func newWriter(opts *corev1.PodLogOptions, stdout, stderr io.Writer) *writer {
	w := &writer{stdout: stdout, stderr: stderr, stamped: opts.Timestamps, left: math.MaxInt64}
	switch {
	case opts.SinceTime != nil:
		w.since = opts.SinceTime.Time
	case opts.SinceSeconds != nil:
		w.since = time.Now().Add(-time.Duration(*opts.SinceSeconds) * time.Second)
	}
	if opts.LimitBytes != nil {
		w.left = *opts.LimitBytes
	}
	return w
}

// write writes a record; errEnough says that it was the last.
func (w *writer) write(rec record) error {
	to := w.stdout
	if rec.stderr {
		to = w.stderr
	}
	begins := !w.within
	w.within = len(rec.text) > 0 && rec.text[len(rec.text)-1] != '\n'
	if to == nil || rec.time.Before(w.since) {
		return nil
	}
	text := rec.text
	if w.stamped && begins {
		text = append(append(rec.time.AppendFormat(nil, written), ' '), text...)
	}
	if int64(len(text)) > w.left {
		text = text[:w.left]
	}
	n, err := to.Write(text)
	if err != nil {
		return err
	}
	if w.left -= int64(n); w.left <= 0 {
		return errEnough
	}
	return nil
}
