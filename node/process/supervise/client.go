//go:build linux

package supervise

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
)

// ErrGone says that a container has no supervisor.
var ErrGone = errors.New("the container has ended")

// dial connects to the supervisor of a folder. The connection ends with ctx.
func dial(ctx context.Context, dir string) (*net.UnixConn, func(), error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer d.Close() //nolint:errcheck // only a handle to a folder
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(inside.Handle(d), socketFile))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	conn := c.(*net.UnixConn) // what the network unix gives
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	return conn, func() { stop(); _ = conn.Close() }, nil
}

// ask asks for something that is answered once.
func ask(ctx context.Context, dir string, r request) error {
	conn, done, err := dial(ctx, dir)
	if err != nil {
		return err
	}
	defer done()
	if err := send(conn, r, nil); err != nil {
		return err
	}
	_, err = answered(conn)
	return err
}

func answered(conn *net.UnixConn) (int, error) {
	var r response
	if _, err := receive(conn, &r); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, ErrGone
		}
		return 0, err
	}
	if r.Error != "" {
		return 0, errors.New(r.Error)
	}
	return r.Code, nil
}

// Signal sends a signal to a container's process.
func Signal(ctx context.Context, dir string, sig unix.Signal) error {
	return ask(ctx, dir, request{Op: opSignal, Signal: int(sig)})
}

// Kill ends all processes of a container.
func Kill(ctx context.Context, dir string) error { return ask(ctx, dir, request{Op: opKill}) }

// Reopen has the log go on in a new file.
func Reopen(ctx context.Context, dir string) error { return ask(ctx, dir, request{Op: opReopen}) }

// Process is a program that runs beside a container's own.
type Process struct {
	conn *net.UnixConn
	done func()
}

// Exec starts a program in a container, with its three files, which stay the
// caller's. It is ended with ctx.
func Exec(ctx context.Context, dir string, args []string, tty bool, files [3]*os.File) (*Process, error) {
	conn, done, err := dial(ctx, dir)
	if err != nil {
		return nil, err
	}
	err = send(conn, request{Op: opExec, Args: args, TTY: tty}, files[:])
	if err == nil {
		_, err = answered(conn)
	}
	if err != nil {
		done()
		return nil, err
	}
	return &Process{conn: conn, done: done}, nil
}

// Wait waits for the program's end and gives its exit code.
func (p *Process) Wait() (int, error) {
	defer p.done()
	return answered(p.conn)
}

// Streams are what one who attaches brings; those that are nil are not wanted.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// Attach joins streams with a container's process, until its output ends or ctx
// does. A Stdin that does not end by itself is left to be read by nobody.
func Attach(ctx context.Context, dir string, s Streams) error {
	conn, done, err := dial(ctx, dir)
	if err != nil {
		return err
	}
	defer done()
	if err := send(conn, request{Op: opAttach, Stdin: s.Stdin != nil, Stdout: s.Stdout != nil, Stderr: s.Stderr != nil}, nil); err != nil {
		return err
	}
	if _, err := answered(conn); err != nil {
		return err
	}
	var in errgroup.Group
	ended := make(chan struct{})
	write := make(chan func() error)
	in.Go(func() error { return each(conn, write, ended) })
	if s.Stdin != nil {
		// Reading cannot be broken off: whoever gave Stdin closes it.
		go stdin(conn, s.Stdin, write, ended)
	}
	if s.Resize != nil {
		go resizes(conn, s.Resize, write, ended)
	}
	err = outputs(conn, s)
	close(ended)
	return errors.Join(err, in.Wait(), ctx.Err())
}

// each makes the writes of several, one at a time.
func each(conn *net.UnixConn, write <-chan func() error, ended <-chan struct{}) error {
	for {
		select {
		case <-ended:
			return nil
		case f := <-write:
			if err := f(); err != nil {
				_ = conn.CloseRead()
				return nil //nolint:nilerr // the container has ended, which outputs says
			}
		}
	}
}

func stdin(conn *net.UnixConn, from io.Reader, write chan<- func() error, ended <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		b := append([]byte(nil), buf[:n]...)
		f := func() error {
			if len(b) > 0 {
				if werr := writeFrame(conn, frameStdin, b); werr != nil {
					return werr
				}
			}
			if err != nil {
				return writeFrame(conn, frameEOF, nil)
			}
			return nil
		}
		select {
		case <-ended:
			return
		case write <- f:
		}
		if err != nil {
			return
		}
	}
}

func resizes(conn *net.UnixConn, sizes <-chan Size, write chan<- func() error, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			b := binary.BigEndian.AppendUint16(nil, size.Width)
			b = binary.BigEndian.AppendUint16(b, size.Height)
			select {
			case <-ended:
				return
			case write <- func() error { return writeFrame(conn, frameResize, b) }:
			}
		}
	}
}

// outputs copies a container's output, until its end.
func outputs(conn *net.UnixConn, s Streams) error {
	for {
		kind, b, err := readFrame(conn)
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		to := s.Stdout
		if kind == frameStderr {
			to = s.Stderr
		}
		if to != nil {
			if _, err := to.Write(b); err != nil {
				return err
			}
		}
	}
}

// Wait waits until a container's supervisor has ended, and with it the
// container.
func Wait(ctx context.Context, dir string) error {
	for Alive(dir) {
		conn, done, err := dial(ctx, dir)
		if err == nil {
			if send(conn, request{Op: opWait}, nil) == nil {
				_, _ = conn.Read(make([]byte, 1))
			}
			done()
		}
		// It is about to serve, or about to end.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
}
