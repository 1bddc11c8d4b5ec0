//go:build linux

package cgroup

import (
	"bufio"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits are what a group may use; zero is no limit.
type Limits struct {
	// Shares weigh the group against others, as in version 1.
	Shares int64
	// Quota is the time it may run in a Period, in microseconds.
	Quota, Period int64
	// Memory is in bytes, and so is Swap: both together.
	Memory, Swap int64
	// CPUs and Memories are lists as "0-3,7".
	CPUs, Memories string
	// Unified are files of version 2 with their text.
	Unified map[string]string
}

// Set limits the group.
func (g *Group) Set(l Limits) error {
	if g.Unified != "" {
		return g.setUnified(l)
	}
	return g.setSplit(l)
}

func (g *Group) setSplit(l Limits) error {
	if l.Shares > 0 {
		if err := g.put("cpu", "cpu.shares", l.Shares); err != nil {
			return err
		}
	}
	if l.Period > 0 {
		if err := g.put("cpu", "cpu.cfs_period_us", l.Period); err != nil {
			return err
		}
	}
	if l.Quota != 0 {
		if err := g.put("cpu", "cpu.cfs_quota_us", l.Quota); err != nil {
			return err
		}
	}
	if l.CPUs != "" {
		if err := write(g.Split["cpuset"], "cpuset.cpus", l.CPUs); err != nil {
			return err
		}
	}
	if l.Memories != "" {
		if err := write(g.Split["cpuset"], "cpuset.mems", l.Memories); err != nil {
			return err
		}
	}
	if l.Memory != 0 {
		return g.put("memory", "memory.limit_in_bytes", l.Memory)
	}
	return nil
}

func (g *Group) put(controller, file string, n int64) error {
	dir, ok := g.Split[controller]
	if !ok {
		return fmt.Errorf("set %s: the controller %s is not mounted", file, controller)
	}
	return write(dir, file, strconv.FormatInt(n, 10))
}

func (g *Group) setUnified(l Limits) error {
	set := map[string]string{}
	if l.Shares > 0 {
		set["cpu.weight"] = strconv.FormatInt(weight(l.Shares), 10)
	}
	if l.Quota != 0 || l.Period > 0 {
		quota, period := "max", l.Period
		if l.Quota > 0 {
			quota = strconv.FormatInt(l.Quota, 10)
		}
		if period <= 0 {
			period = 100_000
		}
		set["cpu.max"] = quota + " " + strconv.FormatInt(period, 10)
	}
	if l.CPUs != "" {
		set["cpuset.cpus"] = l.CPUs
	}
	if l.Memories != "" {
		set["cpuset.mems"] = l.Memories
	}
	switch {
	case l.Memory > 0:
		set["memory.max"] = strconv.FormatInt(l.Memory, 10)
	case l.Memory < 0:
		set["memory.max"] = "max"
	}
	if l.Swap > 0 && l.Swap >= l.Memory {
		set["memory.swap.max"] = strconv.FormatInt(l.Swap-l.Memory, 10)
	}
	maps.Copy(set, l.Unified)
	for _, file := range slices.Sorted(maps.Keys(set)) {
		if file != filepath.Base(file) {
			return fmt.Errorf("%q is no file of a control group", file)
		}
		if err := write(g.Unified, file, set[file]); err != nil {
			return err
		}
	}
	return nil
}

// weight turns shares of version 1 into a weight of version 2.
// Compat: the curve is the one runc and crun use since cgroups v0.0.6.
func weight(shares int64) int64 {
	const least, most = 2, 262144
	s := min(max(shares, least), most)
	l := math.Log2(float64(s))
	exponent := (l*l+125*l)/612 - 7.0/34
	return int64(math.Ceil(math.Pow(10, exponent)))
}

// OOMKills counts the processes of the group that were killed for want of
// memory.
func (g *Group) OOMKills() uint64 {
	dir, file := g.Unified, "memory.events"
	if dir == "" {
		dir, file = g.Split["memory"], "memory.oom_control"
	}
	return keyed(filepath.Join(dir, file))["oom_kill"]
}

// Usage is what a group has used.
type Usage struct {
	CPU                 time.Duration
	Memory, WorkingSet  uint64
	Resident            uint64
	Faults, MajorFaults uint64
	Limit               uint64 // of memory; 0 is none
	Processes           uint64
}

// Used reads what the group has used.
func (g *Group) Used() (Usage, error) {
	pids, err := g.Processes()
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Processes: uint64(len(pids))}
	var inactive uint64
	if g.Unified != "" {
		u.CPU = time.Duration(keyed(filepath.Join(g.Unified, "cpu.stat"))["usage_usec"]) * time.Microsecond
		u.Memory = number(g.Unified, "memory.current")
		u.Limit = number(g.Unified, "memory.max")
		stat := keyed(filepath.Join(g.Unified, "memory.stat"))
		inactive, u.Resident, u.Faults, u.MajorFaults = stat["inactive_file"], stat["anon"], stat["pgfault"], stat["pgmajfault"]
	} else {
		u.CPU = time.Duration(number(g.Split["cpuacct"], "cpuacct.usage"))
		u.Memory = number(g.Split["memory"], "memory.usage_in_bytes")
		u.Limit = number(g.Split["memory"], "memory.limit_in_bytes")
		stat := keyed(filepath.Join(g.Split["memory"], "memory.stat"))
		inactive, u.Resident, u.Faults, u.MajorFaults = stat["total_inactive_file"], stat["total_rss"], stat["total_pgfault"], stat["total_pgmajfault"]
	}
	if u.Limit > math.MaxInt64/2 {
		u.Limit = 0 // how version 1 says that there is none
	}
	if u.WorkingSet = u.Memory - inactive; inactive > u.Memory {
		u.WorkingSet = 0
	}
	return u, nil
}

// number reads a file with one number; what cannot be read, or is "max", is 0.
func number(dir, file string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// keyed reads a file with a name and a number in each line.
func keyed(path string) map[string]uint64 {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // it was only read
	all := map[string]uint64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			all[key] = n
		}
	}
	return all
}
