package register

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

func machine(dir string) Machine {
	m := common(dir)
	for line := range strings.Lines(text("/proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			kilo, _ := strconv.ParseInt(fields[1], 10, 64)
			m.Memory = kilo << 10
		}
	}
	m.HugePages = map[string]int64{}
	dirs, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	for _, d := range dirs {
		kilo, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		count, _ := strconv.ParseInt(text(filepath.Join(d, "nr_hugepages")), 10, 64)
		m.HugePages[resource.NewQuantity(kilo<<10, resource.BinarySI).String()] = kilo << 10 * count
	}
	m.MachineID = text("/etc/machine-id")
	m.SystemUUID = text("/sys/class/dmi/id/product_uuid")
	if m.SystemUUID == "" {
		m.SystemUUID = m.MachineID
	}
	m.BootID = text("/proc/sys/kernel/random/boot_id")
	m.System = "Linux"
	for line := range strings.Lines(text("/etc/os-release")) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			m.System = strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

// text is what a small file holds; nothing when it cannot be read.
func text(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}
