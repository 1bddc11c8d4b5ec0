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
// after its objects.
package crd

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/version"

	"setpoint.dev/setpoint/kinds"
)

// Source is where the stored definitions are.
type Source interface {
	// Revision changes whenever a definition does.
	Revision() uint64
	// All yields the definitions.
	All(ctx context.Context) iter.Seq2[Stored, error]
	// Wait returns when the revision is another one, or ctx ends.
	Wait(ctx context.Context, revision uint64) error
}

// Registry is the live list of kinds.
type Registry struct {
	builtin *kinds.List
	groups  map[string]bool // of built-in kinds
	source  Source
	convert *Conversion
	shapes  shapes
	log     *slog.Logger

	made atomic.Pointer[listing]
	mu   sync.Mutex // guards making the next one
}

// listing is the list of kinds as of a revision.
type listing struct {
	revision    uint64
	definitions map[string]*definition
	list        *kinds.List
}

// NewRegistry returns the registry of the built-in kinds and those that are
// defined in a source.
func NewRegistry(builtin *kinds.List, source Source, convert *Conversion, log *slog.Logger) *Registry {
	r := &Registry{builtin: builtin, groups: map[string]bool{}, source: source, convert: convert, log: log}
	for _, k := range builtin.All() {
		r.groups[k.Group] = true
	}
	r.made.Store(&listing{list: builtin})
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
	next, err := r.read(revision, have)
	if err != nil {
		r.log.Error("custom resource definitions cannot be read", "error", err)
		return have.list
	}
	r.made.Store(next)
	for name, d := range have.definitions {
		if now := next.definitions[name]; now == nil || now.gone != d.gone {
			close(d.gone)
		}
	}
	return next.list
}

// read makes the next listing. Definitions that are as they were stay.
func (r *Registry) read(revision uint64, have *listing) (*listing, error) {
	next := &listing{revision: revision, definitions: make(map[string]*definition, len(have.definitions)+1)}
	byGroup := make(map[string][]*kinds.Resource)
	for s, err := range r.source.All(context.Background()) {
		if err != nil {
			return nil, err
		}
		d := have.definitions[s.Name]
		if d == nil || d.stored.Revision != s.Revision {
			if d, err = newDefinition(s, d, r.convert, &r.shapes); err != nil {
				r.log.Error("a custom resource definition is not served", "error", err)
				continue
			}
		}
		next.definitions[s.Name] = d
		if len(d.kinds) > 0 {
			group := d.head.Spec.Group
			byGroup[group] = append(byGroup[group], d.kinds...)
		}
	}
	all := slices.Clone(r.builtin.All())
	for _, group := range slices.Sorted(maps.Keys(byGroup)) {
		slices.SortStableFunc(byGroup[group], func(a, b *kinds.Resource) int {
			return version.CompareKubeAwareVersionStrings(b.Versions[0], a.Versions[0])
		})
		for _, k := range byGroup[group] {
			if !r.groups[group] || r.builtin.Find(k.Group, k.Versions[0], k.Name) == nil {
				all = append(all, k)
			}
		}
	}
	next.list = kinds.NewList(all)
	return next, nil
}
