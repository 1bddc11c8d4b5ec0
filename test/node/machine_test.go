package node_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The environment of a test that has a machine of its own: which one it is, and
// the binary that users get.
const (
	aloneEnv   = "SETPOINT_TEST_ALONE"
	programEnv = "SETPOINT_TEST_PROGRAM"
)

// alone says whether a test has a machine of its own, on which all that there is
// comes from the test. Where it has not, the test is run on one, and the caller has
// nothing left to do.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		return true
	}
	if err := machines(); err != nil {
		t.Skip(err)
	}
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "machine-") //nolint:usetesting // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"testdata/machine.sh", dir, os.Args[0], "-test.run=^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$", "-test.v", fmt.Sprintf("-test.short=%v", testing.Short())}
	if end, ok := t.Deadline(); ok { // it says by itself where it was
		args = append(args, "-test.timeout="+(time.Until(end)-15*time.Second).String())
	}
	flag.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	cmd := exec.CommandContext(t.Context(), "sh", args...)
	cmd.Env = append(os.Environ(), aloneEnv+"="+t.Name(), programEnv+"="+program)
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	switch {
	case err != nil:
		t.Fatalf("on a machine of its own: %v\n%s", err, said)
	case strings.Contains(said, "--- SKIP: "+t.Name()+" "):
		t.Skip(said)
	case !strings.Contains(said, "--- PASS: "+t.Name()+" "):
		t.Fatalf("it was not run:\n%s", said)
	}
	t.Log(said)
	return false
}

// machines says why no test can have a machine of its own, if none can.
func machines() error {
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		return errors.New("skipped: a machine of the test's own needs Linux and root, to make namespaces")
	}
	for _, program := range []string{"unshare", "ip", "iptables-save", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("skipped: a machine of the test's own needs %s (Debian packages util-linux, iproute2, iptables and busybox-static)", program)
		}
	}
	if out, err := exec.Command("unshare", "--mount", "--net", "--pid", "--cgroup", "--ipc", "--uts", "--fork", "true").CombinedOutput(); err != nil { //nolint:noctx // it does not wait
		return fmt.Errorf("skipped: a machine of the test's own needs namespaces, which this one refuses: %w: %s", err, out)
	}
	return nil
}

// built is the folder of the binary that users get, "" as long as there is none.
var built string

// build makes it, once.
var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(programEnv); path != "" {
		return path, nil
	}
	var err error
	if built, err = os.MkdirTemp("", "setpoint-program-"); err != nil {
		return "", err
	}
	if err := os.Chmod(built, 0o755); err != nil { // an ordinary user runs it, too
		return "", err
	}
	path := filepath.Join(built, "setpoint")
	const flags = "-X k8s.io/component-base/version.gitVersion=v1.36.3"                                                            // as make build has it
	if out, err := exec.Command("go", "build", "-ldflags", flags, "-o", path, "../../cmd/setpoint").CombinedOutput(); err != nil { //nolint:noctx // it ends by itself
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})
