package downward_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/downward"
)

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "shop", UID: "u1", Labels: map[string]string{"b": "2", "a": "1 \"x\""},
			Annotations: map[string]string{"example.com/Note": "hi"},
		},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{Limits: list("memory", "1Mi")}}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: list("cpu", "250m", "memory", "32Mi", "hugepages-2Mi", "4Mi"), Limits: list("cpu", "1250m"),
			}}},
		},
	}
}

func TestField(t *testing.T) {
	for _, test := range []struct{ path, want, err string }{
		{"metadata.name", "web", ""},
		{"metadata.namespace", "shop", ""},
		{"metadata.uid", "u1", ""},
		{"metadata.labels", "a=\"1 \\\"x\\\"\"\nb=\"2\"", ""},
		{"metadata.labels['b']", "2", ""},
		{"metadata.labels['none']", "", ""},
		{"metadata.annotations['example.com/Note']", "hi", ""},
		{"metadata.name['x']", "", `fieldPath "metadata.name['x']" does not support subscript`},
		{"status.phase", "", "unsupported fieldPath: status.phase"},
	} {
		t.Run(test.path, func(t *testing.T) {
			got, err := downward.Field(pod(), test.path)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("got %q, %v; want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}

func TestResource(t *testing.T) {
	leveled := pod()
	leveled.Spec.Resources = &corev1.ResourceRequirements{Limits: list("memory", "64Mi")}
	for _, test := range []struct {
		name                               string
		pod                                *corev1.Pod
		resource, container, divisor, want string
		err                                string
	}{
		{"limit, rounded up", pod(), "limits.cpu", "", "", "2", ""},
		{"limit in thousandths", pod(), "limits.cpu", "", "1m", "1250", ""},
		{"request", pod(), "requests.memory", "", "1Mi", "32", ""},
		{"no limit is the node's", pod(), "limits.memory", "", "1Mi", "1024", ""},
		{"no limit is the pod's", leveled, "limits.memory", "", "1Mi", "64", ""},
		{"another container", pod(), "limits.memory", "init", "", "1048576", ""},
		{"huge pages", pod(), "requests.hugepages-2Mi", "", "", "4194304", ""},
		{"huge pages have no default", pod(), "limits.hugepages-2Mi", "", "", "0", ""},
		{"no such container", pod(), "limits.memory", "none", "", "", "container none not found"},
		{"no such resource", pod(), "limits.gpu", "", "", "", "unsupported container resource : limits.gpu"},
	} {
		t.Run(test.name, func(t *testing.T) {
			ref := &corev1.ResourceFieldSelector{Resource: test.resource, ContainerName: test.container}
			if test.divisor != "" {
				ref.Divisor = resource.MustParse(test.divisor)
			}
			got, err := downward.Resource(ref, test.pod, &test.pod.Spec.Containers[0], list("cpu", "2", "memory", "1Gi", "hugepages-2Mi", "8Mi"))
			if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("got %q, %v; want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}
