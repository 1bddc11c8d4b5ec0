package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"setpoint.dev/setpoint/node/admit"
	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/status"
)

// resize is how far a pod is on its way to other resources. What is declared is
// allocated when there is room for it; what is allocated is actuated when the
// containers have it. An agent that starts takes both from the pod's status.
type resize struct {
	allocated, actuated map[string]corev1.ResourceRequirements
	pending, progress   *corev1.PodCondition
}

// begin takes over what a pod has.
func (r *resize) begin(p *corev1.Pod, seen *observe.Pod) {
	r.allocated, r.actuated = map[string]corev1.ResourceRequirements{}, map[string]corev1.ResourceRequirements{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		r.allocated[c.Name] = *c.Resources.DeepCopy()
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.Resources == nil || seen.Container(s.Name) == nil {
			continue
		}
		r.actuated[s.Name] = *s.Resources.DeepCopy()
		had := r.allocated[s.Name]
		if s.AllocatedResources != nil {
			had.Requests = s.AllocatedResources
			had.Limits = s.Resources.Limits
			r.allocated[s.Name] = had
		}
	}
	for i := range p.Status.Conditions {
		switch c := p.Status.Conditions[i].DeepCopy(); c.Type {
		case corev1.PodResizePending:
			r.pending = c
		case corev1.PodResizeInProgress:
			r.progress = c
		}
	}
}

// did takes over what containers were given.
func (r *resize) did(given []*corev1.Container, err error) {
	for _, c := range given {
		r.actuated[c.Name] = *c.Resources.DeepCopy()
	}
	if r.progress != nil && err != nil {
		r.progress.Reason, r.progress.Message = corev1.PodReasonError, err.Error()
	}
}

// conditions are those of a resize.
func (r *resize) conditions() []corev1.PodCondition {
	var all []corev1.PodCondition
	for _, c := range []*corev1.PodCondition{r.pending, r.progress} {
		if c != nil {
			all = append(all, *c)
		}
	}
	return all
}

// with is a pod with the resources that are allocated to it.
func (r *resize) with(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			if has, ok := r.allocated[all[i].Name]; ok {
				all[i].Resources = has
			}
		}
	}
	return p
}

// widest is a pod with the larger limits of those that its containers have and
// those they are to have: what the whole pod may use meanwhile.
func (r *resize) widest(p *corev1.Pod) *corev1.Pod {
	if r.settled() {
		return p
	}
	p = p.DeepCopy()
	for _, all := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range all {
			has, known := r.actuated[all[i].Name]
			if !known {
				continue
			}
			for name, to := range all[i].Resources.Limits {
				if from, limited := has.Limits[name]; !limited {
					delete(all[i].Resources.Limits, name)
				} else if from.Cmp(to) > 0 {
					all[i].Resources.Limits[name] = from
				}
			}
		}
	}
	return p
}

// settled says whether all containers have what is allocated to them.
func (r *resize) settled() bool {
	for name, has := range r.actuated {
		want := r.allocated[name]
		if len(pod.Changed(&has, &want)) > 0 {
			return false
		}
	}
	return true
}

// allocated is the pod with the resources that it has been given. What is declared
// is given now, if there is room.
func (w *worker) allocated(p *corev1.Pod) *corev1.Pod {
	r := &w.resize
	wants := false
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		has := r.allocated[c.Name]
		wants = wants || len(pod.Changed(&has, &c.Resources)) > 0
	}
	switch {
	case !wants:
		r.pending = nil
	case w.admitted && !w.ended:
		w.allocate(p)
	}
	w.defers.Store(r.pending != nil && r.pending.Reason == corev1.PodReasonDeferred)
	if r.progress != nil && r.settled() {
		w.agent.say(p, nil, corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed: "+summary(r.with(p), r.progress.ObservedGeneration, ""))
		r.progress = nil
	}
	return r.with(p)
}

// allocate gives a pod what it declares, or says why not.
func (w *worker) allocate(p *corev1.Pod) {
	r := &w.resize
	w.agent.admission.Lock()
	defer w.agent.admission.Unlock()
	if why := w.roomFor(p); why != nil {
		if r.pending == nil || r.pending.Reason != why.Reason || r.pending.Message != why.Message || r.pending.ObservedGeneration != p.Generation {
			w.agent.say(p, nil, corev1.EventTypeWarning, "Resize"+why.Reason, "Pod resize "+why.Reason+": "+summary(p, p.Generation, why.Message))
		}
		r.pending = resizing(corev1.PodResizePending, r.pending, why, p.Generation)
		return
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		r.allocated[c.Name] = *c.Resources.DeepCopy()
	}
	r.pending = nil
	r.progress = resizing(corev1.PodResizeInProgress, nil, &status.Why{}, p.Generation)
	w.agent.say(p, nil, corev1.EventTypeNormal, "ResizeStarted", "Pod resize started: "+summary(p, p.Generation, ""))
	shown := r.with(p)
	w.show(shown)
	w.agent.freed() // it may have less than before
}

// freed has pods looked at that wait for room.
func (a *Agent) freed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		if w.defers.Load() {
			w.nudge()
		}
	}
}

func resizing(kind corev1.PodConditionType, old *corev1.PodCondition, why *status.Why, generation int64) *corev1.PodCondition {
	now := metav1.NewTime(time.Now()).Rfc3339Copy()
	c := &corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, Reason: why.Reason, Message: why.Message, ObservedGeneration: generation, LastProbeTime: now, LastTransitionTime: now}
	if old != nil && old.Reason == why.Reason {
		c.LastTransitionTime = old.LastTransitionTime
		if old.Message == why.Message && old.ObservedGeneration == generation {
			c.LastProbeTime = old.LastProbeTime
		}
	}
	return c
}

// roomFor says why a pod cannot have what it declares: never, or not now.
func (w *worker) roomFor(p *corev1.Pod) *status.Why {
	self := w.agent.self()
	if self == nil {
		return nil
	}
	requests := resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, has := requests[name], self.Status.Allocatable[name]
		if want.Cmp(has) > 0 {
			a, b := want.Value(), has.Value()
			if name == corev1.ResourceCPU {
				a, b = want.MilliValue(), has.MilliValue()
			}
			return &status.Why{Reason: corev1.PodReasonInfeasible, Message: fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, a, b)}
		}
	}
	if no := admit.Resources(p, self, w.agent.others(w.uid)); no != nil {
		return &status.Why{Reason: corev1.PodReasonDeferred, Message: no.Message}
	}
	return nil
}

// summary is a pod's resources as events tell them.
func summary(p *corev1.Pod, generation int64, problem string) string {
	type has struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	}
	var all struct {
		Init       []has  `json:"initContainers,omitempty"`
		Containers []has  `json:"containers"`
		Generation int64  `json:"generation,omitempty"`
		Error      string `json:"error,omitempty"`
	}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil {
			all.Init = append(all.Init, has{c.Name, c.Resources})
		}
	}
	for _, c := range p.Spec.Containers {
		all.Containers = append(all.Containers, has{c.Name, c.Resources})
	}
	all.Generation, all.Error = generation, problem
	text, err := json.Marshal(all)
	if err != nil {
		return problem
	}
	return string(text)
}
