package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// say records an event about a pod, or about one of its containers.
func (a *Agent) say(p *corev1.Pod, c *corev1.Container, kind, reason, message string) {
	ref := reference(p)
	if c != nil {
		ref.FieldPath = fieldPath(p, c.Name)
	}
	a.events.Event(ref, kind, reason, message)
}

func reference(p *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
}

// Tell records an event about the node, once the agent runs.
func (a *Agent) Tell(ctx context.Context, kind, reason, message string) {
	select {
	case <-a.begun:
		a.events.Event(&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: a.cfg.Name}, kind, reason, message)
	case <-ctx.Done():
	}
}

// fieldPath is where a container stands in its pod.
func fieldPath(p *corev1.Pod, name string) string {
	for part, all := range map[string][]corev1.Container{"containers": p.Spec.Containers, "initContainers": p.Spec.InitContainers} {
		for i := range all {
			if all[i].Name == name {
				return fmt.Sprintf("spec.%s{%s}", part, name)
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == name {
			return fmt.Sprintf("spec.ephemeralContainers{%s}", name)
		}
	}
	return ""
}
