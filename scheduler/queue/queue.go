// Package queue holds the pods that wait for a node.
//
// In come pods, what has become of attempts to place them, and changes of the
// cluster; out comes the pod to place next: the most important, and of these the
// one that has waited longest.
//
//	Add ------------------> active --Next--> placing --Placed--> (gone)
//	  \                       ^  ^              |
//	   gated --gates open-----'  |              | Refused: no node will do
//	                             |              v
//	                          backoff <--Wake-- waiting
//	                             ^------------------ Failed: something went wrong
//
// What always holds: a pod is in one place, so the queue is bounded by the pods
// there are; and a change that comes while a pod is being placed is not lost to
// it.
package queue

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/scheduler/event"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

// The terms of waiting. Compat: they are upstream's.
const (
	firstBackoff = time.Second
	lastBackoff  = 10 * time.Second
	// waitAtMost is when a pod is tried again that nothing has helped.
	waitAtMost = 5 * time.Minute
	lookEvery  = 30 * time.Second
)

// maxMissed is how many changes are remembered while a pod is placed; after more
// it is taken that one of them helps.
const maxMissed = 1000

// place is where a pod is.
type place int

const (
	active place = iota
	backoff
	waiting
	gated
	placing
)

// Item is a pod that waits for a node.
type Item struct {
	Pod *snapshot.Pod
	// By are the filters that refused it last; none when it was refused
	// otherwise.
	By []string
	// Attempts is how often it has been placed in vain.
	Attempts int

	at      place
	since   time.Time // when it came to where it is
	order   uint64    // among those of one time
	until   time.Time // when its backoff ends
	failed  bool      // its backoff is not cut short
	index   int       // in the heap it is in
	removed bool
	newer   *snapshot.Pod // what the pod has become while it was placed
}

// Queue is the pods that wait for a node.
type Queue struct {
	helps func(*Item, *event.Event) bool

	mu     sync.Mutex // guards the fields below
	items  map[types.UID]*Item
	active byImportance
	later  byEnd
	held   int // items that wait or are gated
	count  uint64
	// flying is the item that is being placed, and missed what has changed since;
	// much says that more has than was kept.
	flying *Item
	missed []event.Event
	much   bool
	looked time.Time
	bell   chan struct{} // rung when there may be something to take
}

// New returns an empty queue. helps says whether a change may help a pod.
func New(helps func(*Item, *event.Event) bool) *Queue {
	return &Queue{helps: helps, items: map[types.UID]*Item{}, bell: make(chan struct{}, 1)}
}

func (q *Queue) ring() {
	select {
	case q.bell <- struct{}{}:
	default:
	}
}

// Add says that a pod wants a node, or has changed while it waits for one. A pod
// that is being placed goes on as it was.
func (q *Queue) Add(p *snapshot.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	closed := len(p.Object.Spec.SchedulingGates) > 0
	item := q.items[p.Object.UID]
	switch {
	case item == nil:
		item = &Item{Pod: p}
		q.items[p.Object.UID] = item
		if closed {
			q.putLocked(item, gated)
		} else {
			q.putLocked(item, active)
		}
	case item.at == gated && !closed:
		q.takeLocked(item)
		item.Pod = p
		q.putLocked(item, active)
	case item.at == active && item.Pod.Priority != p.Priority:
		item.Pod = p
		heap.Fix(&q.active, item.index)
	case item.at == placing:
		item.newer = p
	default:
		item.Pod = p
	}
}

// Remove says that a pod needs no node any more.
func (q *Queue) Remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.items[uid]; item != nil {
		q.takeLocked(item)
		item.removed = true
		delete(q.items, uid)
	}
}

// putLocked puts an item that is nowhere into a place.
func (q *Queue) putLocked(item *Item, at place) {
	q.count++
	item.at, item.order = at, q.count
	switch at {
	case active:
		item.since = time.Now()
		heap.Push(&q.active, item)
		q.ring()
	case backoff:
		heap.Push(&q.later, item)
		q.ring()
	case waiting, gated:
		item.since = time.Now()
		q.held++
		if q.held == 1 {
			q.looked = item.since
			q.ring() // somebody must look after it
		}
	}
}

// takeLocked takes an item from where it is.
func (q *Queue) takeLocked(item *Item) {
	switch item.at {
	case active:
		heap.Remove(&q.active, item.index)
	case backoff:
		heap.Remove(&q.later, item.index)
	case waiting, gated:
		q.held--
	case placing:
		q.landLocked(item)
	}
}

// landLocked says that an item is placed no more.
func (q *Queue) landLocked(item *Item) {
	if q.flying == item {
		q.flying, q.missed, q.much = nil, nil, false
	}
	if item.newer != nil {
		item.Pod, item.newer = item.newer, nil
	}
}

// Next takes the next pod, and waits for one. It returns nil when ctx has ended.
// One pod is placed at a time: Placed, Refused or Failed must be called before
// the next.
func (q *Queue) Next(ctx context.Context) *Item {
	for {
		item, wait := q.next()
		if item != nil {
			return item
		}
		if wait == 0 {
			wait = time.Hour // the bell rings before
		}
		alarm := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.bell:
		case <-alarm.C:
		}
		alarm.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// next is the next item, or how long there will be none; 0 is until the bell
// rings.
func (q *Queue) next() (*Item, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for len(q.later) > 0 && !q.later[0].until.After(now) {
		item := q.later[0]
		q.takeLocked(item)
		q.putLocked(item, active)
	}
	wait := q.lookLocked(now)
	if len(q.active) == 0 {
		// Who has nothing better to do does not wait for the end of a backoff, unless
		// something went wrong.
		for _, item := range q.later {
			if !item.failed {
				q.takeLocked(item)
				return q.flyLocked(item), 0
			}
		}
		if len(q.later) > 0 {
			end := q.later[0].until.Sub(now)
			if wait == 0 || end < wait {
				wait = end
			}
		}
		return nil, wait
	}
	item := q.active[0]
	q.takeLocked(item)
	return q.flyLocked(item), 0
}

func (q *Queue) flyLocked(item *Item) *Item {
	item.at = placing
	q.flying, q.missed, q.much = item, nil, false
	return item
}

// lookLocked tries again what has waited for too long, and says when to look
// again; 0 is never.
func (q *Queue) lookLocked(now time.Time) time.Duration {
	if q.held == 0 {
		return 0
	}
	if next := q.looked.Add(lookEvery).Sub(now); next > 0 {
		return next
	}
	q.looked = now
	for _, item := range q.items {
		if item.at == waiting && now.Sub(item.since) >= waitAtMost {
			q.againLocked(item, now)
		}
	}
	return lookEvery
}

// againLocked has an item that waits tried again, after its backoff.
func (q *Queue) againLocked(item *Item, now time.Time) {
	q.takeLocked(item)
	if item.until.After(now) {
		q.putLocked(item, backoff)
	} else {
		q.putLocked(item, active)
	}
}

// Placed says that a pod has a node.
func (q *Queue) Placed(item *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.landLocked(item)
	if !item.removed {
		delete(q.items, item.Pod.Object.UID)
	}
}

// Refused says that no node will do for a pod, because of some filters. It waits
// for a change that helps.
func (q *Queue) Refused(item *Item, by []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	missed, much := q.missed, q.much
	q.landLocked(item)
	if item.removed {
		return
	}
	now := time.Now()
	item.By, item.failed = by, false
	item.delay(now)
	q.putLocked(item, waiting)
	helped := much
	for i := range missed {
		helped = helped || q.helps(item, &missed[i])
	}
	if helped {
		q.againLocked(item, now)
	}
}

// Failed says that a pod could not be placed because something went wrong. It is
// tried again after a while. The pod may have been said to be placed before.
func (q *Queue) Failed(item *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.landLocked(item)
	if other := q.items[item.Pod.Object.UID]; item.removed || other != nil && other != item {
		return
	}
	q.items[item.Pod.Object.UID] = item
	item.By, item.failed = nil, true
	item.delay(time.Now())
	q.putLocked(item, backoff)
}

// delay counts an attempt and lets the next wait, longer each time.
func (i *Item) delay(now time.Time) {
	i.Attempts++
	pause := firstBackoff
	for n := 1; n < i.Attempts && pause < lastBackoff; n++ {
		pause *= 2
	}
	i.until = now.Add(min(pause, lastBackoff))
}

// Wake tells the pods that wait of a change.
func (q *Queue) Wake(e event.Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.flying != nil {
		if len(q.missed) < maxMissed {
			q.missed = append(q.missed, e)
		} else {
			q.much = true
		}
	}
	if q.held == 0 {
		return
	}
	now := time.Now()
	for _, item := range q.items {
		if item.at == waiting && q.helps(item, &e) {
			q.againLocked(item, now)
		}
	}
}

// Retry has a pod that waits tried again, though nothing has changed.
func (q *Queue) Retry(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.items[uid]; item != nil && item.at == waiting {
		q.againLocked(item, time.Now())
	}
}

// Counts are how many pods are where.
type Counts struct{ Active, Backoff, Unschedulable, Gated int }

// Counts says how many pods are where.
func (q *Queue) Counts() Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := Counts{Active: len(q.active), Backoff: len(q.later)}
	for _, item := range q.items {
		switch item.at {
		case waiting:
			c.Unschedulable++
		case gated:
			c.Gated++
		}
	}
	return c
}
