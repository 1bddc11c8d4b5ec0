//go:build linux

package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWeight: the ends of both scales meet, and what a pod has by default.
func TestWeight(t *testing.T) {
	for shares, want := range map[int64]int64{0: 1, 2: 1, 1024: 100, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("%d shares weigh %d, want %d", shares, got, want)
		}
	}
}

// TestUnified is version 2 on files that look like it.
func TestUnified(t *testing.T) {
	h := &Hierarchy{unified: t.TempDir()}
	g, err := h.Create("/pods/one")
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"cgroup.procs": "12\n13\n", "memory.events": "low 0\noom 2\noom_kill 1\n", "memory.current": "5000\n", "memory.max": "max\n",
		"memory.stat": "anon 3000\ninactive_file 1000\npgfault 7\npgmajfault 1\n", "cpu.stat": "usage_usec 42\n",
		"cpu.weight": "", "cpu.max": "", "memory.swap.max": "", "pids.max": "",
	} {
		if err := os.WriteFile(filepath.Join(g.Unified, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := g.Used()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Usage{CPU: 42000, Memory: 5000, WorkingSet: 4000, Resident: 3000, Faults: 7, MajorFaults: 1, Processes: 2}, u); diff != "" {
		t.Error(diff)
	}
	if g.OOMKills() != 1 {
		t.Errorf("%d kills", g.OOMKills())
	}
	if err := g.Set(Limits{Shares: 1024, Quota: 50000, Period: 100000, Memory: 1 << 20, Swap: 3 << 20, Unified: map[string]string{"pids.max": "9"}}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.weight": "100", "cpu.max": "50000 100000", "memory.max": "1048576", "memory.swap.max": "2097152", "pids.max": "9"} {
		if got, err := os.ReadFile(filepath.Join(g.Unified, file)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v, want %q", file, got, err, want)
		}
	}
	if err := g.Set(Limits{Unified: map[string]string{"../../escape": "1"}}); err == nil {
		t.Error("a file outside of the group was written")
	}
}
