package watch

import "slices"

// scope names a topic within a table; the zero value is the whole table.
type scope struct {
	kind  scopeKind
	field string
	text  string
}

type scopeKind uint8

const (
	whole scopeKind = iota
	byNamespace
	byKey
	byField
)

// topic is a part of a table that watchers want to hear of, with the recent
// changes that touched it: those where the version before or after lies in it.
type topic struct {
	scope scope
	ring  *ring // the table's own for the whole table

	// The fields below are guarded by Hub.mu.
	bells    []*bell
	watchers int
	dirty    bool // to be woken after the batch in hand
}

// joinLocked returns a bell for one more watcher.
func (tp *topic) joinLocked() *bell {
	tp.watchers++
	for _, b := range slices.Backward(tp.bells) {
		if b.watchers < bellSize {
			b.watchers++
			return b
		}
	}
	b := &bell{watchers: 1}
	tp.bells = append(tp.bells, b)
	return b
}

// leaveLocked takes a watcher away from its bell.
func (tp *topic) leaveLocked(b *bell) {
	tp.watchers--
	if b.watchers--; b.watchers == 0 {
		tp.bells = slices.DeleteFunc(tp.bells, func(other *bell) bool { return other == b })
	}
}
