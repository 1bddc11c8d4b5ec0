//go:build linux

package supervise

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Frames of an attached connection: a byte that says what, four that say how
// long, and that many bytes.
const (
	frameStdin  = 0
	frameStdout = byte(stdout)
	frameStderr = byte(stderr)
	frameEOF    = 3 // no more stdin
	frameResize = 4 // width and height, two bytes each

	frameHead = 5
	frameMost = 1 << 20
)

func writeFrame(w io.Writer, kind byte, b []byte) error {
	out := make([]byte, frameHead, frameHead+len(b))
	out[0] = kind
	binary.BigEndian.PutUint32(out[1:], uint32(len(b)))
	_, err := w.Write(append(out, b...))
	return err
}

func readFrame(r io.Reader) (kind byte, b []byte, err error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > frameMost {
		return 0, nil, errors.New("a frame is too long")
	}
	b = make([]byte, n)
	_, err = io.ReadFull(r, b)
	return head[0], b, err
}

// slow is how long one who attached may keep output waiting before being cut
// off.
const slow = 10 * time.Second

// hub is where a container's process meets those who attached.
type hub struct {
	input    *os.File // nil if it reads nothing
	once     bool     // input ends with the first who attached to it
	terminal *os.File // nil if it has none

	mu       sync.Mutex // guards the fields below
	attached map[*net.UnixConn]request
	closed   bool
}

func newHub() *hub { return &hub{attached: map[*net.UnixConn]request{}} }

// output hands output to all who want it.
func (h *hub) output(from stream, b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for conn, want := range h.attached {
		if (from == stdout && !want.Stdout) || (from == stderr && !want.Stderr) {
			continue
		}
		_ = conn.SetWriteDeadline(time.Now().Add(slow))
		if err := writeFrame(conn, byte(from), b); err != nil {
			delete(h.attached, conn)
			_ = conn.Close()
		}
	}
}

// attach serves one who attached, until they leave or the output ends.
func (h *hub) attach(conn *net.UnixConn, want request) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	// The answer comes before any output.
	_ = respond(conn, response{})
	h.attached[conn] = want
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.attached, conn)
	}()
	for {
		kind, b, err := readFrame(conn)
		if err != nil {
			return
		}
		h.frame(kind, b, want)
	}
}

// frame does what one who attached asks.
func (h *hub) frame(kind byte, b []byte, want request) {
	switch kind {
	case frameStdin:
		if h.input != nil && want.Stdin {
			_, _ = h.input.Write(b)
		}
	case frameEOF:
		if h.input != nil && want.Stdin && h.once {
			_ = h.input.Close()
		}
	case frameResize:
		if h.terminal != nil && len(b) == 4 {
			_ = Resize(h.terminal, Size{Width: binary.BigEndian.Uint16(b), Height: binary.BigEndian.Uint16(b[2:])})
		}
	}
}

// close tells all who attached that there is no more.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for conn := range h.attached {
		_ = conn.CloseWrite()
	}
}
