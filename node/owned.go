package node

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/observe"
)

// owned is a runtime that shows only what is the agent's.
type owned struct {
	cri.RuntimeService
	owner string
}

// Owned is the runtime for those who remove things: it shows what is the agent's,
// and nothing that others run beside it.
func (a *Agent) Owned() cri.RuntimeService { return owned{a.cfg.Runtime, a.owner()} }

func (o owned) only(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[observe.LabelOwner] = o.owner
	return labels
}

// ListContainers implements cri.RuntimeService.
func (o owned) ListContainers(ctx context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	ours := &runtimeapi.ContainerFilter{Id: f.GetId(), State: f.GetState(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: o.only(f.GetLabelSelector())}
	return o.RuntimeService.ListContainers(ctx, ours)
}

// ListPodSandbox implements cri.RuntimeService.
func (o owned) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return o.RuntimeService.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{Id: f.GetId(), State: f.GetState(), LabelSelector: o.only(f.GetLabelSelector())})
}

// Alone says whether the runtime has no sandboxes but the agent's.
func (a *Agent) Alone(ctx context.Context) (bool, error) {
	all, err := a.cfg.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return false, err
	}
	for _, s := range all {
		if s.Labels[observe.LabelOwner] != a.owner() {
			return false, nil
		}
	}
	return true, nil
}

// Known are the pods that the node has, ended ones too; it is false until the
// agent knows them all.
func (a *Agent) Known() (map[types.UID]bool, bool) {
	if !a.pods.HasSynced() || !a.knowsStatic() {
		return nil, false
	}
	known := map[types.UID]bool{}
	for _, obj := range a.pods.GetStore().List() {
		known[obj.(*corev1.Pod).UID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.workers {
		known[uid] = true
	}
	return known, true
}
