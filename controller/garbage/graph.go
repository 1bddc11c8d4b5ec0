package garbage

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// node is what is known of an object.
type node struct {
	uid             types.UID
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	owners          []metav1.OwnerReference
	deleting        bool // its deletion has begun
	foreground      bool // and waits for dependents
	orphans         bool // and sets its dependents free first
}

// graph is who belongs to whom, as the watches have told so far. It has those
// looked at that a change may concern. Whether an owner exists that the graph
// does not know is asked of the API by whoever looks.
type graph struct {
	look      func(types.UID)
	misplaced func(dependent node, ref metav1.OwnerReference)

	mu    sync.Mutex // guards the fields below
	nodes map[types.UID]node
	// dependentsOf has the dependents of owners, known or not; true for those
	// that block them.
	dependentsOf map[types.UID]map[types.UID]bool
	// blockers is how many of them block.
	blockers map[types.UID]int
	complete bool // everything there was at the start is known
}

func newGraph(look func(types.UID), misplaced func(node, metav1.OwnerReference)) *graph {
	return &graph{
		look: look, misplaced: misplaced,
		nodes: map[types.UID]node{}, dependentsOf: map[types.UID]map[types.UID]bool{}, blockers: map[types.UID]int{},
	}
}

// nodeOf is what is to be known of an object. Strings are those of the object:
// they are few, and the rest of it is let go.
func nodeOf(resource schema.GroupVersionResource, kind string, m metav1.Object) node {
	n := node{
		uid: m.GetUID(), resource: resource, kind: kind, namespace: m.GetNamespace(), name: m.GetName(),
		owners: m.GetOwnerReferences(), deleting: m.GetDeletionTimestamp() != nil,
	}
	n.foreground = n.deleting && has(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
	n.orphans = n.deleting && has(m.GetFinalizers(), metav1.FinalizerOrphanDependents)
	return n
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// put takes note of an object that was created or has changed.
func (g *graph) put(n node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, known := g.nodes[n.uid]
	g.nodes[n.uid] = n
	g.unlinkLocked(before)
	g.linkLocked(n)
	for _, ref := range before.owners {
		g.unblockedLocked(ref.UID)
	}
	if g.complete && (!known || !slices.EqualFunc(before.owners, n.owners, sameReference)) {
		g.checkLocked(n)
	}
	if n.orphans && !before.orphans || n.foreground && !before.foreground {
		g.look(n.uid)
	}
	if n.foreground && !before.foreground {
		for d := range g.dependentsOf[n.uid] {
			g.look(d)
		}
	}
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Name == b.Name && a.Kind == b.Kind && a.APIVersion == b.APIVersion && blocks(a) == blocks(b)
}

// checkLocked has an object looked at when an owner of it is not known, not who
// it should be, or waits for it to go.
func (g *graph) checkLocked(n node) {
	check := false
	for _, ref := range n.owners {
		owner, known := g.nodes[ref.UID]
		elsewhere := known && owner.namespace != "" && owner.namespace != n.namespace
		if elsewhere {
			g.misplaced(n, ref)
		}
		check = check || !known || elsewhere || owner.name != ref.Name || owner.foreground ||
			owner.kind != ref.Kind || owner.resource.Group != groupOf(ref)
	}
	if check {
		g.look(n.uid)
	}
}

func groupOf(ref metav1.OwnerReference) string {
	gv, _ := schema.ParseGroupVersion(ref.APIVersion) // what cannot be read is nobody's group
	return gv.Group
}

// finish says that everything there was at the start is known.
func (g *graph) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.complete = true
	for _, n := range g.nodes {
		g.checkLocked(n)
	}
}

// recheck has objects looked at again whose owners are not known although their
// kinds may have been listed since: who went before that went unnoticed.
func (g *graph) recheck() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.complete {
		return // all will be looked at
	}
	for owner, dependents := range g.dependentsOf {
		if _, known := g.nodes[owner]; !known {
			for d := range dependents {
				g.look(d)
			}
		}
	}
}

// knows says that all owners are known.
func (g *graph) knows(refs []metav1.OwnerReference) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ref := range refs {
		if _, known := g.nodes[ref.UID]; !known {
			return false
		}
	}
	return true
}

// remove takes note that an object is gone.
func (g *graph) remove(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, known := g.nodes[uid]
	if !known {
		return
	}
	delete(g.nodes, uid)
	g.unlinkLocked(n)
	for d := range g.dependentsOf[uid] {
		g.look(d)
	}
	for _, ref := range n.owners {
		g.unblockedLocked(ref.UID)
	}
}

// unblockedLocked has an owner looked at that waits for nobody any more.
func (g *graph) unblockedLocked(owner types.UID) {
	if g.nodes[owner].foreground && g.blockers[owner] == 0 {
		g.look(owner)
	}
}

func (g *graph) linkLocked(n node) {
	for _, ref := range n.owners {
		of := g.dependentsOf[ref.UID]
		if of == nil {
			of = map[types.UID]bool{}
			g.dependentsOf[ref.UID] = of
		}
		if _, linked := of[n.uid]; !linked {
			of[n.uid] = blocks(ref)
			if blocks(ref) {
				g.blockers[ref.UID]++
			}
		}
	}
}

func (g *graph) unlinkLocked(n node) {
	for _, ref := range n.owners {
		of := g.dependentsOf[ref.UID]
		if of[n.uid] {
			if g.blockers[ref.UID]--; g.blockers[ref.UID] == 0 {
				delete(g.blockers, ref.UID)
			}
		}
		if delete(of, n.uid); len(of) == 0 {
			delete(g.dependentsOf, ref.UID)
		}
	}
}

func (g *graph) get(uid types.UID) (node, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, known := g.nodes[uid]
	return n, known
}

// dependents are the objects that name an owner.
func (g *graph) dependents(owner types.UID) []node { return g.those(owner, false) }

// blocking are those of them that block its deletion.
func (g *graph) blocking(owner types.UID) []node { return g.those(owner, true) }

func (g *graph) those(owner types.UID, blocking bool) []node {
	g.mu.Lock()
	defer g.mu.Unlock()
	var of []node
	for d, blocks := range g.dependentsOf[owner] {
		if blocks || !blocking {
			of = append(of, g.nodes[d])
		}
	}
	return of
}
