package register

import "golang.org/x/sys/unix"

func machine(dir string) Machine {
	m := common(dir)
	if memory, err := unix.SysctlUint64("hw.memsize"); err == nil {
		m.Memory = int64(memory)
	}
	m.System = "macOS"
	m.Kernel, _ = unix.Sysctl("kern.osrelease")
	m.MachineID, _ = unix.Sysctl("kern.uuid")
	m.SystemUUID = m.MachineID
	m.BootID, _ = unix.Sysctl("kern.bootsessionuuid")
	return m
}
