package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/node/cgroup"
	"setpoint.dev/setpoint/node/env"
	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/source"
	"setpoint.dev/setpoint/node/volume"
)

// data is what pods are given: volumes, environments, cgroups, and what they
// refer to.
type data struct {
	name     string
	domain   string
	self     func() *corev1.Node
	hostIPs  func() []string
	services listers.ServiceLister
	say      pod.Say

	source  *source.Source
	volumes *volume.Volumes
	tree    *cgroup.Tree
}

// newData returns what pods of an agent are given.
func newData(a *Agent, client kubernetes.Interface, logger *slog.Logger) *data {
	d := &data{name: a.cfg.Name, domain: a.cfg.DNS.Domain, self: a.self, hostIPs: a.cfg.HostIPs, services: a.serviceLister(), say: a.say, tree: cgroup.Open(a.cfg.Cgroups)}
	d.source = source.New(source.Config{Client: client, Logger: logger, Changed: func(pods []types.UID) {
		for _, uid := range pods {
			a.Wake(uid)
		}
	}})
	d.volumes = volume.New(volume.Config{
		Dir: filepath.Join(a.cfg.Dir, "pods"), Sources: d.source, NodeAllocatable: d.allocatable, Logger: logger,
		Event: func(p *corev1.Pod, kind, reason, message string) { a.say(p, nil, kind, reason, message) },
	})
	return d
}

func (d *data) allocatable() corev1.ResourceList {
	if n := d.self(); n != nil {
		return n.Status.Allocatable
	}
	return nil
}

// Env implements Data.
func (d *data) Env(ctx context.Context, p *corev1.Pod, c *corev1.Container, ips []string) ([]*runtimeapi.KeyValue, error) {
	return env.Of(ctx, p, c, env.Input{
		PodIPs: ips, HostIPs: d.hostIPs(), NodeName: d.name, Allocatable: d.allocatable(), Sources: d.source,
		Services: func(namespace string) []*corev1.Service {
			all, err := d.services.Services(namespace).List(labels.Everything())
			if err != nil { // a cache does not fail
				return nil
			}
			return all
		},
		VolumePath: func(name string) (string, error) { return d.volumes.Path(ctx, p, name) },
	})
}

// Mounts implements Data.
func (d *data) Mounts(ctx context.Context, p *corev1.Pod, c *corev1.Container, given pod.Given) ([]*runtimeapi.Mount, error) {
	host, err := pod.Hostname(p, d.domain)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(host, ".")
	return d.volumes.Mounts(ctx, p, c, volume.Hosts{
		PodIPs: given.IPs, Hostname: name, Domain: pod.Subdomain(p, d.domain), Env: given.Env, Images: given.Images, RecursiveReadOnly: given.Features.RecursiveReadOnly,
	})
}

// PullSecrets implements Data. Those that are not there are left out.
func (d *data) PullSecrets(ctx context.Context, p *corev1.Pod) []*corev1.Secret {
	var all []*corev1.Secret
	var missing []string
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := d.source.Secret(ctx, p.Namespace, ref.Name)
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		all = append(all, s)
	}
	if len(missing) > 0 {
		d.say(p, nil, corev1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
	return all
}

// CgroupParent implements Data.
func (d *data) CgroupParent(p *corev1.Pod) string { return d.tree.Parent(p) }

// Resources implements Data.
func (d *data) Resources(p *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	return cgroup.Linux(p, c, d.allocatable())
}

// SandboxResources implements Data.
func (d *data) SandboxResources(p *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	bare := p.DeepCopy()
	bare.Spec.Overhead = nil
	resources = cgroup.Pod(bare)
	if len(p.Spec.Overhead) > 0 {
		alone := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: p.Spec.Overhead, Limits: p.Spec.Overhead}}}}}
		overhead = cgroup.Pod(alone)
	}
	return resources, overhead
}

// Expand implements Data.
func (d *data) Expand(text string, values map[string]string) string {
	return env.Expand(text, func(name string) (string, bool) { v, ok := values[name]; return v, ok })
}

// Use implements Data.
func (d *data) Use(p *corev1.Pod) { d.source.Use(p) }

// Prepare implements Data.
func (d *data) Prepare(ctx context.Context, p *corev1.Pod) error {
	if err := d.tree.Ensure(p); err != nil {
		d.say(p, nil, corev1.EventTypeWarning, "FailedCreatePodContainer", fmt.Sprintf("unable to ensure pod container exists: %v", err))
		return err
	}
	err := d.volumes.Prepare(ctx, p)
	var all interface{ Unwrap() []error }
	switch {
	case err == nil:
	case errors.As(err, &all):
		for _, one := range all.Unwrap() {
			d.say(p, nil, corev1.EventTypeWarning, "FailedMount", one.Error())
		}
	default:
		d.say(p, nil, corev1.EventTypeWarning, "FailedMount", err.Error())
	}
	return err
}

// Release implements Data.
func (d *data) Release(ctx context.Context, uid types.UID) error {
	p := &corev1.Pod{}
	p.UID = uid
	d.source.Forget(p)
	if err := d.volumes.Remove(ctx, uid); err != nil {
		return err
	}
	return d.tree.Remove(uid)
}

// Used implements Data.
func (d *data) Used(p *corev1.Pod) []statsapi.VolumeStats { return d.volumes.Used(p) }

// Left implements Data. Groups are not looked at: others may have some.
func (d *data) Left() ([]types.UID, error) { return d.volumes.Known() }

// Run keeps what pods refer to at hand until ctx ends.
func (d *data) Run(ctx context.Context) error { return d.source.Run(ctx) }

// Clear implements Data. The groups that pods' are in stay while there are any.
func (d *data) Clear() { d.tree.Clear() }
