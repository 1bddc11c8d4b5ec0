package scheduler

import (
	"encoding/json"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// Placement is what is known about where a pod goes.
type Placement struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Profile   string `json:"profile"`
	// Node is where the pod is, or is about to be, and NominatedNode where it
	// waits for room.
	Node          string `json:"node,omitempty"`
	NominatedNode string `json:"nominatedNode,omitempty"`
	// Gates are what the pod waits for before it is looked at.
	Gates []string `json:"gates,omitempty"`
	// Message is what the pod was told last.
	Message string `json:"message,omitempty"`
	// Decision is what every node would be told now. A pod that has a node is not
	// decided about.
	Decision *place.Explanation `json:"decision,omitempty"`
}

// ServeHTTP answers GET /debug/scheduler/NAMESPACE/NAME with a Placement. Whoever
// may get that path is told; the server asks before.
func (s *Scheduler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	l := s.now
	s.mu.Unlock()
	if r.Method != http.MethodGet {
		http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
		return
	}
	if l == nil {
		http.Error(w, "the scheduler is not ready yet", http.StatusServiceUnavailable)
		return
	}
	pod, err := l.informers.Core().V1().Pods().Lister().Pods(r.PathValue("namespace")).Get(r.PathValue("name"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	p, err := l.explain(pod)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(p) // the client is gone
}

// explain says what is known about where a pod goes.
func (l *life) explain(pod *corev1.Pod) (*Placement, error) {
	p := &Placement{Namespace: pod.Namespace, Name: pod.Name, Profile: pod.Spec.SchedulerName, NominatedNode: pod.Status.NominatedNodeName}
	p.Node, _ = l.cache.Placed(pod.UID)
	for _, g := range pod.Spec.SchedulingGates {
		p.Gates = append(p.Gates, g.Name)
	}
	if i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }); i >= 0 {
		p.Message = pod.Status.Conditions[i].Message
	}
	profile := l.profiles[pod.Spec.SchedulerName]
	if p.Node != "" || profile == nil {
		return p, nil
	}
	parsed, err := snapshot.NewPod(pod)
	if err != nil {
		return nil, err
	}
	p.Decision, err = profile.Explain(l.cache.Snapshot(), parsed)
	return p, err
}
