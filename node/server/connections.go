package server

import (
	"net"
	"sync"
)

// connections is a listener that knows which of its connections are open.
// net/http forgets those that become streams.
type connections struct {
	net.Listener

	mu    sync.Mutex // guards the fields below
	all   map[net.Conn]bool
	ended bool
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		_ = conn.Close() // it came too late
		return nil, net.ErrClosed
	}
	c.all[one] = true
	return one, nil
}

// end closes all that are open.
func (c *connections) end() {
	c.mu.Lock()
	c.ended = true
	open := c.all
	c.all = map[net.Conn]bool{}
	c.mu.Unlock()
	for conn := range open {
		_ = conn.Close() // it may be closed already
	}
}

type connection struct {
	net.Conn
	of *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
