package rest

import (
	"bytes"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/store"
)

// uninitialized is the flag of stored objects that wait for initializers. The
// other flags are the fingerprint of a custom kind's rules.
const uninitialized = store.Marked

// flags are those that an object is stored with.
func (c *call) flags(obj runtime.Object) (uint32, error) {
	flags := c.rules()
	waits, err := initializers.Of(obj)
	if waits != nil {
		flags |= uninitialized
	}
	return flags, err
}

// rules is the fingerprint of what a custom kind's objects are stored by now.
func (c *call) rules() uint32 {
	if c.resource.Custom == nil {
		return 0
	}
	return c.resource.Custom.Fingerprint() &^ uninitialized
}

// byTheseRules says that an object of a custom kind was stored by the rules of
// now.
func (c *call) byTheseRules(o *store.Object) bool { return o.Flags()&^uninitialized == c.rules() }

// isUninitialized says that a stored object waits for initializers. The flag
// alone is not enough: it was a part of the fingerprint once.
func isUninitialized(o *store.Object) bool {
	return o.Flags()&uninitialized != 0 && bytes.Contains(o.Value(), []byte(`"initializers"`))
}

// shows says whether an object may be seen at all by who asks.
func (s *selection) shows(o *store.Object) bool { return s.uninitialized || !isUninitialized(o) }

// includesUninitialized says that the client asks for objects that wait for
// initializers. Compat: 1, true, True and t are how it may be said.
func (c *call) includesUninitialized() bool {
	asked, err := strconv.ParseBool(c.r.URL.Query().Get(includeUninitialized))
	return err == nil && asked
}

// settleInitializers takes the field away where it says that there is nothing to
// wait for: whoever finds it in an object finds something to wait for in it.
func settleInitializers(obj runtime.Object) error {
	waits, err := initializers.Of(obj)
	if err != nil || waits == nil || !waits.Empty() {
		return err
	}
	return initializers.Set(obj, nil)
}
