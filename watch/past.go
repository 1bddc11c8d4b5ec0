package watch

import (
	"context"
	"slices"
	"sync"

	"setpoint.dev/setpoint/store"
)

// past is what watchers behind a table's ring have read from disk. They share
// it: of the many that fall behind together, or come back together after a
// restart, one reads a page and all go on from where it ends. So catching up
// costs one reading of the log and the memory of a few pages, not as much for
// each watcher.
type past struct {
	turn  chan struct{} // has an element while somebody reads from disk
	limit int           // bytes that the pages may keep in memory; one page always may

	mu    sync.Mutex // guards the fields below
	pages []*page    // the one used last is last
	size  int
}

// pageSize is what a page counts for besides its changes, so that pages
// without any are bounded too.
const pageSize = 64 << 10

// page is every change of a table after one revision and up to another.
type page struct {
	after, upTo store.Revision
	changes     []*store.Change
	size        int
}

func newPast(limit int) *past { return &past{turn: make(chan struct{}, 1), limit: limit} }

// page returns a page that goes on from a revision, from memory or from disk.
func (p *past) page(ctx context.Context, s *store.Store, name tableName, after store.Revision) (*page, error) {
	if pg := p.find(after); pg != nil {
		return pg, nil
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if pg := p.find(after); pg != nil { // read while we waited
		return pg, nil
	}
	pg, err := readPage(ctx, s, name, after)
	if err == nil {
		p.add(pg)
	}
	return pg, err
}

// readPage reads as many changes as a batch may hold.
func readPage(ctx context.Context, s *store.Store, name tableName, after store.Revision) (*page, error) {
	pg := &page{after: after, upTo: s.Current(), size: pageSize}
	last, size := after, 0
	for c, err := range s.Changes(ctx, name.plane, name.resource, after) {
		if err != nil {
			return nil, err
		}
		if c.Rev != last && (len(pg.changes) >= maxEvents || size >= maxSize) {
			pg.upTo = last
			return pg, nil
		}
		pg.changes = append(pg.changes, c)
		pg.size += cost(c)
		last, size = c.Rev, size+len(c.New.Value())
	}
	pg.upTo = max(pg.upTo, last)
	return pg, nil
}

func (p *past) find(after store.Revision) *page {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, pg := range p.pages {
		if pg.after <= after && after < pg.upTo {
			p.pages = append(slices.Delete(p.pages, i, i+1), pg)
			return pg
		}
	}
	return nil
}

// add keeps a page, at the cost of those used longest ago.
func (p *past) add(pg *page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages = append(p.pages, pg)
	p.size += pg.size
	for p.size > p.limit && len(p.pages) > 1 {
		p.size -= p.pages[0].size
		p.pages = slices.Delete(p.pages, 0, 1)
	}
}

// forget drops all pages.
func (p *past) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages, p.size = nil, 0
}
