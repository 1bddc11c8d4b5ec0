package node_test

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"setpoint.dev/setpoint/node/nodetest"
)

// counted is everything on a machine that running pods can leave behind, by what
// it is. A thing that is there twice has two lines.
type counted map[string][]string

// count looks at a machine that is the test's own. dir is the node's folder, and
// containerd is nil where there is none.
func count(t *testing.T, dir string, containerd *nodetest.Runtime) counted {
	t.Helper()
	c := counted{}
	c["processes"], c["network namespaces"] = processes(t)
	c["mounts"] = mounts(t)
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		c["links"] = append(c["links"], l.Name)
	}
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		for _, line := range output(t, save) {
			// Chains of the kernel stay once anybody has looked at their table.
			if strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, ":") && strings.Contains(line, " - ") {
				c["rules"] = append(c["rules"], save+" "+line)
			}
		}
	}
	c["control groups"] = below(t, "/sys/fs/cgroup", func(_ string, d fs.DirEntry) bool { return d.IsDir() })
	c["files"] = below(t, dir, func(path string, _ fs.DirEntry) bool { return !kept(path) })
	if containerd != nil {
		c["containers"] = ctr(t, containerd, "containers", "list", "-q")
		c["tasks"] = ctr(t, containerd, "tasks", "list", "-q")
		for _, line := range ctr(t, containerd, "snapshots", "list") {
			if strings.HasSuffix(strings.TrimSpace(line), " Active") { // others are images
				c["snapshots"] = append(c["snapshots"], line)
			}
		}
	}
	for _, all := range c {
		slices.Sort(all)
	}
	return c
}

// kept says whether a file of a node's folder is meant to stay when its pod goes:
// the images that were unpacked, and which address was given out last.
func kept(path string) bool {
	return strings.Contains(path, "/process/unpacked/") || strings.Contains(path, "/process/images/") || strings.HasPrefix(filepath.Base(path), "last_reserved_ip.")
}

// What a node leaves on purpose, for the next pod or the next node: afterwards its
// folder with a lock, where pods' data, logs, addresses and the process runtime's
// records are kept, and the bridge of its pods, as the plugins of CNI leave it under
// a kubelet; whileItRuns also the groups of pods' classes. nodetest has a bridge of
// its own.
var (
	afterwards  = regexp.MustCompile(`^more (links: (setpoint0|sp\d+-\d+)|files: .*/node/(lock|pods|logs|addresses(/setpoint(/lock)?)?|process(/(images|unpacked|sandboxes|containers))?))$`)
	whileItRuns = regexp.MustCompile(afterwards.String() + `|^more control groups: .*/kubepods(/besteffort|/burstable)?$`)
	// afterKills: containerd 1.6 forgets the rules, and now and then the shim, of a
	// sandbox whose making is called off with the agent that asked for it. Nothing runs
	// in such a shim.
	afterKills = regexp.MustCompile(whileItRuns.String() + `|^more (rules: iptables-save (:CNI-|-A CNI-|-A POSTROUTING .*-j CNI-)|processes: \S*containerd-shim)`)
)

// left is what is there and was not before, or the other way round, but for what is
// on purpose.
func left(now, before counted, onPurpose *regexp.Regexp) string {
	lines := slices.DeleteFunc(now.since(before), onPurpose.MatchString)
	return strings.Join(lines, "\n")
}

// since are the things that are there and were not before, and those that were and
// are not, one a line.
func (c counted) since(before counted) []string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		all = append(all, more("more "+what, c[what], before[what])...)
		all = append(all, more("fewer "+what, before[what], c[what])...)
	}
	return all
}

// more are the lines of a list that another has not, or not as often.
func more(word string, list, than []string) []string {
	left := map[string]int{}
	for _, line := range than {
		left[line]++
	}
	var all []string
	for _, line := range list {
		if left[line]--; left[line] < 0 {
			all = append(all, word+": "+line)
		}
	}
	return all
}

// String is how many there are of each.
func (c counted) String() string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("%d %s", len(c[what]), what))
	}
	return strings.Join(all, ", ")
}

// processes are those that run, but for this one, and the networks they are in.
func processes(t *testing.T) (lines, networks []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || len(line) == 0 { // it has just ended
			continue
		}
		lines = append(lines, strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
		if ns, err := os.Readlink(filepath.Join("/proc", e.Name(), "ns/net")); err == nil && !slices.Contains(networks, ns) {
			networks = append(networks, ns)
		}
	}
	return lines, networks
}

func mounts(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			all = append(all, fields[4])
		}
	}
	return all
}

// below are the files below a folder that are wanted. What goes while it is looked
// at is not there.
func below(t *testing.T, dir string, want func(path string, d fs.DirEntry) bool) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != dir && want(path, d) {
			all = append(all, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// output are the lines that a program says.
func output(t *testing.T, name string, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// ctr are the lines that a containerd's own client says, but for heads and blanks.
func ctr(t *testing.T, r *nodetest.Runtime, args ...string) []string {
	t.Helper()
	lines := output(t, "ctr", append([]string{"--address", r.Socket, "--namespace", "k8s.io"}, args...)...)
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.HasPrefix(line, "KEY") })
}
