package cni_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/cni"
)

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEnsure(t *testing.T) {
	f := cni.Folders{Conf: filepath.Join(t.TempDir(), "net.d"), Bin: t.TempDir()}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24"), netip.MustParsePrefix("fd00::/64")}
	ensure := func(want bool) {
		t.Helper()
		if wrote, err := cni.Ensure(f, "/addresses", ranges); err != nil || wrote != want {
			t.Errorf("wrote %v, %v", wrote, err)
		}
	}
	if _, err := cni.Ensure(f, "/addresses", ranges); err == nil {
		t.Error("it does without plugins")
	}
	for _, plugin := range []string{"bridge", "host-local", "portmap"} {
		write(t, filepath.Join(f.Bin, plugin))
	}
	ensure(true)
	ensure(false) // it is there
	text, err := os.ReadFile(filepath.Join(f.Conf, cni.Name))
	if err != nil || !strings.Contains(string(text), `"10.244.0.0/24"`) || !strings.Contains(string(text), `"::/0"`) {
		t.Errorf("%v\n%s", err, text)
	}
	ranges = ranges[:1]
	ensure(true) // ours, with other addresses
	write(t, filepath.Join(f.Conf, "99-other.conf"))
	ranges = nil
	ensure(false) // somebody else's
}

func TestOf(t *testing.T) {
	waiting := &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.NetworkReady}}}
	status := &runtimeapi.StatusResponse{Status: waiting, Info: map[string]string{"config": `{"cni":{"binDir":"/bin","confDir":"/conf"}}`}}
	if f, waits := cni.Of(status); !waits || f != (cni.Folders{Conf: "/conf", Bin: "/bin"}) {
		t.Errorf("%v %v", f, waits)
	}
	waiting.Conditions[0].Status = true
	if _, waits := cni.Of(status); waits {
		t.Error("it waits for what it has")
	}
	if _, waits := cni.Of(&runtimeapi.StatusResponse{}); waits {
		t.Error("it waits for what it did not ask for")
	}
}
