// Package crd turns CustomResourceDefinitions into kinds while the control
// plane runs.
//
// A Registry is the list of all kinds, built-in and custom, as of the newest
// definition that is stored: whoever asks after a definition was written sees
// its kinds. A definition that nobody uses costs its bytes and its names; its
// schemas, expressions, converters and tables are made when they are first
// used, and schemas with what is made of them once for all kinds that have them.
//
// names.go decides what a definition is called and whether it is served;
// definition.go makes its kinds; shape.go has their schemas; kind.go, coerce.go and strategy.go are what a
// kind does to its objects, on upstream's rules; remove.go lets a definition go
// after its objects; register.go sees to their APIServices.
package crd

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/kinds"
)

// Source is where the stored definitions are.
type Source interface {
	// Revision changes whenever a definition does.
	Revision() uint64
	// Since returns the definitions that were written after a mark, the newest
	// of each, and the mark to go on from. One that is gone has no value. From
	// mark 0, and where it is not known any more what happened after a mark, it
	// returns all that there are, and says so.
	Since(ctx context.Context, mark uint64) (changed []Stored, all bool, next uint64, err error)
	// Wait returns when the revision is another one, or ctx ends.
	Wait(ctx context.Context, revision uint64) error
}

// Registry is the live list of kinds.
type Registry struct {
	builtin *kinds.List
	source  Source
	convert *Conversion
	shapes  shapes
	log     *slog.Logger

	made atomic.Pointer[listing]
	mu   sync.Mutex // guards making the next one, and touched
	// touched are versions whose definitions have changed since register.
	touched map[schema.GroupVersion]bool
}

// listing is the list of kinds as of a revision. The next one is made from it:
// they share what has not changed, so that a change costs the same however many
// definitions there are.
type listing struct {
	revision    uint64
	mark        uint64 // up to where the source is read
	definitions *btree.Map[string, *definition]
	// restless are the definitions that wait for something; see tend.
	restless *btree.Map[string, *definition]
	// versions are the group versions that are served, with the number of
	// definitions that do.
	versions *btree.Map[string, int]
	list     *kinds.List
}

// NewRegistry returns the registry of the built-in kinds and those that are
// defined in a source.
func NewRegistry(builtin *kinds.List, source Source, convert *Conversion, log *slog.Logger) *Registry {
	r := &Registry{builtin: builtin, source: source, convert: convert, log: log, touched: map[schema.GroupVersion]bool{}}
	r.made.Store(&listing{
		definitions: new(btree.Map[string, *definition]), restless: new(btree.Map[string, *definition]), versions: new(btree.Map[string, int]), list: builtin,
	})
	return r
}

// Kinds is the list of all kinds that are served now.
func (r *Registry) Kinds() *kinds.List {
	have := r.made.Load()
	if r.source.Revision() == have.revision {
		return have.list
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have = r.made.Load()
	// Asked before the definitions are read, so that what is written meanwhile
	// is seen the next time.
	revision := r.source.Revision()
	if revision == have.revision {
		return have.list
	}
	next, replaced, err := r.read(have)
	if err != nil {
		r.log.Error("custom resource definitions cannot be read", "error", err)
		return have.list
	}
	next.revision = revision
	r.made.Store(next)
	for _, was := range replaced {
		if now, _ := next.definitions.Get(was.stored.Name); now == nil || now.gone != was.gone {
			close(was.gone)
		}
	}
	return next.list
}

// read makes the next listing, and returns the definitions that are others in
// it.
func (r *Registry) read(have *listing) (next *listing, replaced []*definition, err error) {
	changed, all, mark, err := r.source.Since(context.Background(), have.mark)
	if err != nil {
		return nil, nil, err
	}
	if all {
		changed = append(changed, have.missing(changed)...)
	}
	next = &listing{mark: mark, definitions: have.definitions.Copy(), restless: have.restless.Copy(), versions: have.versions.Copy(), list: have.list}
	for _, s := range changed {
		was, _ := have.definitions.Get(s.Name)
		if was != nil && was.stored.Revision == s.Revision {
			continue
		}
		if was != nil {
			replaced = append(replaced, was)
		}
		now := r.define(s, was)
		next.put(s.Name, was, now)
		for _, gv := range append(was.serves(), now.serves()...) {
			r.touched[gv] = true
		}
	}
	return next, replaced, nil
}

// define makes the definition that is stored; nil for one that is gone or
// cannot be read.
func (r *Registry) define(s Stored, was *definition) *definition {
	if s.Value == nil {
		return nil
	}
	d, err := newDefinition(s, was, r.convert, &r.shapes)
	if err != nil {
		r.log.Error("a custom resource definition is not served", "error", err)
		return nil
	}
	return d
}

// missing says of definitions that are not among all that they are gone.
func (l *listing) missing(all []Stored) (gone []Stored) {
	there := make(map[string]bool, len(all))
	for _, s := range all {
		there[s.Name] = true
	}
	l.definitions.Scan(func(name string, _ *definition) bool {
		if !there[name] {
			gone = append(gone, Stored{Name: name})
		}
		return true
	})
	return gone
}

// put puts a definition in the place of another; either may be nil.
func (l *listing) put(name string, was, now *definition) {
	l.count(was, -1)
	l.count(now, 1)
	l.definitions.Delete(name)
	l.restless.Delete(name)
	if now != nil {
		l.definitions.Set(name, now)
		if now.head.waits() {
			l.restless.Set(name, now)
		}
	}
	if was != nil && len(was.kinds) > 0 {
		l.list = l.list.Put(was.kinds[0].GroupResource())
	}
	if now != nil && len(now.kinds) > 0 {
		l.list = l.list.Put(now.kinds[0].GroupResource(), now.kinds...)
	}
}
