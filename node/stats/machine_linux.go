package stats

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// machine is what the kernel says of this machine.
type machine struct{}

// hertz is how many ticks of /proc/stat a second has, on every architecture that
// Linux has today.
const hertz = 100

// processor is the time that all processors together have worked, in nanoseconds.
func (machine) processor() (uint64, bool) {
	// cpu user nice system idle iowait irq softirq steal ...
	f := strings.Fields(firstLine("/proc/stat"))
	if len(f) < 8 {
		return 0, false
	}
	var ticks uint64
	for i, text := range f {
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return ticks * uint64(time.Second/hertz), true
}

// booted is when the machine was started.
func (machine) booted() time.Time {
	for line := range lines("/proc/stat") {
		if text, is := strings.CutPrefix(line, "btime "); is {
			sec, err := strconv.ParseInt(text, 10, 64)
			if err == nil {
				return time.Unix(sec, 0)
			}
		}
	}
	return time.Time{}
}

// memory is what is used of the machine's memory, and of its swap; nil when that is
// not known. The working set leaves out what is kept of files and may go.
func (machine) memory() (*statsapi.MemoryStats, *statsapi.SwapStats) {
	is := map[string]uint64{}
	for line := range lines("/proc/meminfo") {
		name, rest, _ := strings.Cut(line, ":")
		n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err == nil {
			is[name] = n << 10
		}
	}
	total := is["MemTotal"]
	if total == 0 {
		return nil, nil
	}
	usage := total - is["MemFree"]
	working := usage - min(usage, is["Inactive(file)"])
	available := total - working
	rss, swapFree := is["AnonPages"], is["SwapFree"]
	swapUsed := is["SwapTotal"] - swapFree
	return &statsapi.MemoryStats{UsageBytes: &usage, WorkingSetBytes: &working, AvailableBytes: &available, RSSBytes: &rss},
		&statsapi.SwapStats{SwapAvailableBytes: &swapFree, SwapUsageBytes: &swapUsed}
}

// processes is how many there are and may be; nil when that is not known.
func (machine) processes() *statsapi.RlimitStats {
	limit, err := strconv.ParseInt(firstLine("/proc/sys/kernel/pid_max"), 10, 64)
	if err != nil {
		return nil
	}
	// 0.25 0.82 1.89 2/345 6789: running and all
	f := strings.Fields(firstLine("/proc/loadavg"))
	if len(f) < 4 {
		return nil
	}
	_, all, _ := strings.Cut(f[3], "/")
	have, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return nil
	}
	return &statsapi.RlimitStats{MaxPID: &limit, NumOfRunningProcesses: &have}
}

// interfaces are those of the network of a process, but for loopback; 0 is that of
// this process.
func (machine) interfaces(pid int) []statsapi.InterfaceStats {
	from := "/proc/self/net/dev"
	if pid > 0 {
		from = fmt.Sprintf("/proc/%d/net/dev", pid)
	}
	var all []statsapi.InterfaceStats
	for line := range lines(from) {
		//  eth0: bytes packets errs drop fifo frame compressed multicast, then the same of what was sent
		name, rest, found := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if name = strings.TrimSpace(name); !found || name == "lo" || len(f) < 16 {
			continue
		}
		one := statsapi.InterfaceStats{Name: name}
		for i, to := range map[int]**uint64{0: &one.RxBytes, 2: &one.RxErrors, 8: &one.TxBytes, 10: &one.TxErrors} {
			if n, err := strconv.ParseUint(f[i], 10, 64); err == nil {
				*to = &n
			}
		}
		all = append(all, one)
	}
	return all
}

// mainInterface is the one that leads out.
func (machine) mainInterface() string {
	for line := range lines("/proc/net/route") {
		if f := strings.Fields(line); len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			return f[0]
		}
	}
	return ""
}

// disk is how full the disk of a folder is; nil when that is not known.
func (machine) disk(dir string) *statsapi.FsStats {
	var fs unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &fs) != nil {
		return nil
	}
	size := uint64(fs.Bsize) //nolint:gosec // it is positive
	available, capacity := fs.Bavail*size, fs.Blocks*size
	used := (fs.Blocks - fs.Bfree) * size
	inodesUsed := fs.Files - fs.Ffree
	return &statsapi.FsStats{
		Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		Inodes: &fs.Files, InodesFree: &fs.Ffree, InodesUsed: &inodesUsed,
	}
}

// lines yields the lines of a file of the kernel; none when it cannot be read.
func lines(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		data, err := os.ReadFile(path)
		if err != nil {
			return
		}
		for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}

func firstLine(path string) string {
	for line := range lines(path) {
		return line
	}
	return ""
}
