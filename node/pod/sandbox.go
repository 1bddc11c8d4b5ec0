package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/observe"
)

// longestName is what fits into the kernel's field for a host's name.
const longestName = 64

// sandboxConfig is a pod's sandbox as a runtime is told.
func (r *Runner) sandboxConfig(pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	if err := r.checkUsers(pod); err != nil {
		return nil, err
	}
	dns, err := r.cfg.DNS(pod)
	if err != nil {
		return nil, err
	}
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:   observe.SandboxLabels(pod, r.cfg.Owner), Annotations: pod.Annotations, DnsConfig: dns, LogDirectory: LogFolder(r.cfg.Logs, pod), PortMappings: portMappings(pod),
	}
	if !pod.Spec.HostNetwork {
		if cfg.Hostname, err = Hostname(pod, r.cfg.Domain); err != nil {
			return nil, err
		}
	}
	resources, overhead := r.cfg.Data.SandboxResources(pod)
	cfg.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent: r.cfg.Data.CgroupParent(pod), SecurityContext: sandboxSecurity(pod), Sysctls: map[string]string{}, Resources: resources, Overhead: overhead,
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			cfg.Linux.Sysctls[dotted(s.Name)] = s.Value
		}
	}
	return cfg, nil
}

// LogFolder is where the logs of a pod's containers are.
func LogFolder(logs string, pod *corev1.Pod) string {
	return filepath.Join(logs, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// Hostname is a pod's name for itself.
func Hostname(pod *corev1.Pod, domain string) (string, error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		return cut(*o), nil
	}
	name := pod.Spec.Hostname
	if name == "" {
		name = pod.Name
	}
	name = cut(name)
	full := Subdomain(pod, domain)
	if full == "" || pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN {
		return name, nil
	}
	if fqdn := name + "." + full; len(fqdn) <= longestName {
		return fqdn, nil
	}
	fqdn := name + "." + full
	return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", fqdn, longestName, len(fqdn))
}

// Subdomain is the domain that a pod says it is in, "" when it does not.
func Subdomain(pod *corev1.Pod, domain string) string {
	if pod.Spec.Subdomain == "" || pod.Spec.HostnameOverride != nil {
		return ""
	}
	return fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, domain)
}

// cut shortens a name to what a label of a domain may have.
func cut(name string) string {
	const most = 63
	if len(name) <= most {
		return name
	}
	return strings.TrimRight(name[:most], "-.")
}

// dotted is a sysctl's name with dots between its parts: runtimes know no other.
func dotted(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// portMappings are the ports that a pod has on its node: each once.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	var all []*runtimeapi.PortMapping
	for _, c := range slices.Concat(pod.Spec.Containers, sidecars(pod)) {
		for _, p := range c.Ports {
			protocol := map[corev1.Protocol]runtimeapi.Protocol{corev1.ProtocolUDP: runtimeapi.Protocol_UDP, corev1.ProtocolSCTP: runtimeapi.Protocol_SCTP}[p.Protocol]
			m := &runtimeapi.PortMapping{HostIp: p.HostIP, HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: protocol}
			if p.HostPort == 0 || slices.ContainsFunc(all, func(o *runtimeapi.PortMapping) bool {
				return o.HostIp == m.HostIp && o.HostPort == m.HostPort && o.Protocol == m.Protocol
			}) {
				continue
			}
			all = append(all, m)
		}
	}
	return all
}

func sidecars(pod *corev1.Pod) []corev1.Container {
	var all []corev1.Container
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// runSandbox makes a sandbox.
func (r *Runner) runSandbox(ctx context.Context, pod *corev1.Pod, cfg *runtimeapi.PodSandboxConfig) (string, error) {
	if err := os.MkdirAll(cfg.LogDirectory, 0o755); err != nil {
		return "", err
	}
	handler, err := r.Handler(pod)
	if err != nil {
		return "", err
	}
	return r.cfg.Runtime.RunPodSandbox(ctx, cfg, handler)
}

// Handler is the runtime's name of a pod's runtime class, "" when it has none.
func (r *Runner) Handler(pod *corev1.Pod) (string, error) {
	switch {
	case pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "":
		return "", nil
	case r.cfg.Handler == nil:
		return "", errors.New("runtime classes are not known here")
	}
	return r.cfg.Handler(pod)
}

// checkUsers refuses pods that want users of their own. Compat: where the runtime
// cannot give them, the words are kubelet's.
func (r *Runner) checkUsers(pod *corev1.Pod) error {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil
	}
	handler, err := r.Handler(pod)
	switch {
	case err != nil:
		return err
	case r.cfg.Features(handler).UserNamespaces:
		return errors.New("can't set `spec.hostUsers: false`, this node does not support user namespaces")
	case handler != "":
		return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	return errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
}
