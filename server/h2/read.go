package h2

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/net/http2"
)

// prefaceWithin is how long a client may take to say that it speaks HTTP/2.
const prefaceWithin = 10 * time.Second

// read reads frames until the connection ends, and returns why: a
// ConnectionError when it is for the client to know.
func (c *conn) read() error {
	c.mu.Lock()
	c.readUntil(time.Now().Add(prefaceWithin))
	c.mu.Unlock()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.tls, preface); err != nil {
		return err
	}
	if !bytes.Equal(preface, []byte(http2.ClientPreface)) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	for {
		f, err := c.framer.ReadFrame()
		c.heard.Store(time.Now().UnixNano())
		if err == nil {
			err = c.take(f)
		}
		var one http2.StreamError
		switch {
		case err == nil:
		case errors.As(err, &one):
			c.refuse(one)
		case errors.Is(err, http2.ErrFrameTooLarge):
			return http2.ConnectionError(http2.ErrCodeFrameSize)
		default:
			return err
		}
	}
}

// readUntil says how long the reader waits for the client; zero is forever. When
// the connection has ended that is for the writer to say, and for nobody to take
// back. The caller holds the lock.
func (c *conn) readUntil(at time.Time) {
	if c.closed == nil {
		_ = c.tls.SetReadDeadline(at) // the read fails then, too
	}
}

// refuse ends a stream on which the client did something wrong.
func (c *conn) refuse(e http2.StreamError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.highest = max(c.highest, e.StreamID)
	if st := c.streams[e.StreamID]; st != nil {
		st.fail(e)
		c.drop(st)
	}
	c.reset(e.StreamID, e.Code)
}

// take does what a frame asks for.
func (c *conn) take(f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first {
		if _, is := f.(*http2.SettingsFrame); !is {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.first = false
		c.readUntil(time.Time{})
	}
	if c.queued > mostAnswers {
		// It makes us say things that it does not read.
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.takeSettings(f)
	case *http2.MetaHeadersFrame:
		return c.takeHeaders(f)
	case *http2.DataFrame:
		return c.takeData(f)
	case *http2.WindowUpdateFrame:
		return c.takeWindow(f)
	case *http2.RSTStreamFrame:
		if c.never(f.StreamID) {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if st := c.streams[f.StreamID]; st != nil {
			st.fail(http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode})
			c.drop(st)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			c.frame(http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
			c.wakeWriter()
		}
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // others are for us to ignore
}

// never says that a stream has not begun yet.
func (c *conn) never(id uint32) bool { return id%2 == 0 || id > c.highest }

// takeSettings follows what the client asks for.
func (c *conn) takeSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.HasDuplicates() || f.NumSettings() > 100 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSize(min(s.Val, 4<<10))
		case http2.SettingMaxFrameSize:
			c.maxFrame = min(s.Val, 64<<10) // so that others have their turn
		case http2.SettingInitialWindowSize:
			more := int64(s.Val) - c.initial
			c.initial = int64(s.Val)
			for _, st := range c.streams {
				if st.window += more; st.window > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
				st.turn.Signal()
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.frame(http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
	c.wakeWriter()
	return nil
}

// takeWindow lets more be sent.
func (c *conn) takeWindow(f *http2.WindowUpdateFrame) error {
	if f.StreamID == 0 {
		if c.window += int64(f.Increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.next()
		return nil
	}
	if c.never(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return nil // it has just ended
	}
	if st.window += int64(f.Increment); st.window > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	st.turn.Signal()
	return nil
}

// takeHeaders begins a stream, or ends the body of one with trailers.
func (c *conn) takeHeaders(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st := c.streams[id]; st != nil {
		return st.takeTrailers(f)
	}
	if id <= c.highest {
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	}
	c.highest = id
	if c.leaving {
		return nil // it will hear, or has heard, that nobody listens
	}
	if f.HasPriority() && f.Priority.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if len(c.streams) >= int(c.server.MaxStreams) {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st, err := c.newStream(f)
	if err != nil {
		return err
	}
	c.streams[id] = st
	if len(c.streams) == 1 && c.idle != nil {
		c.idle.Stop()
	}
	return c.begin(st)
}

// takeData passes a part of a body on.
func (c *conn) takeData(f *http2.DataFrame) error {
	id, size := f.StreamID, int64(f.Length) // padding counts
	if c.never(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if size > c.room {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.room -= size
	st := c.streams[id]
	if st == nil || st.ended {
		c.giveBack(size)
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	return st.takeData(f, size)
}

// giveBack lets the client send more on this connection, once it is worth a
// frame. The caller holds the lock.
func (c *conn) giveBack(n int64) {
	if c.received += n; c.received >= connRoom/4 {
		c.windowUpdate(0, c.received)
		c.room += c.received
		c.received = 0
		c.wakeWriter()
	}
}

// forbidden are headers that only HTTP/1 has.
var forbidden = []string{"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}

// wellFormed says that a header may be in a request.
func wellFormed(name, value string) bool {
	return !slices.Contains(forbidden, name) && (name != "te" || value == "trailers")
}
