//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"setpoint.dev/setpoint/node/process/supervise"
)

// Bounds of what a program that runs beside a container may say: CRI's, and how
// long what it left behind may go on saying it.
const (
	mostOutput = 16 << 20
	lingering  = 2 * time.Second
)

// ExecSync runs a program in a container and gives what it says.
func (r *Runtime) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := r.running(req.GetContainerId())
	if err != nil {
		return nil, status.Errorf(status.Code(err), "failed to exec in container: %s", status.Convert(err).Message())
	}
	if len(req.GetCmd()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "command cannot be empty")
	}
	timeout := time.Duration(req.GetTimeout()) * time.Second
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var stdout, stderr limited
	code, err := r.exec(ctx, c, req.GetCmd(), nil, &stdout, &stderr, false, nil)
	if err != nil && ctx.Err() != nil && timeout > 0 {
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %v exceeded: %v", timeout, ctx.Err())
	}
	if err != nil {
		return nil, status.Errorf(codes.Unknown, "failed to exec in container: %v", err)
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: int32(code)}, nil
}

// limited keeps the first part of what is written.
type limited struct{ bytes.Buffer }

// Write keeps what there is room for, and takes all.
func (l *limited) Write(p []byte) (int, error) {
	_, _ = l.Buffer.Write(p[:min(len(p), mostOutput-l.Len())])
	return len(p), nil
}

// exec runs a program in a container with streams, those that are nil aside, and
// gives its exit code. It is ended with ctx.
func (r *Runtime) exec(ctx context.Context, c *container, cmd []string, in io.Reader, out, errs io.Writer, tty bool, resize <-chan remotecommand.TerminalSize) (int, error) {
	if tty {
		return r.execOnTerminal(ctx, c, cmd, in, out, resize)
	}
	var theirs [3]*os.File
	var ours []*os.File
	defer func() {
		for _, f := range append(ours, theirs[:]...) {
			if f != nil {
				_ = f.Close()
			}
		}
	}()
	var outputs errgroup.Group
	for i, to := range []io.Writer{1: out, 2: errs} {
		if i == 0 || to == nil {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				return 0, err
			}
			theirs[i] = null
			continue
		}
		read, write, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		theirs[i], ours = write, append(ours, read)
		outputs.Go(func() error { _, err := io.Copy(to, read); return ignoreDeadline(err) })
	}
	if in != nil {
		read, write, err := os.Pipe()
		if err != nil {
			return 0, err
		}
		_ = theirs[0].Close()
		theirs[0] = read
		// Reading cannot be broken off: whoever gave in closes it.
		go func() { _, _ = io.Copy(write, in); _ = write.Close() }()
	}
	p, err := supervise.Exec(ctx, c.dir, cmd, false, theirs)
	for i, f := range theirs {
		_ = f.Close()
		theirs[i] = nil
	}
	var code int
	if err == nil {
		code, err = p.Wait()
	}
	linger := time.AfterFunc(lingering, func() {
		for _, f := range ours {
			_ = f.SetReadDeadline(time.Now())
		}
	})
	defer linger.Stop()
	return code, errors.Join(err, outputs.Wait())
}

func ignoreDeadline(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// execOnTerminal runs a program on a terminal of its own.
func (r *Runtime) execOnTerminal(ctx context.Context, c *container, cmd []string, in io.Reader, out io.Writer, resize <-chan remotecommand.TerminalSize) (int, error) {
	terminal, end, err := supervise.OpenTerminal()
	if err != nil {
		return 0, err
	}
	defer terminal.Close() //nolint:errcheck // nobody is left to write to it
	if r.mounts == mountsAsRoot {
		_ = end.Chown(int(c.User.UID), -1)
	}
	p, err := supervise.Exec(ctx, c.dir, cmd, true, [3]*os.File{end, end, end})
	_ = end.Close()
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case <-ended:
				return
			case size, ok := <-resize:
				if !ok {
					return
				}
				_ = supervise.Resize(terminal, supervise.Size{Width: size.Width, Height: size.Height})
			}
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if out != nil {
			_, _ = io.Copy(out, terminal) // it ends with EIO
		}
	}()
	code, err := p.Wait()
	select {
	case <-copied:
	case <-time.After(lingering):
		_ = terminal.SetReadDeadline(time.Now())
		<-copied
	}
	return code, err
}

// Exec gives the address where a program's streams are served.
func (r *Runtime) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := r.running(req.GetContainerId()); err != nil {
		return nil, err
	}
	return r.streams.GetExec(req)
}

// Attach gives the address where a container's streams are served.
func (r *Runtime) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := r.running(req.GetContainerId()); err != nil {
		return nil, err
	}
	return r.streams.GetAttach(req)
}

// PortForward gives the address where connections to a pod are served.
func (r *Runtime) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s, err := r.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.ready() {
		return nil, status.Errorf(codes.FailedPrecondition, "sandbox container %q is not running", s.ID)
	}
	return r.streams.GetPortForward(req)
}

// streamer is what the streaming server calls.
type streamer struct{ r *Runtime }

// Exec runs a program with streams.
func (s streamer) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := s.r.running(id)
	if err != nil {
		return err
	}
	code, err := s.r.exec(ctx, c, cmd, in, writer(out), writer(errs), tty, resize)
	if err != nil {
		return fmt.Errorf("failed to exec in container: %w", err)
	}
	if code != 0 {
		return &utilexec.CodeExitError{Err: fmt.Errorf("error executing command %v, exit code %d", cmd, code), Code: code}
	}
	return nil
}

// writer turns a missing stream into none: an interface that holds nil is not nil.
func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

// Attach joins streams with a container's process.
func (s streamer) Attach(ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := s.r.running(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sizes := make(chan supervise.Size)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case size, ok := <-resize:
				if !ok {
					return
				}
				select {
				case <-ctx.Done():
					return
				case sizes <- supervise.Size{Width: size.Width, Height: size.Height}:
				}
			}
		}
	}()
	return supervise.Attach(ctx, c.dir, supervise.Streams{Stdin: in, Stdout: writer(out), Stderr: writer(errs), Resize: sizes})
}

// PortForward joins a stream with a port of a pod, which is one of the host.
func (s streamer) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	if _, err := s.r.findSandbox(id); err != nil {
		return err
	}
	var conn net.Conn
	var errs []error
	for _, address := range []string{"127.0.0.1", "::1", s.r.cfg.Address} {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(port))))
		if err == nil {
			conn = c
			break
		}
		errs = append(errs, err)
	}
	if conn == nil {
		return fmt.Errorf("failed to connect to port %d of sandbox %q: %w", port, id, errors.Join(errs...))
	}
	defer conn.Close() //nolint:errcheck // both ways have ended
	back := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, conn)
		back <- err
	}()
	// Reading from the stream cannot be broken off: the server closes it.
	go func() {
		_, _ = io.Copy(conn, stream)
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
	}()
	select {
	case err := <-back:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
