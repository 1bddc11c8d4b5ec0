package admission

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"setpoint.dev/setpoint/api/initializers"
)

// carried is what the objects of a request wait for, as they carry it. Nearly
// always it is nothing.
type carried struct {
	object, old bool
}

// carriedBy looks at the objects of a request.
func carriedBy(a admission.Attributes) carried {
	return carried{carries(a.GetObject()), carries(a.GetOldObject())}
}

func carries(obj runtime.Object) bool { return obj != nil && initializers.CarriedBy(obj).Any() }

// unseen lets a plugin act on the request. One that knows nothing of what
// objects wait for does not see it, and cannot change it.
func (c carried) unseen(p running, a admission.Attributes, act func(admission.Attributes) error) error {
	if p.shows || c == (carried{}) {
		return act(a)
	}
	sees := a
	if c.old {
		sees = before{a, initializers.Bare(a.GetOldObject())}
	}
	if c.object {
		taken := initializers.Detach(a.GetObject())
		defer taken.Attach(a.GetObject())
	}
	return act(sees)
}

// before is a request with another old object.
type before struct {
	admission.Attributes
	old runtime.Object
}

func (b before) GetOldObject() runtime.Object { return b.old }
