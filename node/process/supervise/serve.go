//go:build linux

package supervise

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
)

// request is what is asked of a supervisor; one to a connection.
type request struct {
	Op string `json:"op"`
	// Args and TTY are for exec; its files travel with the request.
	Args []string `json:"args,omitempty"`
	TTY  bool     `json:"tty,omitempty"`
	// Signal is for signal.
	Signal int `json:"signal,omitempty"`
	// Stdin, Stdout and Stderr are for attach.
	Stdin  bool `json:"stdin,omitempty"`
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
}

// What can be asked.
const (
	opExec   = "exec"   // a first answer when it runs, a second when it has ended
	opAttach = "attach" // an answer, then frames
	opSignal = "signal"
	opKill   = "kill" // ends all processes
	opReopen = "reopen"
	opWait   = "wait" // never answers: the connection ends with the container
)

// response is an answer.
type response struct {
	Error string `json:"error,omitempty"`
	// Code is how an exec ended.
	Code int `json:"code,omitempty"`
}

// longestMessage bounds a request: programs can be told two megabytes.
const longestMessage = 4 << 20

func respond(conn *net.UnixConn, r response) error { return send(conn, r, nil) }

// send sends a message with files: four bytes that say how long, and JSON.
func send(conn *net.UnixConn, message any, files []*os.File) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	head := make([]byte, 4)
	binary.BigEndian.PutUint32(head, uint32(len(b)))
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(head, rights, nil); err != nil {
		return err
	}
	_, err = conn.Write(b)
	return err
}

// receive receives a message and its files.
func receive(conn *net.UnixConn, message any) ([]*os.File, error) {
	const files = 3
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(files*4))
	n, rn, _, _, err := conn.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	got, err := unwrap(rights[:rn])
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return got, io.EOF
	}
	if _, err := io.ReadFull(conn, head[n:]); err != nil {
		return got, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > longestMessage {
		return got, errors.New("a message is too long")
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(conn, b); err != nil {
		return got, err
	}
	return got, json.Unmarshal(b, message)
}

func unwrap(rights []byte) ([]*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

// listen opens the socket of a container's folder. The folder's path may be
// longer than a socket's may be, so it is named by a handle.
func listen(dir string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close() //nolint:errcheck // only a handle to a folder
	name := filepath.Join(inside.Handle(d), socketFile)
	// One that did not get to start its container left it.
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the handle is gone by then
	return l, nil
}

// conns are the connections that are served.
type conns struct {
	mu   sync.Mutex // guards the fields below
	all  map[*net.UnixConn]bool
	done bool
	left sync.WaitGroup
}

// enter says whether a connection may still be served.
func (c *conns) enter(conn *net.UnixConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return false
	}
	if c.all == nil {
		c.all = map[*net.UnixConn]bool{}
	}
	c.all[conn] = true
	c.left.Add(1)
	return true
}

func (c *conns) leave(conn *net.UnixConn) {
	c.mu.Lock()
	delete(c.all, conn)
	c.mu.Unlock()
	_ = conn.Close()
	c.left.Done()
}

// finish ends those connections that wait for words from outside, and waits for
// all.
func (c *conns) finish() {
	c.mu.Lock()
	c.done = true
	for conn := range c.all {
		_ = conn.CloseRead()
	}
	c.mu.Unlock()
	c.left.Wait()
}

// serve answers whoever connects, until the socket is closed.
func (s *supervisor) serve() {
	for {
		conn, err := s.socket.AcceptUnix()
		if err != nil {
			return
		}
		if !s.conns.enter(conn) {
			_ = conn.Close()
			return
		}
		go func() {
			defer s.conns.leave(conn)
			s.answer(conn)
		}()
	}
}

// answer does what one connection asks.
func (s *supervisor) answer(conn *net.UnixConn) {
	var asked request
	files, err := receive(conn, &asked)
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	if err != nil {
		return
	}
	switch asked.Op {
	case opExec:
		if len(files) == 3 && len(asked.Args) > 0 {
			s.exec(conn, asked, [3]*os.File(files))
		}
	case opAttach:
		s.hub.attach(conn, asked)
	case opWait:
		_, _ = conn.Read(make([]byte, 1))
	case opSignal:
		_ = respond(conn, failure(s.reaper.signal(s.main.pid, unix.Signal(asked.Signal))))
	case opKill:
		s.killAll()
		_ = respond(conn, response{})
	case opReopen:
		_ = respond(conn, failure(s.log.reopen()))
	default:
		_ = respond(conn, response{Error: fmt.Sprintf("unknown request %q", asked.Op)})
	}
}

func failure(err error) response {
	if err != nil {
		return response{Error: err.Error()}
	}
	return response{}
}

// exec runs a program beside the container's process. It is ended when whoever
// asked for it goes away.
func (s *supervisor) exec(conn *net.UnixConn, asked request, files [3]*os.File) {
	c, err := s.launch(asked.Args, asked.TTY, files)
	for _, f := range files {
		_ = f.Close()
	}
	if err != nil {
		_ = respond(conn, failure(err))
		return
	}
	_ = respond(conn, response{})
	gone := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1))
		close(gone)
	}()
	select {
	case status := <-c.done:
		_ = respond(conn, response{Code: code(status)})
		return
	case <-gone:
	}
	killBelow(c.pid)
	_ = respond(conn, response{Code: code(<-c.done)})
}
