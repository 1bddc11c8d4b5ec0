//go:build linux

// Package cgroup gives a container a control group of its own, where that is
// allowed: version 2, or version 1 with a hierarchy for each controller.
//
// In come a path below the root of the groups and limits; out come a Group that
// processes are started in, and what it has used. What always holds: a Group is
// plain data, so whoever reads it from a file can use it.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// controllers are those that a container is put under.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "pids"}

// Group is a control group.
type Group struct {
	// Unified is its folder in version 2.
	Unified string `json:"unified,omitempty"`
	// Split are its folders in version 1, by controller.
	Split map[string]string `json:"split,omitempty"`
}

// Hierarchy is where groups are.
type Hierarchy struct {
	unified string
	split   map[string]string
}

// Mounted finds where groups are on this machine, and fails if nowhere.
func Mounted() (*Hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	h := &Hierarchy{split: map[string]string{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(mount) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			if h.unified == "" {
				h.unified = mount[4]
			}
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if slices.Contains(controllers, option) && h.split[option] == "" {
					h.split[option] = mount[4]
				}
			}
		}
	}
	if len(h.split) > 0 {
		h.unified = "" // a hybrid: the controllers are in version 1
	}
	if h.unified == "" && len(h.split) == 0 {
		return nil, errors.New("no control groups are mounted")
	}
	return h, nil
}

// Version is 1 or 2.
func (h *Hierarchy) Version() int {
	if h.unified != "" {
		return 2
	}
	return 1
}

// Own is the group that those lie in who are told no other. It goes with the last
// of them.
const Own = "setpoint"

// Create makes a group and those above it. A group that cannot be made in whole
// is not made.
func (h *Hierarchy) Create(path string) (*Group, error) {
	g, err := h.create(path)
	// The group above may just have gone with its last.
	for try := 0; errors.Is(err, fs.ErrNotExist) && try < 10; try++ {
		g, err = h.create(path)
	}
	return g, err
}

func (h *Hierarchy) create(path string) (*Group, error) {
	path = filepath.Clean("/" + path)
	if h.unified != "" {
		dir := filepath.Join(h.unified, path)
		if err := h.delegate(filepath.Dir(path)); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		return &Group{Unified: dir}, nil
	}
	g := &Group{Split: map[string]string{}}
	for controller, mount := range h.split {
		dir := filepath.Join(mount, path)
		err := os.MkdirAll(dir, 0o755)
		if err == nil && controller == "cpuset" {
			err = inheritCPUs(mount, path)
		}
		g.Split[controller] = dir
		if err != nil {
			return nil, errors.Join(err, g.Remove())
		}
	}
	return g, nil
}

// delegate passes the controllers on to the groups below those of a path.
func (h *Hierarchy) delegate(path string) error {
	at := h.unified
	for _, part := range append([]string{""}, strings.Split(strings.Trim(path, "/"), "/")...) {
		at = filepath.Join(at, part)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		for _, controller := range []string{"cpu", "cpuset", "memory", "pids"} {
			// What is not there, or not ours to give, shows where a limit is set.
			_ = write(at, "cgroup.subtree_control", "+"+controller)
		}
	}
	return nil
}

// inheritCPUs fills in the sets of a new group and those above: in version 1 an
// empty set takes no process.
func inheritCPUs(mount, path string) error {
	at := mount
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		above := at
		at = filepath.Join(at, part)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			have, err := os.ReadFile(filepath.Join(at, file))
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(have)) != "" {
				continue
			}
			from, err := os.ReadFile(filepath.Join(above, file))
			if err != nil {
				return err
			}
			if err := write(at, file, strings.TrimSpace(string(from))); err != nil {
				return err
			}
		}
	}
	return nil
}

func write(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0)
}

// EnterThread puts the calling thread into a group of version 1, so that what it
// starts begins there. Version 2 has no such thing; see Unified.
func (g *Group) EnterThread() error {
	for _, dir := range g.Split {
		if err := write(dir, "tasks", strconv.Itoa(unix.Gettid())); err != nil {
			return err
		}
	}
	return nil
}

// Processes gives the pids in the group.
func (g *Group) Processes() ([]int, error) {
	var pids []int
	for _, dir := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return nil, err
		}
		for field := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

func (g *Group) dirs() []string {
	if g.Unified != "" {
		return []string{g.Unified}
	}
	var dirs []string
	for _, dir := range g.Split {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Remove removes the group, which has no process left. It is no error if it is
// gone. A group that processes are just leaving is tried again for a while.
func (g *Group) Remove() error {
	var errs []error
	for _, dir := range g.dirs() {
		err := unix.Rmdir(dir)
		for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait < time.Second; wait *= 2 {
			time.Sleep(wait)
			err = unix.Rmdir(dir)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove control group %s: %w", dir, err))
		}
		if above := filepath.Dir(dir); filepath.Base(above) == Own {
			_ = unix.Rmdir(above) // it stays while there are others in it
		}
	}
	return errors.Join(errs...)
}
