package kinds

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install" // into the scheme
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
)

func schedulingGroup() group {
	return group{name: "scheduling.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "priorityclasses", kind: "PriorityClass", short: "pc", strategy: priorityclass.Strategy, checkDelete: keepSystemClasses},
	}}
}

// keepSystemClasses refuses to delete the classes that the system's own pods use.
func keepSystemClasses(_ context.Context, name string, _ *metav1.DeleteOptions) (string, error) {
	if slices.Contains(schedulingv1.SystemPriorityClassNames(), name) {
		return "", apierrors.NewForbidden(scheduling.Resource("priorityclasses"), name, errors.New("this is a system priority class and cannot be deleted"))
	}
	return "", nil
}
