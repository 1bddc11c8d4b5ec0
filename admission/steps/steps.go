// Package steps remembers which steps of admission have changed the object of
// a request, for the provenance of its write.
package steps

import (
	"context"
	"slices"
	"sync"
)

type key struct{}

// Taken are the steps that have changed an object.
type Taken struct {
	mu    sync.Mutex // guards names
	names []string
}

// With returns a context that steps are remembered in.
func With(ctx context.Context) (context.Context, *Taken) {
	t := &Taken{}
	return context.WithValue(ctx, key{}, t), t
}

// Add remembers that the step of that name has changed the object of the
// context's request. Each step is remembered once.
func Add(ctx context.Context, name string) {
	t, _ := ctx.Value(key{}).(*Taken)
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.names, name) {
		t.names = append(t.names, name)
	}
}

// Names are the steps so far, in the order in which they were first taken.
func (t *Taken) Names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.names)
}
