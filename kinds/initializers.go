package kinds

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	initializers "setpoint.dev/setpoint/api/initializers/v1alpha1"
)

func init() { utilruntime.Must(initializers.AddToScheme(legacyscheme.Scheme)) }
