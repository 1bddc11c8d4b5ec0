package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/static"
)

// mirrorAgain is when mirrors are looked at again that could not be made.
const mirrorAgain = 5 * time.Second

// statics are the pods that the node's own files declare, and what the API shows
// of them. The agent's lock guards it.
type statics struct {
	known   bool // the files have been read
	pods    map[types.UID]*corev1.Pod
	mirrors map[types.NamespacedName]*corev1.Pod
	changed chan struct{}
}

func named(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// setStatic takes all pods that the node's files declare.
func (a *Agent) setStatic(pods []*corev1.Pod) {
	now := map[types.UID]*corev1.Pod{}
	for _, p := range pods {
		now[p.UID] = p
	}
	a.mu.Lock()
	before := a.static.pods
	a.static.pods, a.static.known = now, true
	a.mu.Unlock()
	for uid, p := range before {
		if now[uid] == nil {
			a.worker(uid).lose(p)
		}
	}
	for uid, p := range now {
		a.worker(uid).tell(p)
	}
	a.mirrorSoon()
}

func (a *Agent) mirrorSoon() {
	select {
	case a.static.changed <- struct{}{}:
	default:
	}
}

// setMirror takes a mirror as the API has it; gone says that it has not any more.
func (a *Agent) setMirror(p *corev1.Pod, gone bool) {
	a.mu.Lock()
	if gone {
		delete(a.static.mirrors, named(p))
	} else {
		a.static.mirrors[named(p)] = p
	}
	var of types.UID
	for uid, s := range a.static.pods {
		if named(s) == named(p) {
			of = uid
		}
	}
	a.mu.Unlock()
	a.Wake(of)
	a.mirrorSoon()
}

// mirror is what the API shows of a pod of the node's files, nil when it shows
// nothing yet.
func (a *Agent) mirror(p *corev1.Pod) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.static.mirrors[named(p)]
	if m == nil || m.Annotations[static.Mirror] != p.Annotations[static.Hash] {
		return nil
	}
	return m
}

// reflect keeps mirrors in the API as the files are.
func (a *Agent) reflect(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.static.changed:
		}
		self := a.self()
		a.mu.Lock()
		var own []*corev1.Pod
		for _, p := range a.static.pods {
			own = append(own, p)
		}
		known := a.static.known
		a.mu.Unlock()
		if !known {
			continue
		}
		var seen []*corev1.Pod
		for _, obj := range a.pods.GetStore().List() {
			seen = append(seen, obj.(*corev1.Pod))
		}
		if self != nil && a.pods.HasSynced() {
			err := static.MakePlan(own, seen).Act(ctx, a.cfg.Client, self)
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				a.cfg.Logger.Warn("pods of this node's files are not shown yet", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(mirrorAgain):
			a.mirrorSoon()
		}
	}
}
