package contract

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func environment(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell(`echo "$GREETING"; echo "$EMPTY|"; pwd; test -n "$PATH" && echo path`)
	config.Envs = []*runtimeapi.KeyValue{{Key: "GREETING", Value: []byte("hello, world=1")}, {Key: "EMPTY", Value: []byte("")}}
	config.WorkingDir = "/tmp"
	if diff := cmp.Diff([]string{"hello, world=1", "|", "/tmp", "path"}, p.says(t, config)); diff != "" {
		t.Error(diff)
	}
}

func user(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("id -u; id -g; sleep 1000")
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 4321}
	config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 8765}
	id := p.start(t, config)
	if got := b.sh(t, id, "id -u; id -g"); got != "4321\n8765" {
		t.Errorf("an exec runs as %q", got)
	}
	b.until(t, "it says who it is", func() bool { return logged(p, config, "4321") && logged(p, config, "8765") })
}

func groups(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("id -G")
	config.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: 4321}
	config.Linux.SecurityContext.RunAsGroup = &runtimeapi.Int64Value{Value: 8765}
	config.Linux.SecurityContext.SupplementalGroups = []int64{1001, 1002}
	got := strings.Fields(strings.Join(p.says(t, config), " "))
	for _, want := range []string{"8765", "1001", "1002"} {
		if !strings.Contains(" "+strings.Join(got, " ")+" ", " "+want+" ") {
			t.Errorf("groups %v lack %s", got, want)
		}
	}
}

func noNewPrivileges(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("grep NoNewPrivs /proc/self/status")
	config.Linux.SecurityContext.NoNewPrivs = true
	if got := p.says(t, config); len(got) != 1 || !strings.HasSuffix(got[0], "1") {
		t.Errorf("%q", got)
	}
}

func capabilities(t *testing.T, b *bench) {
	p := b.pod(t)
	const script = "grep CapBnd /proc/self/status | cut -f2"
	for name, test := range map[string]struct {
		asked *runtimeapi.Capability
		want  string
	}{
		"usual":   {nil, "00000000a80425fb"},
		"none":    {&runtimeapi.Capability{DropCapabilities: []string{"ALL"}}, "0000000000000000"},
		"one":     {&runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_ADMIN"}}, "0000000000001000"},
		"one off": {&runtimeapi.Capability{DropCapabilities: []string{"CHOWN"}}, "00000000a80425fa"},
	} {
		t.Run(name, func(t *testing.T) {
			config := p.shell(script)
			config.Linux.SecurityContext.Capabilities = test.asked
			if diff := cmp.Diff([]string{test.want}, p.says(t, config)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func mounts(t *testing.T, b *bench) {
	p := b.pod(t)
	dir, file := filepath.Join(b.dir, "volume"), filepath.Join(b.dir, "file")
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o777))
	must(t, os.Chmod(dir, 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "in"), []byte("from the host\n"), 0o644))
	must(t, os.WriteFile(file, []byte("a file\n"), 0o644))
	fresh := filepath.Join(b.dir, "made")
	config := p.shell(strings.Join([]string{
		"cat /volume/in",
		"echo from the container > /volume/out",
		"cat /deep/below/file",
		"cat /dev/termination-file",
		"ls /volume/sub",
		"cat /fixed/in",
		"touch /fixed/no 2>/dev/null || echo read-only",
		"test -d /made && echo made",
		"cat /etc/hosts",
		"cat /volume/new/file",
		"ls / > /dev/null && echo done",
	}, "; "))
	config.Mounts = []*runtimeapi.Mount{
		{HostPath: b.dir, ContainerPath: "/volume/sub"}, // below one that comes later
		{HostPath: dir, ContainerPath: "/volume"},
		{HostPath: file, ContainerPath: "/deep/below/file"},
		{HostPath: file, ContainerPath: "/dev/termination-file"},
		{HostPath: dir, ContainerPath: "/fixed", Readonly: true},
		{HostPath: fresh, ContainerPath: "/made"},
		{HostPath: file, ContainerPath: "/etc/hosts"},
		{HostPath: file, ContainerPath: "/volume/new/file"}, // a place that the volume lacks
	}
	want := []string{"from the host", "a file", "a file", "file", "made", p.config.GetMetadata().GetUid(), "volume", "from the host", "read-only", "made", "a file", "a file", "done"}
	got := p.says(t, config)
	// What the folder below shows is in the order of names.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	out, err := os.ReadFile(filepath.Join(dir, "out"))
	must(t, err)
	if string(out) != "from the container\n" {
		t.Errorf("the host sees %q", out)
	}
	for _, path := range []string{"/volume", "/deep", "/fixed", "/made", "/dev/termination-file"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was left on the host", path)
		}
	}
}

func coveredPaths(t *testing.T, b *bench) {
	p := b.pod(t)
	config := p.shell("cat /proc/version; ls /proc/irq; cat /proc/cmdline > /dev/null && echo seen; touch /tmp/no 2>/dev/null || echo fixed")
	config.Linux.SecurityContext.MaskedPaths = []string{"/proc/version", "/proc/irq", "/proc/no/such"}
	config.Linux.SecurityContext.ReadonlyPaths = []string{"/tmp", "/no/such"}
	if diff := cmp.Diff([]string{"seen", "fixed"}, p.says(t, config)); diff != "" {
		t.Error(diff)
	}
}

func readOnlyRoot(t *testing.T, b *bench) {
	p := b.pod(t)
	dir := filepath.Join(b.dir, "volume")
	must(t, os.Mkdir(dir, 0o777))
	must(t, os.Chmod(dir, 0o777))
	config := p.shell("touch /tmp/no 2>/dev/null || echo read-only; touch /volume/yes && echo volume; echo x > /dev/null && echo null")
	config.Linux.SecurityContext.ReadonlyRootfs = true
	config.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/volume"}}
	if diff := cmp.Diff([]string{"read-only", "volume", "null"}, p.says(t, config)); diff != "" {
		t.Error(diff)
	}
}

func hostname(t *testing.T, b *bench) {
	p := b.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.DnsConfig = &runtimeapi.DNSConfig{Servers: []string{"10.0.0.10"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:5"}}
	})
	config := p.shell("hostname; cat /etc/resolv.conf")
	want := []string{"contract-pod", "search a.example b.example", "nameserver 10.0.0.10", "options ndots:5"}
	if diff := cmp.Diff(want, p.says(t, config)); diff != "" {
		t.Error(diff)
	}
}
