package h2

import (
	"encoding/binary"
	"runtime"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// write writes what is queued until the connection ends.
func (c *conn) write() {
	var taken [][]byte
	for {
		c.mu.Lock()
		if c.queued == 0 {
			c.writing = false
			if c.closed != nil {
				c.mu.Unlock()
				_ = c.tls.NetConn().SetReadDeadline(past) // the reader need not wait
				return
			}
			c.mu.Unlock()
			<-c.wake
			// Whoever was woken by the same event has something to add.
			runtime.Gosched()
			continue
		}
		pace := c.pace
		taken, c.out, c.queued, c.pace = c.out, taken[:0], 0, nil
		c.next()
		c.mu.Unlock()
		if err := c.pass(taken, pace); err != nil {
			c.end(err)
			_ = c.tls.NetConn().Close() // the reader need not wait
			return
		}
		clear(taken)
	}
}

// pass writes chunks to the client at once, and gives them back. One that has
// many lets others run in between, who may have little to do.
func (c *conn) pass(chunks [][]byte, pace Pace) error {
	if c.below != nil {
		c.below.begin()
	}
	if pace != nil {
		defer pace.Rest()
	}
	for i, p := range chunks {
		switch {
		case pace != nil:
			pace.Work()
		case i > 0:
			runtime.Gosched()
		}
		if _, err := c.tls.Write(p); err != nil {
			return err
		}
		put(p)
	}
	if c.below == nil {
		return nil
	}
	return c.below.flush()
}

// wakeWriter has the writer look at the queue. The caller holds the lock.
func (c *conn) wakeWriter() {
	if c.writing {
		return
	}
	c.writing = true
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next lets the first in line go on, when there is room. The caller holds the
// lock.
func (c *conn) next() {
	if len(c.line) > 0 && c.free() > 0 {
		st := c.line[0]
		c.line = c.line[1:]
		st.turn.Signal()
	}
}

// free is how many bytes of data may be queued. The caller holds the lock.
func (c *conn) free() int64 {
	if c.queued >= mostQueued {
		return 0
	}
	return c.window
}

// stay takes a stream out of the line. The caller holds the lock.
func (c *conn) stay(st *stream) {
	if i := slices.Index(c.line, st); i >= 0 {
		c.line = slices.Delete(c.line, i, i+1)
	}
}

// frame queues a frame. The caller holds the lock and wakes the writer.
func (c *conn) frame(kind http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	size := len(payload)
	head := [9]byte{byte(size >> 16), byte(size >> 8), byte(size), byte(kind), byte(flags)} //nolint:gosec // bytes of it
	binary.BigEndian.PutUint32(head[5:], id)
	c.queue(head[:])
	c.queue(payload)
}

// queue queues bytes, in as many chunks as it takes. The caller holds the lock.
func (c *conn) queue(p []byte) {
	c.queued += len(p)
	for len(p) > 0 {
		last := len(c.out) - 1
		if last < 0 || len(c.out[last]) == chunkSize {
			c.out = append(c.out, buffer())
			last++
		}
		n := min(len(p), chunkSize-len(c.out[last]))
		c.out[last] = append(c.out[last], p[:n]...)
		p = p[n:]
	}
}

// headers queues the header fields that the encoder has made, in as many frames
// as it takes. The caller holds the lock and wakes the writer.
func (c *conn) headers(id uint32, end bool) {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for rest := c.fields; ; kind, flags = http2.FrameContinuation, 0 {
		n := min(len(rest), int(c.maxFrame))
		if n == len(rest) {
			flags |= http2.FlagHeadersEndHeaders
		}
		c.frame(kind, flags, id, rest[:n])
		if rest = rest[n:]; len(rest) == 0 {
			break
		}
	}
	c.fields = c.fields[:0]
}

// settings queues what we begin with. The caller holds the lock.
func (c *conn) settings() {
	values := []http2.Setting{
		{ID: http2.SettingMaxFrameSize, Val: maxRead},
		{ID: http2.SettingMaxConcurrentStreams, Val: c.server.MaxStreams},
		{ID: http2.SettingMaxHeaderListSize, Val: c.server.MaxHeaderBytes},
		{ID: http2.SettingInitialWindowSize, Val: streamRoom},
	}
	var payload []byte
	for _, v := range values {
		payload = binary.BigEndian.AppendUint16(payload, uint16(v.ID))
		payload = binary.BigEndian.AppendUint32(payload, v.Val)
	}
	c.frame(http2.FrameSettings, 0, 0, payload)
	c.windowUpdate(0, connRoom-65535)
	c.wakeWriter()
}

// windowUpdate says that the client may send more. The caller holds the lock
// and wakes the writer.
func (c *conn) windowUpdate(id uint32, n int64) {
	c.frame(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, uint32(n))) //nolint:gosec // within a window
}

// reset ends a stream. The caller holds the lock.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	c.frame(http2.FrameRSTStream, 0, id, binary.BigEndian.AppendUint32(nil, uint32(code)))
	c.wakeWriter()
}

// goAway tells the client that its new requests are not heard any more. The
// caller holds the lock.
func (c *conn) goAway(code http2.ErrCode) {
	if c.closed != nil || c.leaving && code == http2.ErrCodeNo {
		return
	}
	if !c.leaving {
		c.leaving, c.heeded = true, c.highest
	}
	payload := binary.BigEndian.AppendUint32(nil, c.heeded)
	c.frame(http2.FrameGoAway, 0, 0, binary.BigEndian.AppendUint32(payload, uint32(code)))
	c.wakeWriter()
}
