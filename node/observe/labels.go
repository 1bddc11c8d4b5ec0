package observe

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels of sandboxes and containers. Compat: they are kubelet's, and other
// programs find containers by them.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// LabelOwner says which agent something is of. What others run beside it, a
// kubelet for one, is not looked at.
const LabelOwner = "node.setpoint.dev/owner"

// Annotations of containers: what an agent needs to go on with them that has
// never seen them before.
const (
	annotationHash             = "io.kubernetes.container.hash"
	annotationRestarts         = "io.kubernetes.container.restartCount"
	annotationMessagePath      = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy    = "io.kubernetes.container.terminationMessagePolicy"
	annotationPreStop          = "io.kubernetes.container.preStopHandler"
	annotationPorts            = "io.kubernetes.container.ports"
	annotationDeletionGrace    = "io.kubernetes.pod.deletionGracePeriod"
	annotationTerminationGrace = "io.kubernetes.pod.terminationGracePeriod"
)

// Hash is a sum of what a container is restarted for when it changes: its name
// and its image.
func Hash(c *corev1.Container) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Name + "\x00" + c.Image))
	return strconv.FormatUint(h.Sum64(), 16)
}

// SandboxLabels are those of a pod's sandbox: the pod's own, who it is, and whose.
func SandboxLabels(pod *corev1.Pod, owner string) map[string]string {
	labels := maps.Clone(pod.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, map[string]string{LabelPodName: pod.Name, LabelPodNamespace: pod.Namespace, LabelPodUID: string(pod.UID), LabelOwner: owner})
	return labels
}

// ContainerLabels say of whom a container is.
func ContainerLabels(pod *corev1.Pod, c *corev1.Container, owner string) map[string]string {
	return map[string]string{LabelPodName: pod.Name, LabelPodNamespace: pod.Namespace, LabelPodUID: string(pod.UID), LabelContainerName: c.Name, LabelOwner: owner}
}

// Annotations are what is written on a container when it is made.
func Annotations(pod *corev1.Pod, c *corev1.Container, restarts int32) map[string]string {
	a := map[string]string{
		annotationHash: Hash(c), annotationRestarts: strconv.Itoa(int(restarts)),
		annotationMessagePath: c.TerminationMessagePath, annotationMessagePolicy: string(c.TerminationMessagePolicy),
	}
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		a[annotationDeletionGrace] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		a[annotationTerminationGrace] = strconv.FormatInt(*grace, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		put(a, annotationPreStop, c.Lifecycle.PreStop)
	}
	if len(c.Ports) > 0 {
		put(a, annotationPorts, c.Ports)
	}
	return a
}

// put writes a value as JSON. Values of the API can always be written.
func put(a map[string]string, key string, value any) {
	if text, err := json.Marshal(value); err == nil {
		a[key] = string(text)
	}
}

// container is what a runtime says of a container, with what was written on it.
// What cannot be read counts as not written.
func container(s *runtimeapi.ContainerStatus, sandbox string) *Container {
	a := s.Annotations
	restarts, _ := strconv.ParseInt(a[annotationRestarts], 10, 32)
	c := &Container{
		ID: s.Id, Name: s.Labels[LabelContainerName], Sandbox: sandbox, Created: time.Unix(0, s.CreatedAt), Image: s.GetImage().GetImage(), ImageRef: s.ImageRef,
		Hash: a[annotationHash], Restarts: int32(restarts), LogPath: s.LogPath, Mounts: s.Mounts, User: user(s.User), Resources: resources(s.Resources),
		DeletionGrace: seconds(a[annotationDeletionGrace]), TerminationGrace: seconds(a[annotationTerminationGrace]),
	}
	switch s.State {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State = Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		c.State, c.Started = Running, time.Unix(0, s.StartedAt)
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		c.State, c.Started, c.Finished = Exited, time.Unix(0, s.StartedAt), time.Unix(0, s.FinishedAt)
		c.ExitCode, c.Reason, c.Message = s.ExitCode, s.Reason, s.Message
		if brokenOff(s) {
			c.State, c.BrokenOff = Created, true
		}
	case runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		c.Started = time.Unix(0, s.StartedAt)
	}
	if text := a[annotationPreStop]; text != "" {
		hook := &corev1.LifecycleHandler{}
		if json.Unmarshal([]byte(text), hook) == nil {
			c.PreStop = hook
		}
	}
	if text := a[annotationPorts]; text != "" {
		_ = json.Unmarshal([]byte(text), &c.Ports)
	}
	return c
}

// brokenOff says that a container was being started when the agent that had asked
// for it ended, and that it did not run: containerd calls off what nobody waits
// for, and says so as of a start that failed. It does not tell whether a container
// ran whose start was called off later, so that one counts as having run.
func brokenOff(s *runtimeapi.ContainerStatus) bool {
	return s.Reason == "StartError" && s.StartedAt == 0 && strings.HasPrefix(s.Message, "failed to create containerd task: ") &&
		(strings.Contains(s.Message, "context canceled") || strings.Contains(s.Message, "failed to start shim: start failed: : signal: killed"))
}

func seconds(text string) *int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

func user(u *runtimeapi.ContainerUser) *corev1.ContainerUser {
	if u.GetLinux() == nil {
		return nil
	}
	return &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: u.Linux.Uid, GID: u.Linux.Gid, SupplementalGroups: u.Linux.SupplementalGroups}}
}

// resources are those of a runtime that says them, in the API's units.
func resources(r *runtimeapi.ContainerResources) *Resources {
	l := r.GetLinux()
	if l == nil {
		return nil
	}
	out := &Resources{}
	if l.CpuPeriod > 0 && l.CpuQuota > 0 {
		out.CPULimit = resource.NewMilliQuantity(l.CpuQuota*1000/l.CpuPeriod, resource.DecimalSI)
	}
	if l.CpuShares > 0 {
		out.CPURequest = resource.NewMilliQuantity((l.CpuShares*1000+512)/1024, resource.DecimalSI)
	}
	if l.MemoryLimitInBytes > 0 {
		out.MemoryLimit = resource.NewQuantity(l.MemoryLimitInBytes, resource.BinarySI)
	}
	return out
}
