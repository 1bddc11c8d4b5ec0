package watch

import "setpoint.dev/setpoint/store"

// Type says what an event means to its watcher.
type Type uint8

// What can happen to an object, as seen through a filter.
const (
	// Added: the object was created, or is part of the initial state.
	Added Type = iota + 1
	// Modified: it matched before and does after.
	Modified
	// Deleted: it matched, and is gone.
	Deleted
	// Entered: it existed before, and matches from now on.
	Entered
	// Left: it matched before, exists still, and matches no longer.
	Left
)

// String is the name of the type.
func (t Type) String() string {
	switch t {
	case Added:
		return "added"
	case Modified:
		return "modified"
	case Deleted:
		return "deleted"
	case Entered:
		return "entered"
	case Left:
		return "left"
	default:
		return "unknown"
	}
}

// Event is one thing a watcher is told. It points to what the store published
// and copies nothing.
type Event struct {
	Type Type
	// Change is the revision that made the event; nil in the initial state.
	Change *store.Change
	// Object is the version told of: the new one, for Deleted the last state,
	// for Left the last version that matched.
	Object *store.Object
}

// Value is the object as the watcher should see it, ready to send. For Deleted
// and Left it carries the revision at which the object went. The caller must
// not change it.
func (e Event) Value() []byte {
	if e.Type == Left {
		return e.Change.LastValue()
	}
	return e.Object.Value()
}

// Rev is the revision of the event; in the initial state, that of the object.
func (e Event) Rev() store.Revision {
	if e.Change != nil {
		return e.Change.Rev
	}
	return e.Object.Rev
}

// Batch is what one call of Next returns: all that is new, up to a bound.
type Batch struct {
	// Events are in revision order, those of the initial state in key order.
	// The slice is the watcher's and is used again by the next call of Next;
	// what it points to may be kept.
	Events []Event
	// Rev is a place to resume from: everything that matches up to and
	// including it has been delivered, and nothing up to it comes later. It is
	// 0 as long as the initial state is not complete. A batch without events
	// is a bookmark.
	Rev store.Revision
	// InitialEnd says that the initial state is complete with this batch; Rev
	// is then the revision it was taken at.
	InitialEnd bool
}
