package fair

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// bulk has those who read much take turns at the processors while others ask for
// little. Seats bound how many are let in, and all who are let in would run at
// once: a write, which needs a processor several times until it is answered, would
// stand behind all of them each time.
//
// While somebody asks for little now and then there is one turn for every two
// processors. While somebody does all the time, and there is a line, a pause comes
// after each turn: processors are left over for what is done outside of turns, as
// reading requests and deciding on them. When nobody asks for little, nobody takes
// turns.
//
// Making an answer and encrypting and writing it are turns alike. One who makes an
// answer has to wait for its connection, which may wait for a turn that he has: his
// ends while he waits, and connections come first.
type bulk struct {
	little *atomic.Int64 // when somebody has asked for little the last time, in nanoseconds

	mu    sync.Mutex                   // guards the fields below
	free  int                          // turns that nobody has
	lines [sortsOfWork][]chan struct{} // who waits for one, in order; seats bound how many
}

// Sorts of work, the more urgent first: what is made waits to be written, and who has
// made it waits for that.
const (
	writing = iota
	making
	sortsOfWork
)

const (
	// lately is for how long somebody who asked for little is thought to come back, and
	// soon for how long he is thought to go on.
	lately, soon = time.Second, 50 * time.Millisecond
	// longest is how long a turn lasts at most. Who has more to write then, or waits
	// for a client that does not read, needs another to go on.
	longest = time.Millisecond
	// pauses is how many times as long as a turn the pause after it is, and pause what
	// it is at least.
	pauses, pause = 2, time.Millisecond
)

func newBulk(little *atomic.Int64) *bulk {
	return &bulk{little: little, free: max(1, runtime.GOMAXPROCS(0)/2)}
}

// within says whether somebody has asked for little within a time.
func (b *bulk) within(d time.Duration) bool { return time.Since(time.Unix(0, b.little.Load())) <= d }

// begin waits for a turn. It returns nil, which is none, when nobody asks for
// little, or ctx has ended.
func (b *bulk) begin(ctx context.Context, work int) *turn {
	if !b.within(lately) {
		return nil
	}
	b.mu.Lock()
	if b.free > 0 {
		b.free--
		b.mu.Unlock()
		return b.newTurn()
	}
	mine := make(chan struct{})
	b.lines[work] = append(b.lines[work], mine)
	b.mu.Unlock()
	select {
	case <-mine:
		return b.newTurn()
	case <-ctx.Done():
	}
	b.mu.Lock()
	i := slices.Index(b.lines[work], mine)
	if i >= 0 {
		b.lines[work] = slices.Delete(b.lines[work], i, i+1)
	}
	b.mu.Unlock()
	if i < 0 {
		b.next() // it was given to us meanwhile
	}
	return nil
}

// next gives a turn that is over to the first in line.
func (b *bulk) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, line := range b.lines {
		if len(line) > 0 {
			close(line[0])
			b.lines[i] = slices.Delete(line, 0, 1)
			return
		}
	}
	b.free++
}

// waits says whether somebody is in line.
func (b *bulk) waits() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.lines[writing])+len(b.lines[making]) > 0
}

// turn is what one request has; nil is none.
type turn struct {
	bulk  *bulk
	begun time.Time
	last  *time.Timer
	over  atomic.Bool
}

func (b *bulk) newTurn() *turn {
	t := &turn{bulk: b, begun: time.Now()}
	t.last = time.AfterFunc(longest, t.pass)
	return t
}

// end is called by who has the turn, and needs it no more.
func (t *turn) end() {
	if t != nil {
		t.last.Stop()
		t.pass()
	}
}

// pass has the turn be over, unless it is, and somebody else come to his.
func (t *turn) pass() {
	switch {
	case t.over.Swap(true):
	case t.bulk.within(soon) && t.bulk.waits():
		time.AfterFunc(max(pause, pauses*min(longest, time.Since(t.begun))), t.bulk.next)
	default:
		t.bulk.next()
	}
}

// Pace has a connection take turns at encrypting and writing an answer of one who
// reads much. One goroutine at a time may use it.
type Pace struct {
	place *Place
	turn  *turn
}

// Work is called before each part is encrypted, and waits for a turn.
func (p *Pace) Work() {
	switch {
	case p.place.follows():
		runtime.Gosched()
	case p.turn == nil || p.turn.over.Load():
		p.turn = p.place.rules.bulk.begin(context.Background(), writing)
	}
}

// Rest is called when nothing more is there for the moment.
func (p *Pace) Rest() {
	p.turn.end()
	p.turn = nil
}
