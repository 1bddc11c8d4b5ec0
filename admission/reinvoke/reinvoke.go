// Package reinvoke remembers whom a mutating plugin has asked about an object,
// so that those are asked again who want to be when something has changed it
// after they were.
//
// The chain is gone through at most twice. In the second round nobody is asked
// for the first time, and nobody who was the last to change the object. When
// initializers have changed an object, all who want to be asked again are, once.
package reinvoke

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"setpoint.dev/setpoint/api/initializers"
)

// Rounds are those of one plugin over one object. K names whom it asks.
type Rounds[K comparable] struct {
	context admission.ReinvocationContext
	final   bool
	// asked want to be asked again if something changes the object.
	asked map[K]bool
	// due are to be asked again.
	due map[K]bool
	// last is the object as the plugin has left it, but for what it waits for,
	// which nobody is asked about again; nil when nobody wants to know whether it
	// has changed since.
	last runtime.Object
}

const final = "reinvoke.final"

// Finally says that the request is about what initializers have made of an
// object.
func Finally(a admission.Attributes) { a.GetReinvocationContext().SetValue(final, true) }

// IsFinal says that it is.
func IsFinal(a admission.Attributes) bool { return a.GetReinvocationContext().Value(final) != nil }

// Begin begins a round of a plugin.
func Begin[K comparable](a admission.Attributes, plugin string) *Rounds[K] {
	context := a.GetReinvocationContext()
	r, _ := context.Value(plugin).(*Rounds[K])
	if r == nil {
		r = &Rounds[K]{context: context, final: IsFinal(a), asked: map[K]bool{}, due: map[K]bool{}}
		context.SetValue(plugin, r)
	}
	if context.IsReinvoke() && len(r.asked) > 0 && !apiequality.Semantic.DeepEqual(r.last, initializers.Bare(a.GetObject())) {
		r.changed() // by other plugins, in between
	}
	return r
}

// Second says that this is the second round.
func (r *Rounds[K]) Second() bool { return r.context.IsReinvoke() }

// Skips says that who is not asked in this round; again is whether they want to
// be when others have changed the object.
func (r *Rounds[K]) Skips(who K, again bool) bool {
	if r.final {
		return !again
	}
	return r.context.IsReinvoke() && !r.due[who]
}

// Asked remembers that who was asked, whether they changed the object, and
// whether they want to be asked again when others do.
func (r *Rounds[K]) Asked(who K, changed, again bool) {
	if changed {
		r.changed()
		r.context.SetShouldReinvoke()
	}
	if again {
		r.asked[who] = true
	}
}

func (r *Rounds[K]) changed() {
	for who := range r.asked {
		r.due[who] = true
	}
	clear(r.asked)
}

// End ends the round with the object as the plugin leaves it.
func (r *Rounds[K]) End(obj runtime.Object) {
	r.last = nil
	if len(r.asked) > 0 && obj != nil {
		r.last = obj.DeepCopyObject()
		initializers.Detach(r.last)
	}
}
