package cli

import (
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/net"

	"setpoint.dev/setpoint/app"
)

func TestTheAPIServersFlags(t *testing.T) {
	// What controller-runtime passes, and a few that users add.
	args := strings.Fields(`--allow-privileged=true --authorization-mode=RBAC --bind-address=127.0.0.1 --cert-dir=/c
		--client-ca-file=/c/ca.crt --disable-admission-plugins=ServiceAccount --etcd-servers=http://127.0.0.1:1 --secure-port=2
		--service-account-issuer=https://127.0.0.1:2/ --service-account-key-file=/c/sa.crt --service-account-signing-key-file=/c/sa.key
		--service-cluster-ip-range=10.0.0.0/24,fd00::/112 --service-node-port-range=100-199
		--feature-gates=A=true --runtime-config=api/all=true -v=4 --vmodule=a=1 --watch-cache --profiling=false --shutdown-delay-duration=5s`)
	c := apiserverCommand()
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	got := worthSaying(c.Flags())
	slices.Sort(got)
	if want := []string{"feature-gates", "profiling", "runtime-config", "shutdown-delay-duration", "watch-cache"}; !slices.Equal(got, want) {
		t.Errorf("it is told that %v change nothing, want %v", got, want)
	}
	if err := apiserverCommand().ParseFlags([]string{"--insecure-port=0"}); err == nil {
		t.Error("flags that kube-apiserver does not have are taken")
	}
	if help := helpOf(apiserverCommand()); regexp.MustCompile(`(?m)^\s*--insecure-port\b`).MatchString(help) || !regexp.MustCompile(`(?m)^\s*--secure-port\b`).MatchString(help) {
		t.Errorf("help is %s", help)
	}
	if help := helpOf(etcdCommand()); !regexp.MustCompile(`(?m)^\s*--unsafe-no-fsync\b`).MatchString(help) || strings.Contains(help, "parent") {
		t.Errorf("help is %s", help)
	}
	if err := etcdCommand().ParseFlags([]string{"--quota-backend-bytes=1", "--data-dir=x"}); err != nil {
		t.Error(err)
	}
}

func TestServingFlags(t *testing.T) {
	var cfg app.Config
	c := &cobra.Command{Use: "test", SilenceErrors: true, SilenceUsage: true}
	c.SetOut(io.Discard)
	servingFlags(c, &cfg)
	if err := c.ParseFlags([]string{"--service-cluster-ip-range=10.1.0.0/16,fd00::/112", "--service-node-port-range=100-199"}); err != nil {
		t.Fatal(err)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/112")}; !slices.Equal(cfg.ServiceRanges, want) {
		t.Errorf("ranges are %v", cfg.ServiceRanges)
	}
	if want := (net.PortRange{Base: 100, Size: 100}); cfg.NodePorts != want {
		t.Errorf("ports are %v", cfg.NodePorts)
	}
	for _, bad := range []string{"x", "10.0.0.0/24,10.1.0.0/24,10.2.0.0/24"} {
		if err := c.ParseFlags([]string{"--service-cluster-ip-range=" + bad}); err == nil {
			t.Errorf("%s is a range", bad)
		}
	}
}

func TestWhatTheEnvironmentAdds(t *testing.T) {
	for _, test := range []struct {
		value             string
		controllers, node bool
		fails             bool
	}{
		{"", false, false, false},
		{"controllers", true, false, false},
		{"nodes", true, true, false},
		{"controllers, nodes", true, true, false},
		{"everything", false, false, true},
	} {
		var cfg app.Config
		err := also(&cfg, test.value)
		if (err != nil) != test.fails || (len(cfg.Controllers) > 0) != test.controllers || cfg.PretendNode != test.node {
			t.Errorf("%q: %v, controllers %v, node %v", test.value, err, cfg.Controllers, cfg.PretendNode)
		}
	}
}
