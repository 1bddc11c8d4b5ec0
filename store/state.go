package store

import (
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/tidwall/btree"

	"setpoint.dev/setpoint/store/engine"
)

// version is the state of every plane at one revision. Once published it never
// changes; readers find it through one atomic pointer, so a list, a page and a
// fork are all a matter of holding on to it.
//
// It is a tree of trees (planes, tables, objects), each copy-on-write:
//
//	version -> planes by name -> tables by resource -> objects by key
//	                                               \-> index by term and key
//
// Only the committer calls Copy on a published tree, because Copy marks the
// original; everybody else only reads.
type version struct {
	rev    Revision
	planes *btree.BTreeG[*plane]
	// feed is the end of the feed at this revision: what is published after
	// this version comes after this node.
	feed *feedNode
}

// plane is one line of history with its own state.
type plane struct {
	name string
	// id names the plane to the engine that keeps its past. Names are used
	// again after a drop, ids never.
	id     string
	tables *btree.BTreeG[*table]
	// origin is where a fork left its parent; nil for main.
	origin *origin
}

// origin is what a fork was made from. Its past up to rev is its parent's.
type origin struct {
	parent *plane
	rev    Revision
}

// table holds the objects of one resource in one plane.
type table struct {
	resource string
	rev      Revision // of the last change since the store was opened
	objects  *btree.BTreeG[*Object]
	marked   int // how many objects are
	// index finds objects by term. It is nil until somebody asks, since making
	// it takes as long as loading the table; from then on it is kept. wanted
	// says to later versions of the table that somebody has asked: the
	// committer makes the index with its next change, should the one made by
	// the asker come too late for it.
	index  atomic.Pointer[btree.BTreeG[entry]]
	wanted *atomic.Bool
}

// entry places an object in its table's index under one of its terms.
type entry struct {
	object *Object
	term   uint32 // where in the object's data the term stands
}

func (e entry) text() string { return e.object.termText(e.term) }

var treeOptions = btree.Options{NoLocks: true}

func newPlanes() *btree.BTreeG[*plane] {
	return btree.NewBTreeGOptions(func(a, b *plane) bool { return a.name < b.name }, treeOptions)
}

func newTables() *btree.BTreeG[*table] {
	return btree.NewBTreeGOptions(func(a, b *table) bool { return a.resource < b.resource }, treeOptions)
}

func newTable(resource string) *table {
	return &table{
		resource: resource,
		objects: btree.NewBTreeGOptions(func(a, b *Object) bool {
			return a.Key() < b.Key()
		}, treeOptions),
		wanted: new(atomic.Bool),
	}
}

func compareEntries(a, b entry) int {
	if c := strings.Compare(a.text(), b.text()); c != 0 {
		return c
	}
	return strings.Compare(a.object.Key(), b.object.Key())
}

// byTerm returns the table's index, making it if need be. The table must not
// change any more.
func (t *table) byTerm() *btree.BTreeG[entry] {
	if made := t.index.Load(); made != nil {
		return made
	}
	t.wanted.Store(true)
	var entries []entry
	t.objects.Scan(func(o *Object) bool {
		for at := range o.terms() {
			entries = append(entries, entry{o, at})
		}
		return true
	})
	slices.SortFunc(entries, compareEntries)
	index := btree.NewBTreeGOptions(func(a, b entry) bool { return compareEntries(a, b) < 0 }, treeOptions)
	for _, e := range entries {
		index.Load(e)
	}
	t.index.CompareAndSwap(nil, index)
	return t.index.Load()
}

func (v *version) plane(name string) *plane {
	p, _ := v.planes.Get(&plane{name: name})
	return p
}

// table returns the objects of a resource, nil when the plane has none.
func (p *plane) table(resource string) *table {
	t, _ := p.tables.Get(&table{resource: resource})
	return t
}

func (t *table) get(key string) *Object {
	if t == nil {
		return nil
	}
	o, _ := t.objects.Get(pivot(key))
	return o
}

// put makes o the current version of its object.
func (t *table) put(o *Object) {
	old, replaced := t.objects.Set(o)
	t.marked += o.mark()
	if replaced {
		t.marked -= old.mark()
	}
	index := t.index.Load()
	if index == nil {
		return
	}
	if replaced {
		unindex(index, old, o)
	}
	for at := range o.terms() {
		index.Set(entry{o, at})
	}
}

func (t *table) remove(o *Object) {
	if old, was := t.objects.Delete(o); was {
		t.marked -= old.mark()
	}
	if index := t.index.Load(); index != nil {
		unindex(index, o, nil)
	}
}

// load puts an object behind all that the table has, which is not indexed yet.
func (t *table) load(o *Object) {
	t.objects.Load(o)
	t.marked += o.mark()
}

// position is how many objects have keys before key.
func (t *table) position(key string) int {
	return sort.Search(t.objects.Len(), func(i int) bool {
		o, _ := t.objects.GetAt(i)
		return o.Key() >= key
	})
}

// count is how many objects lie in a range that has no term.
func (t *table) count(r Range) int {
	end := t.objects.Len()
	if to := r.to(); to != "" {
		end = t.position(to)
	}
	return max(0, end-t.position(r.from()))
}

// mark is 1 for an object that is marked, and 0 for all others.
func (o *Object) mark() int { return int(o.flags >> 31) }

// unindex takes the terms of old out of an index, save those that next has
// too: putting next overwrites these.
func unindex(index *btree.BTreeG[entry], old, next *Object) {
	for at := range old.terms() {
		if next == nil || !next.hasTerm(old.termText(at)) {
			index.Delete(entry{old, at})
		}
	}
}

func (o *Object) hasTerm(term string) bool {
	for at := range o.terms() {
		if o.termText(at) == term {
			return true
		}
	}
	return false
}

func (t *table) copy() *table {
	next := &table{resource: t.resource, rev: t.rev, objects: t.objects.Copy(), marked: t.marked, wanted: t.wanted}
	if t.index.Load() != nil || t.wanted.Load() {
		next.index.Store(t.byTerm().Copy())
	}
	return next
}

// pivot is an object to seek with.
func pivot(key string) *Object {
	return &Object{data: []byte(key), keyLen: uint32(len(key))}
}

// termPivot is an index entry to seek with.
func termPivot(term, key string) entry {
	data := append([]byte(key), appendText(nil, term)...)
	return entry{&Object{data: data, keyLen: uint32(len(key))}, uint32(len(key))}
}

// draft is a version in the making. It copies what it is about to change and
// shares the rest with the version it began from; dropping it undoes it.
type draft struct {
	rev    Revision
	planes *btree.BTreeG[*plane]
	owned  map[engine.Table]*table
	mine   map[string]*plane
	edited bool // the set of planes is another
}

func newDraft(v *version) *draft {
	return &draft{
		rev: v.rev, planes: v.planes.Copy(),
		owned: map[engine.Table]*table{}, mine: map[string]*plane{},
	}
}

func (d *draft) plane(name string) *plane {
	p, _ := d.planes.Get(&plane{name: name})
	return p
}

func (d *draft) get(t engine.Table, key string) *Object {
	if own := d.owned[t]; own != nil {
		return own.get(key)
	}
	return d.plane(t.Plane).table(t.Resource).get(key)
}

// table returns a table that the draft may change; the plane must exist.
func (d *draft) table(t engine.Table) *table {
	if own := d.owned[t]; own != nil {
		return own
	}
	p := d.mine[t.Plane]
	if p == nil {
		was := d.plane(t.Plane)
		p = &plane{name: was.name, id: was.id, tables: was.tables.Copy(), origin: was.origin}
		d.mine[t.Plane] = p
		d.planes.Set(p)
	}
	own := p.table(t.Resource)
	if own == nil {
		own = newTable(t.Resource)
	} else {
		own = own.copy()
	}
	p.tables.Set(own)
	d.owned[t] = own
	return own
}

// apply makes the change part of the draft.
func (d *draft) apply(c *Change) {
	t := d.table(engine.Table{Plane: c.Plane, Resource: c.Resource})
	if c.Deleted {
		t.remove(c.Old)
	} else {
		t.put(c.New)
	}
	t.rev = c.Rev
	d.rev = c.Rev
}
