package kinds

import (
	"slices"
	"sync"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// List is an immutable list of resources: those that it was made with, and
// those that were put there later, one name at a time.
type List struct {
	first  []*Resource
	byName map[schema.GroupResource][]*Resource
	// put are the resources of names that were put, by group and then in the
	// order of "name.group". Lists that were made from each other share it where
	// they are the same. Nil when there are none.
	put *btree.Map[putKey, []*Resource]
	all func() []*Resource
}

// putKey orders names that were put.
type putKey string

func keyOf(name schema.GroupResource) putKey {
	return putKey(name.Group + "\x00" + name.Resource + "." + name.Group)
}

// NewList returns a list of resources; groups and resources are kept in the
// given order, which is the order of discovery. A resource may be there several
// times, each time with other versions.
func NewList(resources []*Resource) *List {
	l := &List{first: resources, byName: make(map[schema.GroupResource][]*Resource, len(resources))}
	for rest := resources; len(rest) > 0; {
		// Most often all of a name are side by side, and are a part of the list.
		name, n := rest[0].GroupResource(), 1
		for n < len(rest) && rest[n].GroupResource() == name {
			n++
		}
		if before := l.byName[name]; before == nil {
			l.byName[name] = rest[:n:n]
		} else {
			l.byName[name] = append(before, rest[:n]...)
		}
		rest = rest[n:]
	}
	l.all = func() []*Resource { return resources }
	return l
}

// Put returns a list with the resources of a name in the place of those that
// were put there before; with none, the name is as it was at first. What the
// list was made with is never replaced: where it serves a version of the name,
// the same version of a resource that is put is left out.
//
// It costs the same however long the list is. Put may be called by one caller at
// a time for all lists that were made from each other; reading goes on meanwhile.
func (l *List) Put(name schema.GroupResource, resources ...*Resource) *List {
	resources = slices.DeleteFunc(slices.Clone(resources), func(r *Resource) bool {
		return slices.ContainsFunc(l.byName[name], func(had *Resource) bool { return had.Serves(r.Versions[0]) })
	})
	next := &List{first: l.first, byName: l.byName, put: new(btree.Map[putKey, []*Resource])}
	if l.put != nil {
		next.put = l.put.Copy()
	}
	if len(resources) > 0 {
		next.put.Set(keyOf(name), resources)
	} else {
		next.put.Delete(keyOf(name))
	}
	next.all = sync.OnceValue(next.makeAll)
	return next
}

// Builtin are the resources that the list was made with.
func (l *List) Builtin() []*Resource { return l.first }

// All are the resources in order: after those that the list was made with come
// those that were put, by group, in a group by version, newest first, and in a
// version by name.
func (l *List) All() []*Resource { return l.all() }

func (l *List) makeAll() []*Resource {
	all := slices.Clone(l.first)
	from := len(all) // where the group begins
	sortGroup := func() {
		slices.SortStableFunc(all[from:], func(a, b *Resource) int {
			return version.CompareKubeAwareVersionStrings(b.Versions[0], a.Versions[0])
		})
		from = len(all)
	}
	l.put.Scan(func(_ putKey, resources []*Resource) bool {
		if len(all) > from && all[from].Group != resources[0].Group {
			sortGroup()
		}
		all = append(all, resources...)
		return true
	})
	sortGroup()
	return all
}

// Find returns the resource that a path names, nil when none is served there.
func (l *List) Find(group, version, name string) *Resource {
	of := schema.GroupResource{Group: group, Resource: name}
	for _, r := range l.byName[of] {
		if r.Serves(version) {
			return r
		}
	}
	if l.put == nil {
		return nil
	}
	put, _ := l.put.Get(keyOf(of))
	for _, r := range put {
		if r.Serves(version) {
			return r
		}
	}
	return nil
}
