package volume

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const hostsFile = "/etc/hosts"

// writeHosts writes a pod's own /etc/hosts, with the host's entries when the pod
// is on the host's network.
func writeHosts(path string, pod *corev1.Pod, hosts Hosts) error {
	text := podHosts(pod, hosts)
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile(hostsFile)
		if err != nil {
			return err
		}
		text = append([]byte("# Kubernetes-managed hosts file (host network).\n"), host...)
	}
	text = append(text, aliases(pod.Spec.HostAliases)...)
	if held, err := os.ReadFile(path); err == nil && bytes.Equal(held, text) {
		return nil
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	return os.Chmod(path, 0o644)
}

// podHosts names a pod by each of its addresses. Compat: tests read the entries
// of IPv6 as they are.
func podHosts(pod *corev1.Pod, hosts Hosts) []byte {
	b := bytes.NewBufferString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	name := hosts.Hostname
	if name == "" {
		name = pod.Name
	}
	for _, ip := range hosts.PodIPs {
		if hosts.Domain != "" {
			fmt.Fprintf(b, "%s\t%s.%s\t%s\n", ip, name, hosts.Domain, name)
		} else {
			fmt.Fprintf(b, "%s\t%s\n", ip, name)
		}
	}
	return b.Bytes()
}

func aliases(list []corev1.HostAlias) string {
	if len(list) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range list {
		b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
	return b.String()
}
