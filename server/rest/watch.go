package rest

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// bookmarkEvery is how often an idle watch that asks for bookmarks gets one.
const bookmarkEvery = time.Minute

func (c *call) watch() error {
	q, err := c.listOptions()
	if err != nil {
		return err
	}
	if c.out.Stream == "" {
		return notAcceptable(codec.StreamTypes())
	}
	if q.Continue != "" && q.ResourceVersionMatch == "" {
		// Compat: a watch asks for its initial events as a list does.
		return invalidOptions("ListOptions", field.ErrorList{
			field.Forbidden(field.NewPath("resourceVersionMatch"), "resourceVersionMatch is forbidden when continue is provided"),
		})
	}
	c.out.pretty = false // an event is a line
	flusher, ok := c.w.(http.Flusher)
	if !ok {
		return apierrors.NewInternalError(errors.New("the connection cannot stream"))
	}
	options, err := c.watchOptions(q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.watchTime(q))
	defer cancel()
	w, err := c.Hub.Watch(ctx, options)
	for ; errors.Is(err, store.ErrFuture); w, err = c.Hub.Watch(ctx, options) {
		// Compat: a watch waits for the revision that it begins after.
		if !c.await(ctx, flusher) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	defer w.Close()
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	go func() {
		select {
		case <-c.Drain:
			cancel()
		case <-c.resource.Gone:
			time.AfterFunc(lastWords, cancel)
		case <-ctx.Done():
		}
	}()
	s := &stream{call: c, flusher: flusher, sent: c.watched(), bookmarks: q.AllowWatchBookmarks}
	c.w.Header().Set("Content-Type", c.out.Stream)
	c.w.Header().Set("Cache-Control", "no-cache, private")
	c.w.WriteHeader(http.StatusOK)
	flusher.Flush()
	s.run(ctx, w)
	return nil
}

// lastWords is how long a watch goes on after its kind has gone, so that it
// tells of the last objects, which went just before.
const lastWords = 100 * time.Millisecond

// futureEvery is how often a watch looks whether its revision has come.
const futureEvery = 100 * time.Millisecond

// await begins the answer and lets some time pass; false when there is none
// left.
func (c *call) await(ctx context.Context, flusher http.Flusher) bool {
	c.w.Header().Set("Content-Type", c.out.Stream)
	flusher.Flush()
	select {
	case <-time.After(futureEvery):
		return true
	case <-ctx.Done():
		return false
	case <-c.Drain:
		return false
	case <-c.resource.Gone:
		return false
	}
}

// watchOptions says what the hub should watch. Compat: without a revision, or
// with 0, a watch begins with what is there.
func (c *call) watchOptions(q *query) (watch.Options, error) {
	after, err := parseRevision(q.ResourceVersion)
	if err != nil {
		return watch.Options{}, err
	}
	o := watch.Options{Plane: c.info.Plane, Resource: c.resource.Table, After: after}
	o.Filter = watch.Filter{Prefix: q.span.Prefix, Key: q.key, Field: q.span.Field, Value: q.span.Value}
	if !q.labels.Empty() || !q.fields.Empty() {
		o.Filter.Match = func(obj *store.Object) bool { return q.matches(c, obj) }
	}
	o.Initial = after == 0
	if q.SendInitialEvents != nil {
		o.Initial = *q.SendInitialEvents
		if !o.Initial && after == 0 {
			o.After = c.Store.Current()
		}
	}
	if q.AllowWatchBookmarks {
		o.Bookmark = bookmarkEvery
	}
	return o, nil
}

// watchTime is how long the watch may last. Watches that do not care end at
// different times, so that clients do not come back all at once.
func (c *call) watchTime(q *query) time.Duration {
	if q.TimeoutSeconds != nil {
		return time.Duration(*q.TimeoutSeconds) * time.Second
	}
	return time.Duration(float64(c.WatchTimeout) * (1 + rand.Float64())) //nolint:gosec // spreading load
}

// watched counts the events that a watch sends.
func (c *call) watched() interface{ Add(n float64) } {
	if c.Watched == nil {
		return nil
	}
	return c.Watched(c.resource.Group, c.kind.Version, c.resource.Name)
}

// stream writes events to a client.
type stream struct {
	*call
	sent      interface{ Add(n float64) } // nil when nobody counts
	flusher   http.Flusher
	bookmarks bool
	// buf is what goes out next; room is for the object that is put together.
	buf, room []byte
}

// run writes until the watch, the client or the server ends. The client learns
// of an error in an event, its own way.
func (s *stream) run(ctx context.Context, w *watch.Watcher) {
	for {
		batch, err := w.Next(ctx)
		if ctx.Err() != nil {
			return
		}
		s.buf = s.buf[:0]
		if err == nil {
			err = s.encodeBatch(batch)
		}
		if err != nil {
			s.encodeError(err)
		}
		if n := len(batch.Events); s.sent != nil && n > 0 {
			s.sent.Add(float64(n))
		}
		if _, werr := s.w.Write(s.buf); werr != nil || err != nil {
			s.flusher.Flush()
			return
		}
		s.flusher.Flush()
	}
}

// The names of events on the wire. Compat: an object that comes into view is
// ADDED, one that goes out of it DELETED.
func eventName(t watch.Type) string {
	switch t {
	case watch.Added, watch.Entered:
		return "ADDED"
	case watch.Modified:
		return "MODIFIED"
	default:
		return "DELETED"
	}
}

func (s *stream) encodeBatch(batch watch.Batch) error {
	for _, e := range batch.Events {
		if err := s.encodeEvent(e); err != nil {
			return err
		}
	}
	if s.bookmarks && (batch.InitialEnd || len(batch.Events) == 0 && batch.Rev > 0) {
		return s.encodeBookmark(batch)
	}
	return nil
}

func (s *stream) encodeEvent(e watch.Event) error {
	form := s.form(e.Object)
	switch {
	case form != nil && s.out.Part == nil:
		s.frame(eventName(e.Type), form.Object(nil, s.kind, e.Value()))
		return nil
	case form != nil && e.Type != watch.Left: // then the part has another revision
		part, err := s.part(e.Object)
		if err != nil {
			return err
		}
		s.room = form.Object(s.room[:0], s.kind, part)
		s.frame(eventName(e.Type), s.room)
		return nil
	}
	obj, err := s.keeps().DecodeStored(e.Value(), s.resource.StorageKind())
	if err != nil {
		return err
	}
	return s.encodeOther(eventName(e.Type), obj)
}

// encodeOther writes an event whose object is not put together from parts.
func (s *stream) encodeOther(name string, obj runtime.Object) error {
	body, err := s.encodeObject(obj)
	s.headed = true
	if err != nil {
		return err
	}
	s.frame(name, body)
	return nil
}

// frame writes an event in the stream's format.
func (s *stream) frame(name string, object []byte) { s.buf = s.out.Form.Event(s.buf, name, object) }

// encodeBookmark says up to where the client has seen everything; the one that
// ends the initial state says that, too.
func (s *stream) encodeBookmark(batch watch.Batch) error {
	obj, err := s.resource.New()
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	m.SetResourceVersion(strconv.FormatInt(int64(batch.Rev), 10))
	if batch.InitialEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	if s.out.as != "" {
		return s.encodeOther("BOOKMARK", obj)
	}
	body, err := s.codec().Encode(s.out.info, obj, s.groupVersion())
	if err != nil {
		return err
	}
	s.frame("BOOKMARK", body)
	return nil
}

// encodeError writes the event that ends a watch that cannot go on.
func (s *stream) encodeError(err error) {
	status := s.status(err)
	if errors.Is(err, store.ErrCompacted) {
		status = &apierrors.NewResourceExpired("too old resource version").ErrStatus
	}
	status.Kind, status.APIVersion = "Status", "v1"
	body, err := s.common().Encode(s.out.info, status, metav1.SchemeGroupVersion)
	if err == nil { // the stream ends either way
		s.frame("ERROR", body)
	}
}
