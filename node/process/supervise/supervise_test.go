//go:build linux

package supervise_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"setpoint.dev/setpoint/node/process/supervise"
)

func TestMain(m *testing.M) {
	supervise.Main()
	os.Exit(m.Run())
}

// TestMountsAreItsOwn: whoever runs the binary under a supervisor's name by hand
// has no mount of theirs changed.
func TestMountsAreItsOwn(t *testing.T) {
	for name, env := range map[string][]string{"nothing said": {}, "the same namespace": {"SETPOINT_OUTSIDE=" + namespace(t)}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
			cmd.Args, cmd.Env = []string{supervise.Name, "probe"}, env
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "the mounts of this process are not its own") {
				t.Errorf("%v %s", err, out)
			}
		})
	}
}

func namespace(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestProbe(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("without root nothing is sure to be permitted")
	}
	if err := supervise.Probe(t.Context(), false); err != nil {
		t.Error(err)
	}
}
