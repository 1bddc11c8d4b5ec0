package memory

import (
	"bytes"
	"slices"
	"sort"

	"github.com/tidwall/btree"

	"setpoint.dev/setpoint/store/engine"
)

// table holds the objects of one resource in one plane.
type table struct {
	floor   engine.Revision
	log     []entry
	objects *btree.BTreeG[object]
}

// object is a key with its retained versions, oldest first. There is at least
// one.
type object struct {
	key      string
	versions []*version
}

// entry is a line of the log.
type entry struct {
	key string
	*version
}

// version is what a change left behind, without the names it lies under.
type version struct {
	*moment
	prev, create engine.Revision
	delete       bool
	value        []byte
	revAt        int
	index        []byte
}

// moment is what all changes of a transaction share.
type moment struct {
	rev        engine.Revision
	time       int64
	provenance []byte
}

func newTable() *table {
	byKey := func(a, b object) bool { return a.key < b.key }
	// The engine's lock covers the tree, and a copy has one reader.
	return &table{objects: btree.NewBTreeGOptions(byKey, btree.Options{NoLocks: true})}
}

// append adds the newest version of an object.
func (t *table) append(key string, v *version) {
	o, _ := t.objects.Get(object{key: key})
	t.objects.Set(object{key: key, versions: append(o.versions, v)})
	t.log = append(t.log, entry{key: key, version: v})
}

// after returns the part of the log behind a revision.
func (t *table) after(rev engine.Revision) []entry {
	return t.log[sort.Search(len(t.log), func(i int) bool { return t.log[i].rev > rev }):]
}

// prune removes the versions of an object that no read from the floor on can
// see: those before the last one at or below the floor, and that one as well
// when it is a deletion.
func (t *table) prune(key string) {
	o, ok := t.objects.Get(object{key: key})
	if !ok {
		return
	}
	keep := o.upTo(t.floor)
	if keep > 0 && !o.versions[keep-1].delete {
		keep--
	}
	switch keep {
	case 0:
	case len(o.versions):
		t.objects.Delete(o)
	default:
		t.objects.Set(object{key: o.key, versions: slices.Clone(o.versions[keep:])})
	}
}

// upTo counts the versions up to and including a revision.
func (o *object) upTo(rev engine.Revision) int {
	return sort.Search(len(o.versions), func(i int) bool { return o.versions[i].rev > rev })
}

// at returns the version that was the object's state at a revision, nil when
// there was none or it was deleted. Revision 0 means now.
func (o *object) at(rev engine.Revision) *version {
	n := len(o.versions)
	if rev != 0 {
		n = o.upTo(rev)
	}
	if n == 0 || o.versions[n-1].delete {
		return nil
	}
	return o.versions[n-1]
}

// lend returns a version with the engine's own bytes in it.
func (v *version) lend(t engine.Table, key string) engine.Version {
	return engine.Version{
		Change: engine.Change{
			Plane:    t.Plane,
			Resource: t.Resource,
			Key:      key,
			Prev:     v.prev,
			Create:   v.create,
			Delete:   v.delete,
			Value:    v.value,
			RevAt:    v.revAt,
			Index:    v.index,
		},
		Rev:        v.rev,
		Time:       v.time,
		Provenance: v.provenance,
	}
}

// give returns a version whose bytes are the reader's.
func (v *version) give(t engine.Table, key string) engine.Version {
	out := v.lend(t, key)
	out.Value = bytes.Clone(out.Value)
	out.Index = bytes.Clone(out.Index)
	out.Provenance = bytes.Clone(out.Provenance)
	return out
}
