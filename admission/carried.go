package admission

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"

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
	if c.old && a.GetOldObject() != nil {
		sees = before{a, initializers.Bare(a.GetOldObject())}
	}
	if c.object {
		taken := initializers.Detach(a.GetObject())
		defer taken.Attach(a.GetObject())
	}
	return act(sees)
}

// whileNew is the request as a plugin sees it that fills in new pods: an update of
// a pod that waits is a part of its creation.
func (c carried) whileNew(p running, a admission.Attributes) admission.Attributes {
	if p.fills && c.old && a.GetSubresource() == "" && a.GetResource().GroupResource() == core.Resource("pods") {
		return creation{a}
	}
	return a
}

// creation is a request as if it were a create.
type creation struct{ admission.Attributes }

func (creation) GetOperation() admission.Operation { return admission.Create }
func (creation) GetOldObject() runtime.Object      { return nil }

// before is a request with another old object.
type before struct {
	admission.Attributes
	old runtime.Object
}

func (b before) GetOldObject() runtime.Object { return b.old }
