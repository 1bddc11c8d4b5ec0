package rest

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"

	"setpoint.dev/setpoint/store"
)

// mostUnchanged bounds the stored bytes of the objects that are kept unchanged; decoded, they
// take several times as many.
const mostUnchanged = 4 << 20

// unchanged keeps stored objects decoded that somebody has written as they are: whoever
// applies what is declared does so again and again. A version is decoded from its
// bytes, and never made of what a writer has stored, which may lack what decoding
// adds.
//
// Two generations: what nobody has asked for since the last change of generations is
// forgotten with the next, and everything by drop.
type unchanged struct {
	mu         sync.Mutex // guards the fields below
	young, old map[object]keptVersion
	size       int // of the young, in bytes
}

// keptVersion is a version of an object, by the rules that it was decoded by.
type keptVersion struct {
	rev   store.Revision
	rules uint32
	obj   runtime.Object // nobody's to change
	size  int
}

// get is a copy of an object's version; nil when it is not kept.
func (k *unchanged) get(of object, rev store.Revision, rules uint32) runtime.Object {
	k.mu.Lock()
	v := k.findLocked(of)
	k.mu.Unlock()
	if !v.is(rev, rules) {
		return nil
	}
	return v.obj.DeepCopyObject()
}

// has says that an object's version is kept.
func (k *unchanged) has(of object, rev store.Revision, rules uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.findLocked(of).is(rev, rules)
}

func (v keptVersion) is(rev store.Revision, rules uint32) bool {
	return v.obj != nil && v.rev == rev && v.rules == rules
}

func (k *unchanged) findLocked(of object) keptVersion {
	if v, has := k.young[of]; has {
		return v
	}
	v, has := k.old[of]
	if has {
		k.putLocked(of, v)
	}
	return v
}

// put keeps a version, which is the caller's no longer.
func (k *unchanged) put(of object, v keptVersion) {
	if v.size > mostUnchanged/16 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.putLocked(of, v)
}

func (k *unchanged) putLocked(of object, v keptVersion) {
	k.size += v.size - k.young[of].size
	if k.size > mostUnchanged/2 {
		k.young, k.old, k.size = nil, k.young, v.size
	}
	if k.young == nil {
		k.young = map[object]keptVersion{}
	}
	k.young[of] = v
}

// drop forgets everything.
func (k *unchanged) drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.young, k.old, k.size = nil, nil, 0
}

// before is the object that a change is made to, decoded.
func (c *call) before(have *store.Object) (runtime.Object, error) {
	if obj := c.unchanged.get(c.object(), have.Rev, c.rules()); obj != nil {
		return obj, nil
	}
	return c.stored(have)
}

// keepUnchanged keeps an object that was not changed for who tries next.
func (c *call) keepUnchanged(have *store.Object, obj runtime.Object) {
	of, rules := c.object(), c.rules()
	if !c.unchanged.has(of, have.Rev, rules) {
		c.unchanged.put(of, keptVersion{rev: have.Rev, rules: rules, obj: obj.DeepCopyObject(), size: len(have.Value())})
	}
}
