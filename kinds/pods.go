package kinds

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper/qos"
)

// unseenPod are the rules for pods that wait for initializers. Nobody runs such
// a pod yet, so all of it may change, as long as the whole is a valid pod.
type unseenPod struct{ strategy }

// PrepareForUpdate implements rest.RESTUpdateStrategy: what containers were
// added counts for the pod's class.
func (s unseenPod) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.strategy.PrepareForUpdate(ctx, obj, old)
	if pod, ok := obj.(*core.Pod); ok {
		pod.Status.QOSClass = qos.ComputePodQOS(pod)
	}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s unseenPod) ValidateUpdate(ctx context.Context, obj, _ runtime.Object) field.ErrorList {
	return s.Validate(ctx, obj)
}
