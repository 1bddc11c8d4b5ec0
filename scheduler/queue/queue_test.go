package queue_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/queue"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

func pod(name string, priority int32, gates ...string) *snapshot.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Priority: &priority}}
	for _, g := range gates {
		o.Spec.SchedulingGates = append(o.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	p, err := snapshot.NewPod(o)
	if err != nil {
		panic(err)
	}
	return p
}

// helps says that events of nodes help pods that "fit" has refused.
func helps(item *queue.Item, e *event.Event) bool {
	return e.Resource == event.Node && len(item.By) == 1 && item.By[0] == "fit"
}

// next is the name of the next pod, and how long it took to come; "" when none
// comes within a minute.
func next(t *testing.T, q *queue.Queue) (*queue.Item, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begun := time.Now()
	item := q.Next(ctx)
	if item == nil {
		return nil, "nobody"
	}
	return item, fmt.Sprintf("%s after %s", item.Pod.Object.Name, time.Since(begun))
}

func expect(t *testing.T, q *queue.Queue, want string) *queue.Item {
	t.Helper()
	item, got := next(t, q)
	if got != want {
		t.Errorf("next is %s, want %s", got, want)
	}
	return item
}

var nodeAdded = event.Event{Resource: event.Node, Action: event.Add}

func TestImportantPodsFirstThenOldOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		for _, p := range []*snapshot.Pod{pod("old", 0), pod("young", 0), pod("important", 9)} {
			q.Add(p)
		}
		q.Add(pod("young", 5)) // it has become more important
		for _, want := range []string{"important", "young", "old"} {
			q.Placed(expect(t, q, want+" after 0s"))
		}
		expect(t, q, "nobody")
	})
}

func TestGatedPodsWaitForTheirGates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		q.Add(pod("a", 0, "gate"))
		q.Wake(nodeAdded)
		expect(t, q, "nobody")
		if got := q.Counts(); got != (queue.Counts{Gated: 1}) {
			t.Errorf("counts are %+v", got)
		}
		q.Add(pod("a", 0))
		expect(t, q, "a after 0s")
	})
}

func TestRefusedPodsWaitForWhatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		q.Add(pod("a", 0))
		q.Add(pod("b", 0))
		q.Refused(expect(t, q, "a after 0s"), []string{"fit"})
		q.Refused(expect(t, q, "b after 0s"), []string{"ports"})
		q.Wake(event.Event{Resource: event.Pod, Action: event.Delete})
		expect(t, q, "nobody")
		q.Wake(nodeAdded)
		q.Refused(expect(t, q, "a after 0s"), []string{"fit"})
		expect(t, q, "nobody")
		time.Sleep(3 * time.Minute) // what nothing helps is tried again
		q.Refused(expect(t, q, "b after 0s"), []string{"ports"})
	})
}

func TestAChangeWhileAPodIsPlacedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		q.Add(pod("a", 0))
		item := expect(t, q, "a after 0s")
		q.Wake(nodeAdded)
		q.Add(pod("a", 7))
		q.Refused(item, []string{"fit"})
		if item = expect(t, q, "a after 0s"); item.Pod.Priority != 7 {
			t.Error("what the pod has become meanwhile is lost")
		}
		q.Remove("a")
		q.Refused(item, []string{"fit"})
		q.Wake(nodeAdded)
		expect(t, q, "nobody")
		if got := q.Counts(); got != (queue.Counts{}) {
			t.Errorf("counts are %+v", got)
		}
	})
}

func TestFailedPodsWaitLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		q.Add(pod("a", 0))
		for _, wait := range []string{"0s", "1s", "2s", "4s", "8s", "10s", "10s"} {
			q.Failed(expect(t, q, "a after "+wait))
		}
	})
}

func TestBackoffIsForBusyTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(helps)
		q.Add(pod("a", 5))
		q.Refused(expect(t, q, "a after 0s"), []string{"fit"})
		q.Wake(nodeAdded)
		q.Add(pod("b", 0))
		q.Placed(expect(t, q, "b after 0s")) // a, though more important, has been tried just now
		expect(t, q, "a after 0s")           // but nobody else is there
	})
}
