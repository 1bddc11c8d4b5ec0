package watch

import (
	"strings"

	"setpoint.dev/setpoint/store"
)

// Filter says which objects a watcher wants. All conditions given must hold;
// the zero value wants every object.
//
// Key, Field and a Prefix that holds a '/' also keep the watcher asleep while
// changes happen that cannot concern it.
type Filter struct {
	// Prefix is what keys begin with, such as a namespace and its '/'.
	Prefix string
	// Key is the one key wanted.
	Key string
	// Field and Value name a declared field and the value it must have.
	Field string
	Value string
	// Match decides the rest; nil agrees to everything. It is called for the
	// versions before and after each change, must always say the same of the
	// same version, and must not block.
	Match func(*store.Object) bool
}

// wants says whether the filter matches a version.
func (f *Filter) wants(o *store.Object) bool {
	if f.Key != "" && o.Key() != f.Key || !strings.HasPrefix(o.Key(), f.Prefix) {
		return false
	}
	if f.Field != "" {
		if v, ok := o.Field(f.Field); !ok || v != f.Value {
			return false
		}
	}
	return f.Match == nil || f.Match(o)
}

// event is what a change means through the filter, if anything.
func (f *Filter) event(c *store.Change) (Event, bool) {
	before := c.Old != nil && f.wants(c.Old)
	after := !c.Deleted && f.wants(c.New)
	switch {
	case before && after:
		return Event{Modified, c, c.New}, true
	case after && c.Old == nil:
		return Event{Added, c, c.New}, true
	case after:
		return Event{Entered, c, c.New}, true
	case before && c.Deleted:
		return Event{Deleted, c, c.New}, true
	case before:
		return Event{Left, c, c.Old}, true
	default:
		return Event{}, false
	}
}

// scope is the narrowest topic that holds every change the filter could tell
// of. A field goes before a prefix: it picks one node's pods out of a
// namespace more often than the other way round.
func (f *Filter) scope() scope {
	switch {
	case f.Key != "":
		return scope{kind: byKey, text: f.Key}
	case f.Field != "":
		return scope{kind: byField, field: f.Field, text: f.Value}
	}
	if ns := namespace(f.Prefix); ns != "" {
		return scope{kind: byNamespace, text: ns}
	}
	return scope{}
}

// namespace is the part of a key up to and including its first '/'; "" when
// there is none.
func namespace(key string) string { return key[:strings.IndexByte(key, '/')+1] }
