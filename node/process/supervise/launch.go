//go:build linux

package supervise

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/proc"
)

// child is a process that the supervisor started.
type child struct {
	pid   int
	began uint64
	done  <-chan unix.WaitStatus
}

// reaper collects every process that ends: those that were started here, and
// those that were adopted.
type reaper struct {
	mu      sync.Mutex // guards the fields below, and starts against collecting
	waiting map[int]chan unix.WaitStatus
	closed  bool
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan unix.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			r.collect()
		}
	}()
	return r
}

// start registers the process that fork makes before it can be collected.
func (r *reaper) start(fork func() (int, error)) (*child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, ErrGone
	}
	pid, err := fork()
	if err != nil {
		return nil, err
	}
	done := make(chan unix.WaitStatus, 1)
	r.waiting[pid] = done
	// It may have ended, but it has not been collected.
	stat, err := proc.Read(pid)
	if err != nil {
		fmt.Fprintf(os.Stderr, "when process %d began is not known: %v\n", pid, err)
	}
	return &child{pid: pid, began: stat.Began, done: done}, nil
}

// close lets nothing more be started.
func (r *reaper) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if done := r.waiting[pid]; done != nil {
			done <- status
			delete(r.waiting, pid)
		}
	}
}

// signal sends a signal to a child that has not been collected, whose pid can
// therefore be nobody else's.
func (r *reaper) signal(pid int, sig unix.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[pid] == nil {
		return nil // it has ended, which is what signals are for
	}
	return unix.Kill(pid, sig)
}

// launch starts a program in the container, with three files. The program has
// the container's user, limits and rights.
func (s *supervisor) launch(args []string, terminal bool, files [3]*os.File) (*child, error) {
	env := s.spec.Env
	if terminal && lookup(env, "TERM") == "" {
		env = append(slices.Clip(env), "TERM=xterm")
	}
	program, err := s.root.Executable(args[0], lookup(env, "PATH"), s.spec.WorkDir)
	if err != nil {
		return nil, err
	}
	type outcome struct {
		child *child
		err   error
	}
	ready := make(chan outcome)
	go func() {
		// Rights and groups of a thread are inherited by what it starts. The thread
		// is never given back: it waits for its child, which is killed if it ends,
		// and ends with this function.
		runtime.LockOSThread()
		var c *child
		err := s.confine()
		if err == nil {
			c, err = s.reaper.start(func() (int, error) {
				return s.fork(program, args, env, terminal, files)
			})
		}
		if err != nil {
			ready <- outcome{err: err}
			return
		}
		// Asking for what only root may lower is no reason not to run.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.pid), []byte(strconv.Itoa(s.spec.OOMScore)), 0)
		done := make(chan unix.WaitStatus, 1)
		ready <- outcome{child: &child{pid: c.pid, began: c.began, done: done}}
		done <- <-c.done
	}()
	o := <-ready
	return o.child, o.err
}

// lookup gives the last value of a variable.
func lookup(env []string, name string) string {
	for _, variable := range slices.Backward(env) {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// confine gives the calling thread what its children shall inherit.
func (s *supervisor) confine() error {
	if s.spec.Group != nil {
		if err := s.spec.Group.EnterThread(); err != nil {
			return fmt.Errorf("enter the control group: %w", err)
		}
	}
	if s.spec.Network != "" {
		f, err := os.Open(s.spec.Network)
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
	}
	if s.spec.KeepCapabilities != nil {
		if err := dropCapabilities(s.spec.KeepCapabilities); err != nil {
			return err
		}
	}
	if s.spec.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	return nil
}

// dropCapabilities takes from the calling thread's children all capabilities but
// some. Those that nobody here has stay as they are.
func dropCapabilities(keep []int) error {
	kept := map[int]bool{}
	for _, c := range keep {
		kept[c] = true
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if kept[c] {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil || has == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// fork starts a program from the calling thread.
func (s *supervisor) fork(program string, args, env []string, terminal bool, files [3]*os.File) (int, error) {
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Ctty: 0, Pdeathsig: syscall.SIGKILL}
	if s.spec.Root != nil {
		sys.Chroot = s.spec.Root.At
	}
	if u := s.spec.User; u != nil {
		if s.spec.Root != nil && s.spec.Root.User {
			// The one user that this namespace has is seen under another number.
			sys.Cloneflags = unix.CLONE_NEWUSER
			sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.UID), HostID: 0, Size: 1}}
			sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.GID), HostID: 0, Size: 1}}
		} else {
			sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
		}
	}
	if s.spec.Group != nil && s.spec.Group.Unified != "" {
		dir, err := os.Open(s.spec.Group.Unified)
		if err != nil {
			return 0, err
		}
		defer dir.Close() //nolint:errcheck // only a handle to a folder
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	}
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	pid, err := syscall.ForkExec(program, args, &syscall.ProcAttr{Dir: s.spec.WorkDir, Env: env, Files: fds, Sys: sys})
	if err != nil {
		return 0, fmt.Errorf("exec %s: %w", filepath.Join("/", program), err)
	}
	return pid, nil
}

// startMain starts the container's own process, with its output to the log and
// to those who attach.
func (s *supervisor) startMain() error {
	if s.spec.TTY {
		return s.startOnTerminal()
	}
	in, err := s.input()
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // the child has it
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	s.main, err = s.launch(s.spec.Args, false, [3]*os.File{in, outWrite, errWrite})
	_, _ = outWrite.Close(), errWrite.Close()
	if err != nil {
		return err
	}
	s.copy(outRead, stdout)
	s.copy(errRead, stderr)
	return nil
}

// input is what the process reads: nothing, or what those write who attach.
func (s *supervisor) input() (*os.File, error) {
	if !s.spec.Stdin {
		return os.Open(os.DevNull)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.hub.input = write
	s.hub.once = s.spec.StdinOnce
	return read, nil
}

func (s *supervisor) startOnTerminal() error {
	terminal, end, err := OpenTerminal()
	if err != nil {
		return err
	}
	if u := s.spec.User; u != nil && (s.spec.Root == nil || !s.spec.Root.User) {
		_ = end.Chown(int(u.UID), -1)
	}
	s.main, err = s.launch(s.spec.Args, true, [3]*os.File{end, end, end})
	_ = end.Close()
	if err != nil {
		return err
	}
	if s.spec.Stdin {
		s.hub.input = terminal
		s.hub.once = false // closing a terminal's input would close its output
	}
	s.hub.terminal = terminal
	s.copy(terminal, stdout)
	return nil
}
