// Package downward says about a pod what its containers may ask of it: fields
// of the pod, and what a container requests and is limited to.
//
// In come a pod and a selector; out comes text, as environment variables and
// files carry it. What always holds: nothing is read but the arguments, and
// errors have the words that users of Kubernetes know.
package downward

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	helper "k8s.io/component-helpers/resource"
)

// Field returns a field of pod's metadata. Labels and annotations are written
// as sorted lines of key="value"; with a subscript they are one value.
func Field(pod *corev1.Pod, path string) (string, error) {
	if of, key, ok := subscript(path); ok {
		return mapped(pod, path, of, key)
	}
	switch path {
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func mapped(pod *corev1.Pod, path, of, key string) (string, error) {
	name, values := key, pod.Labels
	switch of {
	case "metadata.labels":
	case "metadata.annotations":
		name, values = strings.ToLower(key), pod.Annotations
	default:
		return "", fmt.Errorf("fieldPath %q does not support subscript", path)
	}
	if errs := validation.IsQualifiedName(name); len(errs) != 0 {
		return "", fmt.Errorf("invalid key subscript in %s: %s", path, strings.Join(errs, ";"))
	}
	return values[key], nil
}

// subscript takes metadata.labels['x'] apart.
func subscript(path string) (of, key string, ok bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	of, key, ok = strings.Cut(rest, "['")
	return of, key, ok && of != ""
}

func lines(m map[string]string) string {
	var b strings.Builder
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(k + "=" + strconv.Quote(m[k]))
	}
	return b.String()
}

// Resource returns what ref asks about a container of pod: container, unless
// ref names another one. A limit that is not set is the pod's, and where that
// is not set, what the node can give.
func Resource(ref *corev1.ResourceFieldSelector, pod *corev1.Pod, container *corev1.Container, allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		container = find(pod, ref.ContainerName)
	}
	if container == nil {
		return "", fmt.Errorf("container %s not found", ref.ContainerName)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := corev1.ResourceName(name)
	counted := strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
	switch resourceName {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		counted = true
	}
	switch {
	case counted && kind == "limits":
		return divide(resourceName, limit(resourceName, pod, container, allocatable), ref.Divisor), nil
	case counted && kind == "requests":
		return divide(resourceName, container.Resources.Requests[resourceName], ref.Divisor), nil
	}
	return "", fmt.Errorf("unsupported container resource : %v", ref.Resource)
}

func limit(name corev1.ResourceName, pod *corev1.Pod, container *corev1.Container, allocatable corev1.ResourceList) resource.Quantity {
	q := container.Resources.Limits[name]
	// Compat: huge pages are never promised twice, so they have no default.
	if !q.IsZero() || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
		return q
	}
	if helper.IsPodLevelLimitsSet(pod) && helper.IsSupportedPodLevelResource(name) {
		if q, ok := pod.Spec.Resources.Limits[name]; ok && !q.IsZero() {
			return q
		}
	}
	return allocatable[name]
}

// divide counts in units of divisor, rounded up.
func divide(name corev1.ResourceName, q, divisor resource.Quantity) string {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	of, by := q.Value(), divisor.Value()
	if name == corev1.ResourceCPU {
		of, by = q.MilliValue(), divisor.MilliValue()
	}
	return strconv.FormatInt(int64(math.Ceil(float64(of)/float64(by))), 10)
}

func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
