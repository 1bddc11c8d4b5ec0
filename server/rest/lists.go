package rest

import (
	"slices"
	"sync"
	"time"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/rest/zipped"
	"setpoint.dev/setpoint/store"
)

// Bounds of lists that are kept compressed. A list is kept for as long as
// somebody asks for the same objects every now and then; when there are more
// than there is room for, those go that nobody has asked for the longest.
const (
	maxLists     = 16
	maxListsSize = 32 << 20
	maxListSize  = 16 << 20
	listsKeptFor = 10 * time.Second
)

// lists are the items of lists, compressed once for all who ask for the same
// objects: those who come back after a break, all at once. The same objects are
// the same versions of them, in one order, in one representation; how they were
// selected does not matter.
type lists struct {
	mu   sync.Mutex // guards the fields below
	all  []*zippedList
	size int
	tidy *time.Timer // nil when nothing is kept
}

type zippedList struct {
	media   string
	objects []*store.Object
	measure codec.Measure
	items   *zipped.Piece
	used    time.Time
}

// get is the list of these objects, nil if it is not kept.
func (l *lists) get(media string, objects []*store.Object) *zippedList {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, z := range l.all {
		if z.media == media && slices.Equal(z.objects, objects) {
			z.used = time.Now()
			return z
		}
	}
	return nil
}

// put keeps a list.
func (l *lists) put(z *zippedList) {
	l.mu.Lock()
	defer l.mu.Unlock()
	z.used = time.Now()
	l.all = append(l.all, z)
	l.size += z.items.Size()
	for len(l.all) > maxLists || l.size > maxListsSize {
		oldest := 0
		for i, z := range l.all {
			if z.used.Before(l.all[oldest].used) {
				oldest = i
			}
		}
		l.dropLocked(oldest)
	}
	if l.tidy == nil && len(l.all) > 0 {
		l.tidy = time.AfterFunc(listsKeptFor, l.forget)
	}
}

func (l *lists) dropLocked(i int) {
	l.size -= l.all[i].items.Size()
	l.all = slices.Delete(l.all, i, i+1)
}

// forget drops what nobody has asked for in a while, and comes back as long as
// something is left.
func (l *lists) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := time.Now().Add(-listsKeptFor)
	l.all = slices.DeleteFunc(l.all, func(z *zippedList) bool {
		if z.used.After(before) {
			return false
		}
		l.size -= z.items.Size()
		return true
	})
	if len(l.all) == 0 {
		l.tidy = nil
		return
	}
	l.tidy.Reset(listsKeptFor)
}
