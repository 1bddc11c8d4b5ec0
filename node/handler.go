package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/pod"
)

// handler is the runtime's name of a pod's runtime class.
func (a *Agent) handler(p *corev1.Pod) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	class, err := a.cfg.Client.NodeV1().RuntimeClasses().Get(ctx, *p.Spec.RuntimeClassName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", fmt.Errorf("RuntimeClass %q not found: %w", *p.Spec.RuntimeClassName, err)
	case err != nil:
		return "", errors.New("failed to lookup RuntimeClass: " + err.Error())
	}
	return class.Handler, nil
}

// features are what a handler of the runtime can, as the node's status tells.
func (a *Agent) features(handler string) pod.Features {
	self := a.self()
	if self == nil {
		return pod.Features{}
	}
	for _, h := range self.Status.RuntimeHandlers {
		if f := h.Features; h.Name == handler && f != nil {
			return pod.Features{
				UserNamespaces:    f.UserNamespaces != nil && *f.UserNamespaces,
				RecursiveReadOnly: f.RecursiveReadOnlyMounts != nil && *f.RecursiveReadOnlyMounts,
			}
		}
	}
	return pod.Features{}
}

// recursive says whether mounts of a pod that ask for it are read-only with all
// that is mounted below them.
func (a *Agent) recursive(p *corev1.Pod) bool {
	asks := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.RecursiveReadOnly != nil })
	}
	if !slices.ContainsFunc(p.Spec.Containers, asks) && !slices.ContainsFunc(p.Spec.InitContainers, asks) {
		return false
	}
	handler, err := a.runner.Handler(p)
	return err == nil && a.features(handler).RecursiveReadOnly
}
