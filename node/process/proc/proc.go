//go:build linux

// Package proc reads what the kernel says about processes.
//
// A pid is given anew after its process has ended; a pid with the time its
// process began (Stat.Began) is not.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Stat is what is known of a process at one moment.
type Stat struct {
	PID, Parent, Session int
	// State is R, S, D, Z and so on.
	State byte
	// Began is when it began, in ticks since the machine did.
	Began uint64
	// CPU is the time it ran, with that of its children that have ended.
	CPU time.Duration
	// Resident is its memory, in bytes.
	Resident uint64
	// Faults and MajorFaults count pages that were not there.
	Faults, MajorFaults uint64
}

// ticks is how many of the kernel's ticks a second has: USER_HZ, which is 100
// on every machine Go runs on.
const ticks = 100

// Read reads one process.
func Read(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return parse(b)
}

// parse reads the text of /proc/PID/stat. The name of a program stands in
// parentheses and may hold any byte.
func parse(b []byte) (Stat, error) {
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || shut < open {
		return Stat{}, fmt.Errorf("stat of a process has no name: %q", b)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:open])))
	if err != nil {
		return Stat{}, err
	}
	fields := strings.Fields(string(b[shut+1:]))
	const needed = 22
	if len(fields) < needed || fields[0] == "" {
		return Stat{}, fmt.Errorf("stat of process %d is short", pid)
	}
	// number reads a field by its number in proc_pid_stat(5).
	number := func(field int) uint64 {
		n, perr := strconv.ParseInt(fields[field-3], 10, 64)
		if perr != nil || n < 0 {
			// Compat: start times beyond int64 do not exist; times of the dead may be negative.
			return 0
		}
		return uint64(n)
	}
	return Stat{
		PID: pid, State: fields[0][0], Parent: int(number(4)), Session: int(number(6)),
		Faults: number(10), MajorFaults: number(12),
		CPU:   time.Duration(number(14)+number(15)+number(16)+number(17)) * (time.Second / ticks),
		Began: number(22), Resident: number(24) * uint64(os.Getpagesize()),
	}, nil
}

// All reads every process that can be seen. Those that end meanwhile are left
// out.
func All() ([]Stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []Stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := Read(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// Below gives the processes that descend from one, without it.
func Below(all []Stat, pid int) []Stat {
	children := map[int][]Stat{}
	for _, s := range all {
		children[s.Parent] = append(children[s.Parent], s)
	}
	var below []Stat
	seen := map[int]bool{pid: true}
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, s := range children[next[0]] {
			if !seen[s.PID] {
				seen[s.PID] = true
				below = append(below, s)
				next = append(next, s.PID)
			}
		}
	}
	return below
}

// Boot tells one run of the machine from another.
func Boot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
