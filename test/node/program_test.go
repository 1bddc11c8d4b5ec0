package node_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// longest bounds every wait, also on a machine that has much to do.
const longest = 2 * time.Minute

// eventually waits until nothing is wrong any more: wrong says what still is.
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		what := wrong()
		if what == "" {
			return
		}
		if time.Since(begun) > longest {
			t.Fatalf("in the end %s", what)
		}
	}
}

// user is somebody who runs setpoint, with a home of their own.
type user struct {
	program, home string
	id            uint32
}

// newUser makes the home of a user. The folder is short, since sockets are in it.
func newUser(t *testing.T, id uint32) *user {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	u := &user{program: program, home: filepath.Join(os.TempDir(), "home"), id: id}
	for _, dir := range []string{u.home, filepath.Join(u.home, ".local"), filepath.Join(u.home, ".local/share"), filepath.Join(u.home, ".local/share/setpoint"), u.nodeDir()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, int(id), int(id)); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// nodeDir is where a node keeps what pods are given, if nobody says otherwise.
func (u *user) nodeDir() string { return filepath.Join(u.home, ".local/share/setpoint/node") }

// command is setpoint, run by the user.
func (u *user) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, u.program, args...) //nolint:gosec // it is ours
	cmd.Env = []string{"HOME=" + u.home, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	cmd.Dir = u.home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.id, Gid: u.id}}
	return cmd
}

// daemon is a process of setpoint's that lasts.
type daemon struct {
	user *user
	args []string
	log  string // the file of what it says

	cmd   *exec.Cmd
	began time.Time
}

// start starts one, which ends with the test. What it says is logged where the
// test fails.
func (u *user) start(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{user: u, args: args, log: filepath.Join(u.home, args[0]+".log")}
	if err := d.launch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.kill() // it may have ended
		if said := d.said(); t.Failed() {
			t.Logf("the end of what setpoint %s said:\n%s", args[0], said[max(0, len(said)-2_000):])
		}
	})
	return d
}

// launch starts it, again after kill.
func (d *daemon) launch() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has it
	d.cmd = d.user.command(context.Background(), d.args...)
	d.cmd.Stdout, d.cmd.Stderr, d.began = log, log, time.Now()
	return d.cmd.Start()
}

// kill ends it at once.
func (d *daemon) kill() error {
	err := d.cmd.Process.Kill()
	_ = d.cmd.Wait() // it was killed
	return err
}

// end has it end as users do, and waits for it.
func (d *daemon) end(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("setpoint %s ended with %v", d.args[0], err)
	}
}

func (d *daemon) said() string {
	said, _ := os.ReadFile(d.log)
	return string(said)
}

// try runs kubectl and returns what it says, and whether that went well.
func (u *user) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return u.hear(t, nil, args...)
}

// hear runs kubectl with what it hears.
func (u *user) hear(t *testing.T, in io.Reader, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	cmd := u.command(ctx, append([]string{"kubectl", "--context", "setpoint"}, args...)...)
	var out, failed bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &failed
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, failed.String())
	}
	return out.String(), nil
}

// kubectl runs kubectl, which goes well.
func (u *user) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := u.try(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// follow starts a kubectl with what it hears, and gives its lines as they come,
// until it ends by itself or by stop or the test. If it does not end well, the last
// line says so.
func (u *user) follow(t *testing.T, in io.Reader, args ...string) (lines <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := u.command(ctx, append([]string{"kubectl", "--context", "setpoint"}, args...)...)
	read, write := io.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := make(chan string, 1000)
	var done sync.WaitGroup
	done.Go(func() {
		defer close(all)
		defer read.Close() //nolint:errcheck // so that kubectl does not wait for who reads no more
		give := func(line string) {
			select {
			case all <- line:
			case <-ctx.Done():
			}
		}
		scan := bufio.NewScanner(read)
		for scan.Scan() {
			give(scan.Text())
		}
		if err := scan.Err(); err != nil {
			give("kubectl: " + err.Error())
		}
	})
	done.Go(func() { _ = write.CloseWithError(cmd.Wait()) }) // it always returns nil
	stop = func() {
		cancel()
		done.Wait()
	}
	t.Cleanup(stop)
	return all, stop
}

// line waits for a line that has a text.
func line(t *testing.T, lines <-chan string, text string) string {
	t.Helper()
	late := time.After(longest)
	var before []string
	for {
		select {
		case one, ok := <-lines:
			if strings.Contains(one, text) {
				return one
			}
			if !ok {
				t.Fatalf("no %q in %q", text, before)
			}
			before = append(before, one)
		case <-late:
			t.Fatalf("no %q in %q for %v", text, before, longest)
		}
	}
}
