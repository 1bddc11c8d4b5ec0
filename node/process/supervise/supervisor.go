//go:build linux

package supervise

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
	"setpoint.dev/setpoint/node/process/proc"
	"setpoint.dev/setpoint/node/process/rootfs"
)

// probeArg is the one argument of a supervisor that only tries what it may do.
const probeArg = "probe"

// Main is the life of a supervisor, if this process was started as one; then it
// does not return. A program that starts containers calls it first of all.
func Main() {
	if len(os.Args) != 2 || os.Args[0] != Name {
		return
	}
	if os.Args[1] == probeArg {
		err := separate()
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", "/proc", "tmpfs", 0, "")
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(os.Args[1]))
}

// Descriptors that a supervisor is given.
const (
	reportFD = 3
	lockFD   = 4
)

// run supervises the container of a folder.
func run(dir string) int {
	// What starts processes must not be the first thread: that one cannot end.
	runtime.LockOSThread()
	unix.CloseOnExec(reportFD)
	unix.CloseOnExec(lockFD) // it stays open until this process ends
	out := os.NewFile(reportFD, "report")
	s, err := begin(dir)
	said := report{Started: err == nil}
	if err != nil {
		said.Error = err.Error()
	}
	// Nobody may be left to read it; the container goes on.
	_ = json.NewEncoder(out).Encode(said)
	_ = out.Close()
	if err != nil {
		return 1
	}
	if err := s.hold(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// supervisor is a running container.
type supervisor struct {
	spec   Spec
	reaper *reaper
	main   *child
	root   *inside.Root
	log    *logFile
	hub    *hub
	copies sync.WaitGroup
	// ends are the ends of pipes that copies read from.
	ends   []*os.File
	socket *net.UnixListener
	conns  conns
}

// begin builds what the container sees and starts its process.
func begin(dir string) (*supervisor, error) {
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	s := &supervisor{reaper: newReaper(), hub: newHub()}
	if err := ReadFile(filepath.Join(dir, specFile), &s.spec); err != nil {
		return nil, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	if err := s.view(); err != nil {
		return nil, err
	}
	var err error
	if s.log, err = openLog(s.spec.Log); err != nil {
		return nil, err
	}
	if s.socket, err = listen(s.spec.Dir); err != nil {
		return nil, err
	}
	if err := s.startMain(); err != nil {
		return nil, err
	}
	started := Started{PID: s.main.pid, Supervisor: os.Getpid(), Began: s.main.began, At: time.Now()}
	if err := WriteFile(filepath.Join(s.spec.Dir, startedFile), started); err != nil {
		s.killAll()
		return nil, err
	}
	go s.serve()
	return s, nil
}

// view builds the container's root, and opens it.
func (s *supervisor) view() error {
	at := "/"
	if s.spec.Root != nil {
		if err := separate(); err != nil {
			return err
		}
		if err := rootfs.Build(*s.spec.Root); err != nil {
			return err
		}
		at = s.spec.Root.At
	}
	if s.spec.OwnName && s.spec.Hostname != "" {
		if err := unix.Sethostname([]byte(s.spec.Hostname)); err != nil {
			return fmt.Errorf("set the hostname: %w", err)
		}
	}
	root, err := inside.Open(at)
	if err != nil {
		return err
	}
	s.root = root
	if s.spec.Root == nil || s.spec.Root.Image == "" {
		return nil
	}
	work, err := root.MkdirAll(s.spec.WorkDir, 0o755)
	if err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	return work.Close()
}

// drain bounds the wait for output after all processes have ended: a descriptor
// may have been handed to a process that is not the container's.
const drain = 5 * time.Second

// hold waits until the container's process has ended, ends all that it left, and
// writes how it ended.
func (s *supervisor) hold() error {
	status := <-s.main.done
	exit := Exit{Code: code(status), At: time.Now()}
	s.reaper.close()
	s.killAll()
	copied := make(chan struct{})
	go func() { s.copies.Wait(); close(copied) }()
	select {
	case <-copied:
	case <-time.After(drain):
		for _, f := range s.ends {
			_ = f.SetReadDeadline(time.Now())
		}
		<-copied
	}
	if s.spec.Group != nil {
		exit.OOMKilled = s.spec.Group.OOMKills() > 0
		if err := s.spec.Group.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	s.log.close()
	err := WriteFile(filepath.Join(s.spec.Dir, exitFile), exit)
	_ = s.socket.Close()
	s.hub.close()
	s.conns.finish()
	return err
}

// rounds bounds how often what is left is killed; each takes a moment.
const rounds = 2000

// killAll ends every process of the container.
func (s *supervisor) killAll() {
	for range rounds {
		left := s.processes()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Fprintln(os.Stderr, "processes that cannot be killed are left:", s.processes())
}

// processes are those of the container that have not ended.
func (s *supervisor) processes() []int {
	all, err := proc.All()
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range proc.Below(all, os.Getpid()) {
		if p.State != 'Z' {
			pids = append(pids, p.PID)
		}
	}
	if s.spec.Group == nil {
		return pids
	}
	grouped, err := s.spec.Group.Processes()
	if err != nil {
		return pids
	}
	for _, pid := range grouped {
		// In version 1 the thread that starts processes is in the group.
		if p, err := proc.Read(pid); err == nil && p.State != 'Z' && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killBelow ends a process that was started beside the container's, and its
// descendants.
func killBelow(pid int) {
	all, err := proc.All()
	if err != nil {
		return
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	below := map[int]bool{}
	for _, p := range proc.Below(all, pid) {
		below[p.PID] = true
	}
	for _, p := range all {
		if below[p.PID] || p.Session == pid {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}
}

// code is what a shell would say of how a process ended.
func code(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
