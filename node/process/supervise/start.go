//go:build linux

package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/rootfs"
)

// report is what a supervisor says once: the container runs, or why not.
type report struct {
	Started bool   `json:"started,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Start starts a container and returns when its process runs. An error says why
// it does not; then nothing of it is left but files.
func Start(ctx context.Context, spec Spec) error {
	if err := WriteFile(filepath.Join(spec.Dir, specFile), spec); err != nil {
		return err
	}
	lock, err := take(spec.Dir)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the supervisor has it
	stderr, err := os.OpenFile(filepath.Join(spec.Dir, stderrFile), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer stderr.Close() //nolint:errcheck // the supervisor has it
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close() //nolint:errcheck // it is at its end
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{Name, spec.Dir}, Dir: "/",
		// One thread of Go is enough to copy output.
		Env:    []string{"GOMAXPROCS=1", "GOGC=50", outside + "=" + namespace()},
		Stderr: stderr, ExtraFiles: []*os.File{write, lock},
		SysProcAttr: spec.attributes(),
	}
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		return fmt.Errorf("start a supervisor: %w", err)
	}
	// The child is reaped whenever it ends; it outlives whoever is waiting here.
	go func() { _ = cmd.Wait() }()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill(); _ = read.Close() })
	defer stop()
	b, err := io.ReadAll(io.LimitReader(read, 1<<20))
	var said report
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case json.Unmarshal(b, &said) != nil:
		tail, _ := os.ReadFile(stderr.Name())
		return fmt.Errorf("the supervisor ended: %s", strings.TrimSpace(string(tail[max(0, len(tail)-1024):])))
	case said.Error != "":
		return errors.New(said.Error)
	}
	return nil
}

// take takes the lock of a container's folder, for the supervisor to hold.
func take(dir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("a supervisor is running: %w", err)
	}
	return lock, nil
}

// attributes are those of the supervisor's process: a session of its own, and
// the namespaces that its container will share.
func (s *Spec) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if s.Root == nil {
		return a
	}
	a.Cloneflags = unix.CLONE_NEWNS
	if s.OwnName {
		a.Cloneflags |= unix.CLONE_NEWUTS
	}
	if s.Root.User {
		a.Cloneflags |= unix.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// outside is the variable that tells a supervisor which mount namespace it must
// not touch: that of whoever started it.
const outside = "SETPOINT_OUTSIDE"

// namespace names the mount namespace of this process.
func namespace() string {
	name, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return ""
	}
	return name
}

// separate says whether this process has a mount namespace of its own.
func separate() error {
	if from := os.Getenv(outside); from == "" || from == namespace() {
		return errors.New("the mounts of this process are not its own")
	}
	return nil
}

// Probe says whether containers may have mounts of their own here, by trying:
// with the rights of this process, or in a user namespace.
func Probe(ctx context.Context, user bool) error {
	s := Spec{Root: &rootfs.Plan{User: user}}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Env, cmd.SysProcAttr = []string{Name, probeArg}, []string{outside + "=" + namespace()}, s.attributes()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("mounts: %w %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
