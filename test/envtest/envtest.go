// Package envtest runs the test control planes of controller-runtime on
// Setpoint, beside a real kube-apiserver with etcd where these are given.
//
// The assets are made by the program itself, as users have them made. The
// release of controller-runtime is that of the module file.
package envtest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Flags of the tests.
var (
	program = flag.String("setpoint", "", "the program; built when it is not given")
	peer    = flag.String("peer", "", "folder with a real kube-apiserver and etcd to measure beside")
	cycles  = flag.Int("cycles", 20, "how often TestNothingIsLeft starts and stops; 200 is the long run")
	atOnce  = flag.Int("at-once", 4, "how many control planes TestSeveralAtOnce runs; 16 is the long run")
)

// binary is the program that is tested.
var binary = sync.OnceValues(func() (string, error) {
	if *program != "" {
		return filepath.Abs(*program)
	}
	dir, err := os.MkdirTemp("", "setpoint-envtest-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "setpoint")
	build := exec.Command("go", "build", "-o", path, "./cmd/setpoint")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

// built is the folder that the program was built in, if it was.
var built string

// Binary is the program that is tested.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Assets is the folder that the program makes for KUBEBUILDER_ASSETS.
func Assets(t testing.TB) string {
	t.Helper()
	cmd := exec.Command(Binary(t), "envtest")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("setpoint envtest: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// Environment is a test control plane from a folder.
func Environment(assets string) *envtest.Environment {
	return &envtest.Environment{BinaryAssetsDirectory: assets}
}

// process is one that runs.
type process struct {
	pid    int
	args   []string
	memory int // KiB; what is shared with others is shared out among them
}

// running are the processes of the program that some of whose arguments have a
// text in them.
func running(path, with string) []process {
	entries, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	var found []process
	for _, entry := range entries {
		exe, err := os.Readlink(entry)
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != path {
			continue
		}
		dir := filepath.Dir(entry)
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may be gone by now
		if !strings.Contains(string(line), with) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		found = append(found, process{pid: pid, args: strings.Split(string(line), "\x00"), memory: resident(dir)})
	}
	return found
}

// resident is how much memory a process has, in KiB.
func resident(dir string) int {
	status, _ := os.ReadFile(filepath.Join(dir, "smaps_rollup")) // it may be gone by now
	for line := range strings.Lines(string(status)) {
		if rest, is := strings.CutPrefix(line, "Pss:"); is {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n
		}
	}
	return 0
}
