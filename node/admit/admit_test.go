package admit_test

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/node/admit"
)

func pod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "here", Containers: []corev1.Container{{Name: "c"}}}}
	if change != nil {
		change(p)
	}
	return p
}

func asks(cpu string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), "example.org/unknown": resource.MustParse("5")}
	}
}

func port(ip string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostIP: ip, HostPort: 80}} }
}

func setting(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: name, Value: "1"}}}
	}
}

func TestPod(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"zone": "a"}}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("3")}
	driven := node.DeepCopy()
	driven.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		node   *corev1.Node
		others []*corev1.Pod
		want   string
	}{
		{"room", pod(asks("1")), node, []*corev1.Pod{pod(asks("1"))}, "<nil>"},
		{"no room", pod(asks("1500m")), node, []*corev1.Pod{pod(asks("1"))}, "&{OutOfcpu Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000}"},
		{"too many", pod(nil), node, []*corev1.Pod{pod(nil), pod(nil), pod(nil)}, "&{OutOfpods Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3}"},
		{"another zone", pod(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }), node, nil, "&{NodeAffinity Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector}"},
		{"the same port", pod(port("")), node, []*corev1.Pod{pod(port("127.0.0.1"))}, "&{NodePorts Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports}"},
		{"the same port of another address", pod(port("127.0.0.2")), node, []*corev1.Pod{pod(port("127.0.0.1"))}, "<nil>"},
		{"driven out", pod(nil), driven, nil, "&{TaintToleration Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate}"},
		{"a safe setting", pod(setting("net.ipv4.tcp_syncookies")), node, nil, "<nil>"},
		{"a setting that others feel", pod(setting("kernel.msgmax")), node, nil, `&{SysctlForbidden forbidden sysctl: "kernel.msgmax" not allowlisted}`},
		{"another system", pod(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: "plan9"} }), node, nil, "&{PodOSNotSupported Failed to admit pod as the OS field doesn't match node OS}"},
		{"this system", pod(func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.OSName(runtime.GOOS)} }), node, nil, "<nil>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fmt.Sprint(admit.Pod(c.pod, c.node, c.others)); got != c.want {
				t.Errorf("got %s, not %s", got, c.want)
			}
		})
	}
}
