package main

import (
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// Sidecar is what is added to pods.
type Sidecar struct {
	Containers []corev1.Container `json:"containers"`
	Volumes    []corev1.Volume    `json:"volumes"`
}

// ConfigKey is the key of the ConfigMap that the sidecar is under.
const ConfigKey = "config"

// ParseSidecar reads a sidecar from a ConfigMap.
func ParseSidecar(config *corev1.ConfigMap) (*Sidecar, error) {
	text, ok := config.Data[ConfigKey]
	if !ok {
		return nil, fmt.Errorf("config map %s/%s has no key %q", config.Namespace, config.Name, ConfigKey)
	}
	s := &Sidecar{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		return nil, fmt.Errorf("config map %s/%s: %w", config.Namespace, config.Name, err)
	}
	if len(s.Containers) == 0 {
		return nil, fmt.Errorf("config map %s/%s: no containers", config.Namespace, config.Name)
	}
	return s, nil
}

// Plan is the patch that carries out an initializer's turn.
type Plan struct {
	Type types.PatchType
	Data []byte
}

// sign says that the initializer has done its part: its entry goes, those of
// others stay. The revision makes sure that the pod is still the one that was
// looked at.
func sign(pod *unstructured.Unstructured, name string) map[string]any {
	return map[string]any{
		"uid":             string(pod.GetUID()),
		"resourceVersion": pod.GetResourceVersion(),
		"initializers": map[string]any{
			"pending": []any{map[string]any{"$patch": "delete", "name": name}},
		},
	}
}

// inject plans to add the sidecar to a pod, and to sign. A nil sidecar only
// signs. The pod is copied and added to, so that the patch has nothing in it
// but the additions; what the pod has under the same name stays the pod's.
func inject(pod *unstructured.Unstructured, sidecar *Sidecar, name string) (Plan, error) {
	patch := map[string]any{}
	if sidecar != nil {
		var old corev1.Pod
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(pod.Object, &old); err != nil {
			return Plan{}, fmt.Errorf("read pod: %w", err)
		}
		added := old.DeepCopy()
		add(&added.Spec, sidecar)
		var err error
		if patch, err = difference(&old, added); err != nil {
			return Plan{}, err
		}
	}
	patch["metadata"] = sign(pod, name)
	data, err := json.Marshal(patch)
	return Plan{types.StrategicMergePatchType, data}, err
}

// difference is the two-way strategic merge patch from one pod to another.
func difference(from, to *corev1.Pod) (map[string]any, error) {
	before, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(to)
	if err != nil {
		return nil, err
	}
	data, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("make patch: %w", err)
	}
	patch := map[string]any{}
	return patch, json.Unmarshal(data, &patch)
}

// add puts into a pod what it does not have yet.
func add(spec *corev1.PodSpec, sidecar *Sidecar) {
	containers, volumes := map[string]bool{}, map[string]bool{}
	for i := range spec.Containers {
		containers[spec.Containers[i].Name] = true
	}
	for i := range spec.Volumes {
		volumes[spec.Volumes[i].Name] = true
	}
	for i := range sidecar.Containers {
		if c := &sidecar.Containers[i]; !containers[c.Name] {
			spec.Containers = append(spec.Containers, *c.DeepCopy())
		}
	}
	for i := range sidecar.Volumes {
		if v := &sidecar.Volumes[i]; !volumes[v.Name] {
			spec.Volumes = append(spec.Volumes, *v.DeepCopy())
		}
	}
}

// reject plans to fail the pod: whoever creates it gets the reason as the
// answer, and the pod goes.
func reject(pod *unstructured.Unstructured, why error) (Plan, error) {
	if why == nil {
		return Plan{}, errors.New("reject without a reason")
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": string(pod.GetUID()),
		"initializers": map[string]any{"result": metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status:   metav1.StatusFailure, Code: 500, Reason: metav1.StatusReasonInternalError,
			Message: "sidecar cannot be injected: " + why.Error(),
		}},
	}})
	return Plan{types.MergePatchType, data}, err
}
