package model_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/test/model"
	"setpoint.dev/setpoint/watch"
)

// view is a watcher with where it is and what it must be told.
type view struct {
	watcher *watch.Watcher
	options watch.Options
	label   string         // value of label app that it asks for; "" for any
	rev     store.Revision // everything up to here was told and compared
	lost    bool           // its plane is gone
}

func (v *view) wants(o *model.Object) bool {
	if o == nil {
		return false
	}
	f := v.options.Filter
	in := model.Select(map[string]*model.Object{o.Key: o}, store.Range{Prefix: f.Prefix, Field: f.Field, Value: f.Value})
	return len(in) == 1 && (f.Key == "" || f.Key == o.Key) && (v.label == "" || o.Index.Labels["app"] == v.label)
}

// expected is an event that a view must be told.
type expected struct {
	kind  watch.Type
	rev   store.Revision
	value string
}

// expect says what a view must be told next, up to now.
func (r *run) expect(v *view) []expected {
	var want []expected
	for _, c := range r.model.Planes[v.options.Plane].Log(v.options.Resource, v.rev, r.model.Rev) {
		before, after := v.wants(c.Old), !c.Deleted && v.wants(c.New)
		e := expected{rev: c.Rev, value: c.New.Value}
		switch {
		case before && after:
			e.kind = watch.Modified
		case after && c.Old == nil:
			e.kind = watch.Added
		case after:
			e.kind = watch.Entered
		case before && c.Deleted:
			e.kind = watch.Deleted
		case before:
			e.kind, e.value = watch.Left, c.LastValue()
		default:
			continue
		}
		want = append(want, e)
	}
	return want
}

func (r *run) watch() {
	if len(r.views) >= maxViews {
		return
	}
	v := &view{options: watch.Options{Plane: pick(r, r.planes()), Resource: pick(r, resources), Bookmark: time.Millisecond}}
	switch r.rand.IntN(5) {
	case 0:
		v.options.Filter.Prefix = fmt.Sprintf("ns%d/", r.rand.IntN(3))
	case 1:
		v.options.Filter.Key = r.key()
	case 2:
		v.options.Filter.Field, v.options.Filter.Value = "node", fmt.Sprint("n", r.rand.IntN(4))
	}
	if r.rand.IntN(3) == 0 {
		v.label = fmt.Sprint("a", r.rand.IntN(3))
		v.options.Filter.Match = func(o *store.Object) bool {
			app, _ := o.Label("app")
			return app == v.label
		}
	}
	v.options.Initial = r.rand.IntN(2) == 0
	if !v.options.Initial {
		v.rev = min(r.model.Rev, r.someRevision())
	}
	if r.reopen(v) {
		r.views = append(r.views, v)
	}
}

// reopen starts the view's watcher from where it is; for one that asks for the
// initial state, which it compares, from now. It returns false when the log no
// longer reaches back, which retention must allow.
func (r *run) reopen(v *view) bool {
	v.options.After = v.rev
	w, err := r.hub.Watch(r.Context(), v.options)
	r.must(err)
	v.watcher = w
	if v.options.Initial {
		r.initial(v)
		v.options.Initial = false
	}
	return r.drain(v)
}

func (r *run) initial(v *view) {
	var got []*store.Object
	for {
		batch, err := r.next(v)
		r.must(err)
		for _, e := range batch.Events {
			got = append(got, e.Object)
		}
		if batch.InitialEnd {
			if batch.Rev != r.model.Rev {
				r.Errorf("step %d: initial state at %d, want %d", r.step, batch.Rev, r.model.Rev)
			}
			v.rev = batch.Rev
			break
		}
	}
	var want []*model.Object
	for _, o := range model.Select(r.model.Planes[v.options.Plane].Now(v.options.Resource), store.Range{}) {
		if v.wants(o) {
			want = append(want, o)
		}
	}
	r.sameObjects(want, got)
}

func (r *run) next(v *view) (watch.Batch, error) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	return v.watcher.Next(ctx)
}

// drain reads a view up to now and compares.
func (r *run) drain(v *view) bool {
	want := r.expect(v)
	for v.rev < r.model.Rev {
		batch, err := r.next(v)
		if errors.Is(err, store.ErrCompacted) && r.mayBeCompacted(r.model.Planes[v.options.Plane], v.options.Resource, v.rev) {
			v.watcher.Close()
			return false
		}
		r.must(err)
		for _, e := range batch.Events {
			if len(want) == 0 {
				r.Fatalf("step %d: told %v of revision %d, expected nothing more", r.step, e.Type, e.Rev())
			}
			got := expected{e.Type, e.Rev(), string(e.Value())}
			if got != want[0] {
				r.Errorf("step %d: told %v, want %v", r.step, got, want[0])
			}
			want = want[1:]
		}
		if len(want) > 0 && want[0].rev <= batch.Rev {
			r.Errorf("step %d: batch ends at %d without %v", r.step, batch.Rev, want[0])
		}
		v.rev = batch.Rev
	}
	if len(want) > 0 {
		r.Errorf("step %d: never told %v", r.step, want)
	}
	return true
}

// readWatcher reads one view up to now.
func (r *run) readWatcher() {
	if len(r.views) == 0 {
		return
	}
	i := r.rand.IntN(len(r.views))
	v := r.views[i]
	if v.lost {
		for {
			_, err := r.next(v)
			if errors.Is(err, store.ErrNoPlane) {
				break
			}
			r.must(err)
		}
		v.watcher.Close()
	} else if r.drain(v) {
		return
	}
	r.views = append(r.views[:i], r.views[i+1:]...)
}

// resumeWatcher cuts a view off and goes on, at once or behind what the hub
// keeps in memory.
func (r *run) resumeWatcher() {
	if len(r.views) == 0 {
		return
	}
	i := r.rand.IntN(len(r.views))
	v := r.views[i]
	if v.lost {
		return
	}
	v.watcher.Close()
	if !r.reopen(v) {
		r.views = append(r.views[:i], r.views[i+1:]...)
	}
}

func (r *run) endWatcher() {
	if len(r.views) > 0 {
		i := r.rand.IntN(len(r.views))
		r.views[i].watcher.Close()
		r.views = append(r.views[:i], r.views[i+1:]...)
	}
}
