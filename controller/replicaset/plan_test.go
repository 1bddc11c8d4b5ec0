package replicaset

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// pod reads a pod from words: its name, then what is said of it.
func pod(text string) *corev1.Pod {
	words := strings.Fields(text)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: words[0], UID: types.UID(words[0]), Labels: map[string]string{"app": "web"}, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)),
	}}
	p.Status.Phase = corev1.PodPending
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "node":
			p.Spec.NodeName = value
		case "running":
			p.Status.Phase = corev1.PodRunning
		case "ready":
			for0, err := time.ParseDuration(value)
			if err != nil {
				panic(err)
			}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-for0))}}
		case "age":
			age, err := time.ParseDuration(value)
			if err != nil {
				panic(err)
			}
			p.CreationTimestamp = metav1.NewTime(noon.Add(-age))
		case "cost":
			p.Annotations = map[string]string{corev1.PodDeletionCost: value}
		case "restarts":
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: int32(len(value))}}
		case "unlabelled":
			p.Labels["extra"] = ""
			delete(p.Labels, "app")
		default:
			panic(w)
		}
	}
	return p
}

func podList(texts []string) []*corev1.Pod {
	var list []*corev1.Pod
	for _, t := range texts {
		list = append(list, pod(t))
	}
	return list
}

func set(replicas int32) *appsv1.ReplicaSet {
	s := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
	s.Generation = 3
	s.Spec.Template.Labels = map[string]string{"app": "web"}
	return s
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas int32
		pods     []string
		related  []string
		want     string
	}{
		{name: "nothing to do", replicas: 1, pods: []string{"a"}, want: "create 0"},
		{name: "too few", replicas: 5, pods: []string{"a", "b"}, want: "create 3"},
		{name: "far too few", replicas: 2000, want: "create 500"},
		{name: "none", replicas: 0, pods: []string{"a", "b"}, want: "delete a b"},
		{name: "not on a node first", replicas: 1, pods: []string{"a node=n", "b"}, want: "delete b"},
		{name: "pending before running", replicas: 1, pods: []string{"a node=n running", "b node=n"}, want: "delete b"},
		{name: "not ready before ready", replicas: 1, pods: []string{"a node=n running ready=1h", "b node=n running"}, want: "delete b"},
		{name: "cheap before dear", replicas: 1, pods: []string{"a node=n running", "b node=n running cost=-5"}, want: "delete b"},
		{name: "a cost that is no number", replicas: 1, pods: []string{"a node=n running cost=1", "b node=n running cost=1e9"}, want: "delete b"},
		{
			name: "doubled up first", replicas: 2, pods: []string{"a node=n running", "b node=m running", "c node=m running"},
			related: []string{"a node=n", "b node=m", "c node=m"}, want: "delete b",
		},
		{name: "ready for a shorter time first", replicas: 1, pods: []string{"a node=n running ready=1h", "b node=n running ready=1m"}, want: "delete b"},
		{name: "times of one magnitude are the same", replicas: 1, pods: []string{"b node=n running ready=60s", "a node=n running ready=61s"}, want: "delete a"},
		{name: "restarts", replicas: 1, pods: []string{"a node=n running restarts=x", "b node=n running restarts=xx"}, want: "delete b"},
		{name: "young before old", replicas: 1, pods: []string{"a age=24h", "b age=1m"}, want: "delete b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan(set(c.replicas), podList(c.pods), podList(c.related), noon)
			got := fmt.Sprintf("create %d", p.Create)
			if len(p.Delete) > 0 {
				got = "delete"
				for _, d := range p.Delete {
					got += " " + d.Name
				}
			}
			if got != c.want {
				t.Errorf("planned to %s, not to %s", got, c.want)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	zero, one := int32(0), int32(1)
	failed := []appsv1.ReplicaSetCondition{{Type: "ReplicaFailure", Status: "True", Reason: "FailedCreate", Message: "no", LastTransitionTime: metav1.NewTime(noon)}}
	for _, c := range []struct {
		name     string
		replicas int32
		minReady int32
		before   []appsv1.ReplicaSetCondition
		pods     []string
		going    []string
		failure  error
		want     appsv1.ReplicaSetStatus
	}{
		{name: "empty", want: appsv1.ReplicaSetStatus{TerminatingReplicas: &zero}},
		{
			name: "counts", replicas: 3, pods: []string{"a running ready=1h", "b running", "c unlabelled"}, going: []string{"d"},
			want: appsv1.ReplicaSetStatus{Replicas: 3, FullyLabeledReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 1, TerminatingReplicas: &one},
		},
		{
			name: "ready is not available", replicas: 2, minReady: 60, pods: []string{"a running ready=30s", "b running ready=60s"},
			want: appsv1.ReplicaSetStatus{Replicas: 2, FullyLabeledReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 1, TerminatingReplicas: &zero},
		},
		{name: "a failure", replicas: 1, failure: errors.New("no"), want: appsv1.ReplicaSetStatus{Conditions: failed, TerminatingReplicas: &zero}},
		{name: "the same failure", replicas: 1, before: failed, failure: errors.New("still no"), want: appsv1.ReplicaSetStatus{Conditions: failed, TerminatingReplicas: &zero}},
		{name: "no longer a failure", replicas: 0, before: failed, want: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{}, TerminatingReplicas: &zero}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := set(c.replicas)
			s.Spec.MinReadySeconds, s.Status.Conditions = c.minReady, c.before
			c.want.ObservedGeneration = 3
			if diff := cmp.Diff(c.want, status(s, podList(c.pods), podList(c.going), c.failure, noon)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNextCheck(t *testing.T) {
	s := set(3)
	s.Spec.MinReadySeconds = 60
	if got := nextCheck(s, podList([]string{"a running ready=30s", "b running ready=50s", "c", "d running ready=2m"}), noon); got != 10*time.Second {
		t.Errorf("looks again in %v", got)
	}
}
