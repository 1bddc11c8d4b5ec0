//go:build linux

package supervise

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// stream is one of a process's outputs.
type stream byte

const (
	stdout stream = 1
	stderr stream = 2
)

func (s stream) String() string {
	if s == stdout {
		return "stdout"
	}
	return "stderr"
}

// Compat: lines longer than this are cut into parts, as containerd does, and
// times have nine digits, which is how readers compare them.
const (
	longest    = 16 << 10
	timeFormat = "2006-01-02T15:04:05.000000000Z07:00"
)

// logFile is a container's log, in CRI's format: time, stream, F for a whole line
// or P for a part of one, text.
type logFile struct {
	path string

	mu sync.Mutex // guards the field below
	f  *os.File   // nil if there is no log
}

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	if path == "" {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return l, l.reopen()
}

// reopen goes on in a new file, after the old one was moved away.
func (l *logFile) reopen() error {
	if l.path == "" {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_ = l.f.Close()
	}
	l.f = f
	return nil
}

// write writes whole log lines. A disk that is full costs lines, not the
// container.
func (l *logFile) write(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_, _ = l.f.Write(b)
	}
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}

// lines turns output into log lines. What is no line yet waits for its end.
type lines struct {
	stream stream
	rest   []byte
}

// add gives the log lines that are complete with some more output.
func (l *lines) add(p []byte, now time.Time) []byte {
	l.rest = append(l.rest, p...)
	var out []byte
	for {
		end := bytes.IndexByte(l.rest, '\n')
		switch {
		case end >= 0 && end <= longest:
			out = l.line(out, now, 'F', l.rest[:end])
			l.rest = l.rest[end+1:]
		case len(l.rest) > longest:
			out = l.line(out, now, 'P', l.rest[:longest])
			l.rest = l.rest[longest:]
		default:
			l.rest = append([]byte(nil), l.rest...)
			return out
		}
	}
}

// end gives what is left when there will be no more output.
func (l *lines) end(now time.Time) []byte {
	if len(l.rest) == 0 {
		return nil
	}
	return l.line(nil, now, 'F', l.rest)
}

func (l *lines) line(out []byte, now time.Time, tag byte, text []byte) []byte {
	out = now.UTC().AppendFormat(out, timeFormat)
	out = append(out, ' ')
	out = append(out, l.stream.String()...)
	out = append(out, ' ', tag, ' ')
	out = append(out, text...)
	return append(out, '\n')
}

// copy takes what a process writes to the log and to those who attached, until
// nobody can write any more.
func (s *supervisor) copy(from *os.File, to stream) {
	s.ends = append(s.ends, from)
	s.copies.Go(func() {
		l := lines{stream: to}
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				if out := l.add(buf[:n], time.Now()); out != nil {
					s.log.write(out)
				}
				s.hub.output(to, buf[:n])
			}
			if err != nil {
				break // its end; of a terminal it is EIO
			}
		}
		if out := l.end(time.Now()); out != nil {
			s.log.write(out)
		}
	})
}
