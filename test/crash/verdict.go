package crash

import (
	"context"
	"fmt"
	"time"

	"setpoint.dev/setpoint/store"
)

// Verdict counts what was found after crashes.
type Verdict struct {
	Acknowledged int
	// Present are commits that nobody acknowledged and that are there.
	Present int
	// Lost are acknowledged commits that are not there.
	Lost int
	// Torn are values that fail their checksum, pairs that differ, and writers
	// whose objects agree with no moment of their past.
	Torn int
	// Missed are acknowledged revisions that a resuming watcher was not told,
	// or was told twice or out of order.
	Missed int

	writers [Writers]progress
}

// progress is what a writer's objects hold after all it has committed.
type progress struct {
	next  int // the number of the commit to come, from 1
	slots [keys]int
	pair  int
}

// NewVerdict returns a verdict on an empty folder.
func NewVerdict() *Verdict {
	v := &Verdict{}
	for w := range v.writers {
		v.writers[w].next = 1
	}
	return v
}

func (v *Verdict) String() string {
	return fmt.Sprintf("acknowledged %d, unacknowledged but present %d, lost %d, torn %d, missed by the resuming watcher %d",
		v.Acknowledged, v.Present, v.Lost, v.Torn, v.Missed)
}

// Next is the number that a writer goes on with.
func (v *Verdict) Next(writer int) int { return v.writers[writer].next }

// after is the progress after the commit numbered n; deleting what is not
// there changes nothing and is never acknowledged.
func (p progress) after(n int) progress {
	switch {
	case deletes(n):
		p.slots[n%keys] = 0
	case sets(n):
		p.pair = n
	default:
		p.slots[n%keys] = n
	}
	p.next = n + 1
	return p
}

// Judge compares a reopened store with what the storm before it acknowledged.
// A writer's commits follow one another, so its objects must look as they did
// after one of them: not before the last that was acknowledged by the time of
// the crash, and not after the last that can have been under way.
func (v *Verdict) Judge(ctx context.Context, s *store.Store, acks []Ack, crash time.Time) error {
	sn, err := s.Snapshot(store.Main)
	if err != nil {
		return err
	}
	var sure, tried [Writers]int
	for w := range Writers {
		sure[w] = v.Next(w) - 1
		tried[w] = v.Next(w) - 1
	}
	for _, a := range acks {
		tried[a.Writer] = max(tried[a.Writer], a.N)
		if a.At.Before(crash) {
			sure[a.Writer] = max(sure[a.Writer], a.N)
			v.Acknowledged++
		}
	}
	for w := range Writers {
		found, err := v.find(ctx, sn, w)
		if err != nil {
			return err
		}
		v.judge(w, found, sure[w], tried[w])
	}
	return nil
}

func (v *Verdict) judge(writer int, found progress, sure, tried int) {
	best := -1 // the latest moment that looks like this, sure's own if that does
	// One deletion of nothing may stand between the last acknowledged commit
	// and the one under way.
	for p := v.writers[writer]; p.next <= tried+3; p = p.after(p.next) {
		if p.slots == found.slots && p.pair == found.pair && best < sure {
			best = p.next - 1
		}
	}
	switch {
	case best < 0:
		v.Torn++
	case best < sure:
		v.Lost += sure - best
	default:
		v.Present += best - sure
	}
	found.next = tried + 3
	v.writers[writer] = found
}

// find reads what a writer's objects hold.
func (v *Verdict) find(ctx context.Context, sn *store.Snapshot, writer int) (progress, error) {
	var p progress
	for slot := range keys {
		o, err := sn.Get(ctx, "things", key(writer, slot))
		if err != nil {
			return p, err
		}
		p.slots[slot] = v.number(o)
	}
	name := fmt.Sprintf("w%02d", writer)
	left, err := sn.Get(ctx, "left", name)
	if err != nil {
		return p, err
	}
	right, err := sn.Get(ctx, "right", name)
	if err != nil {
		return p, err
	}
	p.pair = v.number(left)
	if p.pair != v.number(right) || left != nil && left.Rev != right.Rev {
		v.Torn++
	}
	return p, nil
}

// number reads an object's commit number, 0 for none.
func (v *Verdict) number(o *store.Object) int {
	if o == nil {
		return 0
	}
	_, n, ok := parse(o.Value(), o.Rev)
	if !ok {
		v.Torn++
	}
	return n
}
