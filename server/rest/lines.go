package rest

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// lines are the last events as they are written, for the many who are told of
// the same at the same time. Only an event that a second watcher writes is
// kept: one that nobody else waits for is not worth a copy.
type lines struct {
	slots [32]atomic.Pointer[line]
}

// maxLine is how large an event may be to be kept.
const maxLine = 64 << 10

// line is an event as it is written; bytes are nil until a second watcher asks.
type line struct {
	lineKey
	bytes []byte
}

// lineKey is all that the bytes of an event depend on.
type lineKey struct {
	object *store.Object
	what   watch.Type
	media  string
	kind   schema.GroupVersionKind
}

// shared is a batch as others have written it, or nil.
func (s *stream) shared(batch watch.Batch) []byte {
	if len(batch.Events) != 1 || batch.InitialEnd {
		return nil
	}
	e := batch.Events[0]
	// One that left has another revision than its object.
	if e.Type == watch.Left || len(e.Object.Value()) > maxLine || !s.fromParts(e.Object) {
		return nil
	}
	slot := &s.lines.slots[uint64(e.Object.Rev)%uint64(len(s.lines.slots))] //nolint:gosec // revisions are not negative
	key := lineKey{e.Object, e.Type, s.out.Stream, s.kind}
	have := slot.Load()
	switch {
	case have == nil || have.lineKey != key:
		slot.Store(&line{lineKey: key})
		return nil
	case have.bytes != nil:
		return have.bytes
	}
	if s.encodeEvent(e) != nil {
		s.buf = s.buf[:0]
		return nil // it fails again where that is told
	}
	kept := &line{key, append([]byte(nil), s.buf...)}
	slot.Store(kept)
	return kept.bytes
}
