package store

import (
	"context"
	"sync/atomic"
)

// Change is what one revision did to one object. It never changes itself.
type Change struct {
	Plane    string
	Resource string
	Rev      Revision
	// Prev is the revision of the version that was replaced, 0 when the change
	// created the object.
	Prev Revision
	// Old is the version that was replaced. It is nil when the change created
	// the object, and in a history whose earlier part is compacted.
	Old *Object
	// New is the version written; for a deletion the object's last state,
	// carrying the revision of the deletion.
	New     *Object
	Deleted bool

	planeID    string // see plane.id
	millis     int64
	provenance []byte
	last       atomic.Pointer[[]byte]
}

// Key is the key of the changed object.
func (c *Change) Key() string { return c.New.Key() }

// Provenance says who made the change.
func (c *Change) Provenance() (Provenance, error) {
	return decodeProvenance(c.provenance, c.millis)
}

// LastValue is the value of Old carrying the revision of this change: what is
// said to somebody who could see the object before the change and cannot see
// it after. The bytes are made once, however many ask.
func (c *Change) LastValue() []byte {
	if b := c.last.Load(); b != nil {
		return *b
	}
	b := c.Old.withRevision(c.Rev)
	c.last.CompareAndSwap(nil, &b)
	return *c.last.Load()
}

// Batch is what one commit group published.
type Batch struct {
	// Rev is the store's revision after the batch.
	Rev Revision
	// Changes are in revision order.
	Changes []*Change
	// Dropped are the planes that are gone.
	Dropped []string
}

// Feed reads published batches in order, none missing, from the moment it was
// taken. It is a linked list that the committer only appends to, so a reader
// costs writers nothing; batches live until the slowest feed has passed them,
// so a reader must keep reading, and never wait for anything but the feed. The
// watch hub is one, what authorizes nodes another.
type Feed struct {
	node *feedNode
	// ended is closed when nothing is published any more.
	ended <-chan struct{}
}

type feedNode struct {
	Batch
	next  *feedNode     // set before ready is closed
	ready chan struct{} // closed when next is there
}

func newFeedNode(b Batch) *feedNode { return &feedNode{Batch: b, ready: make(chan struct{})} }

// link publishes next behind n, which must be the end of the feed.
func (n *feedNode) link(next *feedNode) {
	n.next = next
	close(n.ready)
}

// Next waits for the next batch. It returns ErrClosed when the store is closed
// and every batch has been read.
func (f *Feed) Next(ctx context.Context) (Batch, error) {
	select {
	case <-f.node.ready:
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	case <-f.ended:
		select {
		case <-f.node.ready:
		default:
			return Batch{}, ErrClosed
		}
	}
	f.node = f.node.next
	return f.node.Batch, nil
}
