//go:build linux

// Package supervise holds one container: the process that is its parent, and how
// others speak with that process.
//
// In comes a Spec; out come a process with its descendants, its output as a log,
// and a file that says how it ended. The supervisor is this very binary, run anew
// under another name (Name) in a session of its own, so it lives on when the one
// who started it is gone. In the container's folder:
//
//	spec.json      what was asked for
//	lock           held for as long as the supervisor lives; the kernel lets go of it
//	started.json   the process is there
//	sock           signals, exec, attach
//	exit.json      the process is gone, and all that descended from it
//	supervisor.log what the supervisor has to say when it fails
//
// What always holds: a container runs at most once; exit.json is written whole
// and last; when it is there, no process of the container is left, since the
// supervisor adopts those whose parents ended and ends them all. When the
// supervisor itself is killed, its child is, too, by the kernel.
package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/cgroup"
	"setpoint.dev/setpoint/node/process/rootfs"
)

// Name is what the supervisor's process is called.
const Name = "setpoint-container"

// Spec is what a container runs, and how.
type Spec struct {
	// Dir is the container's folder.
	Dir string `json:"dir"`
	// Args are the program and what it is told; the program is looked for in PATH.
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// WorkDir is where it starts; it is made if it is missing in an image.
	WorkDir string `json:"workDir"`
	// TTY gives it a terminal. Stdin keeps its input open for those who attach;
	// StdinOnce closes it after the first.
	TTY       bool `json:"tty,omitempty"`
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`
	// Log is the file its output goes to; empty for none.
	Log string `json:"log,omitempty"`
	// Root is what it sees; nil for the host's files as they are.
	Root *rootfs.Plan `json:"root,omitempty"`
	// OwnName keeps the machine's name from it, and Hostname is what it has instead,
	// if not empty. Both need Root.
	OwnName  bool   `json:"ownName,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	// User is who it runs as; nil for whoever the supervisor is.
	User *User `json:"user,omitempty"`
	// KeepCapabilities are the numbers of those it may have at most; nil for all.
	KeepCapabilities []int `json:"keepCapabilities"`
	// NoNewPrivileges keeps programs from giving it rights that it lacks.
	NoNewPrivileges bool `json:"noNewPrivileges,omitempty"`
	// OOMScore is how willingly the kernel kills it when memory is short.
	OOMScore int `json:"oomScore,omitempty"`
	// Group is its control group; nil for the supervisor's.
	Group *cgroup.Group `json:"group,omitempty"`
	// Network is the file of its network namespace; empty for the host's.
	Network string `json:"network,omitempty"`
}

// User is who a process runs as.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Started is a process that runs, or ran.
type Started struct {
	PID int `json:"pid"`
	// Began tells it from later ones of the same pid.
	Began uint64    `json:"began"`
	At    time.Time `json:"at"`
	// Supervisor is the pid of its parent, which is that while it lives (Alive).
	Supervisor int `json:"supervisor"`
}

// Exit is how a container ended.
type Exit struct {
	// Code is what the process returned, or 128 and the signal that ended it.
	Code int       `json:"code"`
	At   time.Time `json:"at"`
	// OOMKilled says that the kernel killed it, or a child, for want of memory.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// Reason and Message are set by whoever found it ended otherwise.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Files of a container's folder.
const (
	specFile    = "spec.json"
	lockFile    = "lock"
	startedFile = "started.json"
	exitFile    = "exit.json"
	socketFile  = "sock"
	stderrFile  = "supervisor.log"
)

// WriteFile writes a value as JSON, whole or not at all.
func WriteFile(path string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// ReadFile reads a value that WriteFile wrote.
func ReadFile(path string, value any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, value); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// ReadStarted reads what is known of a container's start. The error is that of a
// missing file if it has not started.
func ReadStarted(dir string) (*Started, error) {
	var s Started
	return &s, ReadFile(filepath.Join(dir, startedFile), &s)
}

// ReadExit reads how a container ended. The error is that of a missing file if
// it has not.
func ReadExit(dir string) (*Exit, error) {
	var e Exit
	return &e, ReadFile(filepath.Join(dir, exitFile), &e)
}

// WriteExit writes how a container ended whose supervisor did not live to.
func WriteExit(dir string, e Exit) error { return WriteFile(filepath.Join(dir, exitFile), e) }

// Alive says whether the supervisor of a container lives.
func Alive(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // it was only asked
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}
