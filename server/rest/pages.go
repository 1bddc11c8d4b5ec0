package rest

import (
	"sync"
	"time"

	"setpoint.dev/setpoint/store"
)

// pageLife is how long a list may go on page by page. Compat: clients are told
// of lists that are too old, and rely on it; upstream compacts that often.
const pageLife = 5 * time.Minute

// markEvery is how far apart first pages are noted, so that there is a bound on
// how many are.
const markEvery = time.Second

// pages knows how old lists are that are read page by page. Those of an earlier
// start are as old as the store remembers.
type pages struct {
	mu    sync.Mutex // guards the fields below
	marks []pageMark // of lists that have begun, oldest first
	floor store.Revision
}

type pageMark struct {
	rev store.Revision
	at  time.Time
}

// begun notes that a list of a revision has begun.
func (p *pages) begun(rev store.Revision, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pruneLocked(now)
	if n := len(p.marks); n > 0 && (p.marks[n-1].rev == rev || now.Sub(p.marks[n-1].at) < markEvery) {
		p.marks[n-1].rev = max(p.marks[n-1].rev, rev)
		if p.marks[n-1].rev == rev {
			p.marks[n-1].at = now
		}
		return
	}
	p.marks = append(p.marks, pageMark{rev, now})
}

// over says that a list of a revision began too long ago.
func (p *pages) over(rev store.Revision, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pruneLocked(now)
	return rev <= p.floor
}

func (p *pages) pruneLocked(now time.Time) {
	for len(p.marks) > 0 && now.Sub(p.marks[0].at) > pageLife {
		p.floor = max(p.floor, p.marks[0].rev)
		p.marks = p.marks[1:]
	}
	// A list that has begun since is not over, whatever is said of older ones.
	if len(p.marks) > 0 && p.marks[0].rev <= p.floor {
		p.floor = p.marks[0].rev - 1
	}
}
