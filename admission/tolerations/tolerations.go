// Package tolerations gives pods a while to stay on a node that is not ready
// or not reachable.
package tolerations

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

// DefaultSeconds is how long pods stay when nobody says otherwise.
const DefaultSeconds = 300

// Seconds adds the tolerations that a pod does not have.
type Seconds struct {
	*admission.Handler
	notReady, unreachable int64
}

// New returns the plugin; the numbers are seconds.
func New(notReady, unreachable int64) *Seconds {
	return &Seconds{admission.NewHandler(admission.Create, admission.Update), notReady, unreachable}
}

// Admit implements admission.MutationInterface.
func (s *Seconds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != core.Resource("pods") || a.GetSubresource() != "" {
		return nil
	}
	pod, ok := a.GetObject().(*core.Pod)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *api.Pod but got %T", a.GetObject()))
	}
	had := pod.Spec.Tolerations
	for _, of := range []struct {
		taint   string
		seconds int64
	}{{corev1.TaintNodeNotReady, s.notReady}, {corev1.TaintNodeUnreachable, s.unreachable}} {
		if !speaksOf(had, of.taint) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, core.Toleration{
				Key: of.taint, Operator: core.TolerationOpExists, Effect: core.TaintEffectNoExecute, TolerationSeconds: &of.seconds,
			})
		}
	}
	return nil
}

// speaksOf says that it is settled how long a pod stays on a node with a taint.
func speaksOf(tolerations []core.Toleration, taint string) bool {
	for _, t := range tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == core.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
