package kinds

import (
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/api/equal"
)

// Upstream's strategy and validation compare the spec of a pod as a whole, each
// on its own, in every update, and in most it has not changed. That is found out
// with one look at the bits; only where they differ is their meaning compared,
// by the same rules as ever. The table of comparisons is upstream's and one for
// the process, so it is filled before anything runs.
func init() {
	if err := apiequality.Semantic.AddFunc(samePodSpec); err != nil {
		panic(err) // the function does not have the shape of a comparison
	}
}

func samePodSpec(a, b core.PodSpec) bool {
	x, y := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	if equal.Values(x, y) {
		return true
	}
	for i := range x.NumField() {
		if !apiequality.Semantic.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return false
		}
	}
	return true
}
