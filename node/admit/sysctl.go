package admit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// safe are the settings of the kernel that a pod may have for itself without being
// in anybody's way. Compat: they are kubelet's.
var safe = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// sysctls refuses settings that others would feel: all but the safe ones, and
// those of a namespace that the pod shares with its node.
func sysctls(pod *corev1.Pod) *Refusal {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		why := ""
		switch {
		case !slices.Contains(safe, name):
			why = fmt.Sprintf("%q not allowlisted", s.Name)
		case pod.Spec.HostNetwork && strings.HasPrefix(name, "net."):
			why = fmt.Sprintf("%q not allowed with host Net enabled", s.Name)
		case pod.Spec.HostIPC && strings.HasPrefix(name, "kernel."):
			why = fmt.Sprintf("%q not allowed with host IPC enabled", s.Name)
		}
		if why != "" {
			return &Refusal{"SysctlForbidden", "forbidden sysctl: " + why}
		}
	}
	return nil
}
