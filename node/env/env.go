// Package env makes the environment of a container from everything it names:
// literals, fields of its pod, resources, config maps, secrets, files of
// volumes, and the services of its namespace.
//
// In come a pod, one of its containers and where the rest is found; out come
// variables, each name once, sorted by name. What always holds: a variable may
// use in $(NAME) those before it, those of envFrom and those of services, and
// what names nothing stays as it is. Errors are those a pod carries with
// CreateContainerConfigError.
package env

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/downward"
)

// Sources gives what variables refer to.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Input is what a container's environment is made from, besides its pod.
type Input struct {
	// PodIPs and HostIPs are the addresses of the pod and of its node, the
	// preferred one first.
	PodIPs, HostIPs []string
	// NodeName is used when the pod does not say where it is.
	NodeName string
	// Allocatable is what the node can give: the limit of who has none.
	Allocatable corev1.ResourceList
	// Sources is needed when the container refers to something.
	Sources Sources
	// Services returns the services of a namespace.
	Services func(namespace string) []*corev1.Service
	// VolumePath returns where a volume of the pod lies; it is needed for
	// variables that come from files.
	VolumePath func(volume string) (string, error)
}

// Of returns the environment of a container.
func Of(ctx context.Context, pod *corev1.Pod, c *corev1.Container, in Input) ([]*runtimeapi.KeyValue, error) {
	if pod.Spec.EnableServiceLinks == nil {
		return nil, fmt.Errorf("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")
	}
	m := &maker{ctx: ctx, pod: pod, container: c, in: in, values: map[string]string{}}
	services := m.services()
	for i := range c.EnvFrom {
		if err := m.from(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	known := func(name string) (string, bool) {
		if value, ok := m.values[name]; ok {
			return value, true
		}
		value, ok := services[name]
		return value, ok
	}
	for i := range c.Env {
		v := &c.Env[i]
		switch {
		case v.Value != "" || v.ValueFrom == nil:
			m.values[v.Name] = Expand(v.Value, known)
		default:
			value, found, err := m.source(v.ValueFrom)
			if err != nil {
				return nil, err
			}
			if found {
				m.values[v.Name] = value
			}
		}
	}
	maps.Copy(services, m.values)
	variables := make([]*runtimeapi.KeyValue, 0, len(services))
	for _, name := range slices.Sorted(maps.Keys(services)) {
		variables = append(variables, &runtimeapi.KeyValue{Key: name, Value: []byte(services[name])})
	}
	return variables, nil
}

// maker is one environment in the making.
type maker struct {
	ctx       context.Context
	pod       *corev1.Pod
	container *corev1.Container
	in        Input
	values    map[string]string
}

// services are the variables of services that the container sees: that of the
// API always, those of its namespace when the pod asks for them.
func (m *maker) services() map[string]string {
	seen := map[string]*corev1.Service{}
	if m.in.Services == nil {
		return map[string]string{}
	}
	for _, s := range m.in.Services(corev1.NamespaceDefault) {
		if s.Name == "kubernetes" {
			seen[s.Name] = s
		}
	}
	if *m.pod.Spec.EnableServiceLinks {
		// Compat: of two services named kubernetes, the pod's own counts.
		for _, s := range m.in.Services(m.pod.Namespace) {
			if addressed(s) {
				seen[s.Name] = s
			}
		}
	}
	values := map[string]string{}
	for _, s := range seen {
		maps.Copy(values, Service(s))
	}
	return values
}

// from adds everything of a config map or secret.
func (m *maker) from(f *corev1.EnvFromSource) error {
	switch {
	case f.ConfigMapRef != nil:
		held, err := m.in.Sources.ConfigMap(m.ctx, m.pod.Namespace, f.ConfigMapRef.Name)
		if err != nil {
			return unless(f.ConfigMapRef.Optional, err)
		}
		for k, v := range held.Data {
			m.values[f.Prefix+k] = v
		}
	case f.SecretRef != nil:
		held, err := m.in.Sources.Secret(m.ctx, m.pod.Namespace, f.SecretRef.Name)
		if err != nil {
			return unless(f.SecretRef.Optional, err)
		}
		for k, v := range held.Data {
			m.values[f.Prefix+k] = string(v)
		}
	}
	return nil
}

// source finds the value of a variable that comes from elsewhere. It is not
// found when what it names is optional and missing.
func (m *maker) source(from *corev1.EnvVarSource) (value string, found bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = m.field(from.FieldRef)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = downward.Resource(from.ResourceFieldRef, m.pod, m.container, m.in.Allocatable)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		held, err := m.in.Sources.ConfigMap(m.ctx, m.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, unless(ref.Optional, err)
		}
		if value, found = held.Data[ref.Key]; !found && !is(ref.Optional) {
			err = fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, m.pod.Namespace, ref.Name)
		}
		return value, found, err
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		held, err := m.in.Sources.Secret(m.ctx, m.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, unless(ref.Optional, err)
		}
		data, found := held.Data[ref.Key]
		if !found && !is(ref.Optional) {
			err = fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, m.pod.Namespace, ref.Name)
		}
		return string(data), found, err
	case from.FileKeyRef != nil:
		return m.file(from.FileKeyRef)
	}
	return "", true, nil
}

// field is a field of the pod as it is while its containers start: addresses
// are those of its sandbox, which its status may not have yet.
func (m *maker) field(ref *corev1.ObjectFieldSelector) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("unsupported pod version: %s", ref.APIVersion)
	}
	switch ref.FieldPath {
	case "spec.nodeName", "spec.host":
		if m.pod.Spec.NodeName == "" {
			return m.in.NodeName, nil
		}
		return m.pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return m.pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(m.in.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(m.in.HostIPs, ","), nil
	case "status.podIP":
		return first(m.in.PodIPs), nil
	case "status.podIPs":
		return strings.Join(m.in.PodIPs, ","), nil
	}
	return downward.Field(m.pod, ref.FieldPath)
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func is(flag *bool) bool { return flag != nil && *flag }

// unless keeps silent about what is missing and optional.
func unless(optional *bool, err error) error {
	if is(optional) && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
