package source

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reference names an object that a pod refers to.
type reference struct {
	resource  schema.GroupResource
	namespace string
	name      string
}

func (r reference) String() string { return r.resource.Resource + "/" + r.namespace + "/" + r.name }

// references are all config maps and secrets that pod names, each once.
func references(pod *corev1.Pod) []reference {
	var refs []reference
	add := func(resource schema.GroupResource, name string) {
		ref := reference{resource, pod.Namespace, name}
		if name != "" && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(secrets, s.Name)
	}
	for i := range pod.Spec.InitContainers {
		environment(add, pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		environment(add, pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		environment(add, pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		volume(add, &pod.Spec.Volumes[i])
	}
	return refs
}

func environment(add func(schema.GroupResource, string), env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for _, f := range from {
		if f.ConfigMapRef != nil {
			add(configMaps, f.ConfigMapRef.Name)
		}
		if f.SecretRef != nil {
			add(secrets, f.SecretRef.Name)
		}
	}
	for _, v := range env {
		if v.ValueFrom != nil && v.ValueFrom.ConfigMapKeyRef != nil {
			add(configMaps, v.ValueFrom.ConfigMapKeyRef.Name)
		}
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
			add(secrets, v.ValueFrom.SecretKeyRef.Name)
		}
	}
}

func volume(add func(schema.GroupResource, string), v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		add(configMaps, v.ConfigMap.Name)
	case v.Secret != nil:
		add(secrets, v.Secret.SecretName)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				add(configMaps, s.ConfigMap.Name)
			}
			if s.Secret != nil {
				add(secrets, s.Secret.Name)
			}
		}
	}
}
