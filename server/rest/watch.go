package rest

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/server/seat"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/watch"
)

// bookmarkEvery is how often an idle watch that asks for bookmarks gets one.
// Compat: any gets one, when there is something new to say, bookmarkBefore its
// end, so that a client knows where to go on.
const (
	bookmarkEvery  = time.Minute
	bookmarkBefore = 2 * time.Second
)

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
	lasts := c.watchTime(q)
	options.LastBookmark = time.Now().Add(lasts - bookmarkBefore)
	ctx, cancel := context.WithTimeout(c.ctx, lasts)
	defer cancel()
	s := &stream{call: c, flusher: flusher, sent: c.watched(), bookmarks: q.AllowWatchBookmarks, begun: options.After}
	if _, can := c.w.(FlushWriter); can {
		options.Take = s.take
	}
	waited := false
	w, err := c.Hub.Watch(ctx, options)
	for ; errors.Is(err, store.ErrFuture); w, err = c.Hub.Watch(ctx, options) {
		// Compat: a watch waits for the revision that it begins after. One that
		// is to begin with what is there has nothing to begin with.
		if options.Initial {
			c.refuseWatch(tooLarge(options.After, c.Store.Current()), flusher)
			return nil
		}
		if !c.await(ctx, flusher) {
			return nil
		}
		waited = true
	}
	if err != nil && waited && ctx.Err() != nil {
		return nil // the answer has begun, and its time is over
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
	s.open()
	if !options.Initial {
		seat.GiveBack(c.ctx)
	}
	s.run(ctx, w)
	return nil
}

// refuseWatch answers with a watch that says why there is none.
func (c *call) refuseWatch(err error, flusher http.Flusher) {
	s := &stream{call: c, flusher: flusher}
	s.open()
	s.deliver(watch.Batch{}, err)
}

// lastWords is how long a watch goes on after its kind has gone, so that it
// tells of the last objects, which went just before.
const lastWords = 100 * time.Millisecond

// futureEvery is how often a watch looks whether its revision has come.
const futureEvery = 100 * time.Millisecond

// await begins the answer and lets some time pass; false when there is none
// left.
func (c *call) await(ctx context.Context, flusher http.Flusher) bool {
	seat.GiveBack(c.ctx)
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
	switch {
	case !q.labels.Empty() || !q.fields.Empty():
		o.Filter.Match = func(obj *store.Object) bool { return q.matches(c, obj) }
	case !q.uninitialized:
		o.Filter.Match = q.shows
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
	begun     store.Revision // the revision that the client has begun with
	*frame                   // what is written next; from frames, while there is something
}

// frame is room for what is written next: a batch of events, and the object
// that is being put together.
type frame struct {
	buf, object []byte
}

// frames are kept for whoever writes next, so that watches that wait hold
// nothing. One that has grown beyond maxFrame is not kept.
var frames = sync.Pool{New: func() any { return new(frame) }}

const maxFrame = 1 << 20

func (f *frame) release() {
	if cap(f.buf)+cap(f.object) <= maxFrame {
		f.buf = f.buf[:0]
		frames.Put(f)
	}
}

// put makes an answer of a stored object's part. It is good until the frame is
// used again.
func (f *frame) put(form codec.Form, c *call, part []byte) []byte {
	if c.out.Part == nil {
		return form.Object(nil, c.kind, part) // the part itself
	}
	f.object = form.Object(f.object[:0], c.kind, part)
	return f.object
}

// open begins the answer.
func (s *stream) open() {
	s.w.Header().Set("Content-Type", s.out.Stream)
	s.w.Header().Set("Cache-Control", "no-cache, private")
	s.w.WriteHeader(http.StatusOK)
	s.flusher.Flush()
}

// run writes until the watch, the client or the server ends, which closes the
// watcher. The client learns of an error in an event, its own way.
func (s *stream) run(ctx context.Context, w *watch.Watcher) {
	closed := context.WithoutCancel(ctx) // one less to wait for
	for {
		batch, err := w.Next(closed)
		if ctx.Err() != nil {
			return
		}
		if !s.deliver(batch, err) {
			return
		}
	}
}

// take writes a batch that others wait for as well, on their way: see
// watch.Options. What cannot be written at once, or goes wrong, is for deliver.
func (s *stream) take(batch watch.Batch) (taken bool) {
	defer func() {
		if recover() != nil {
			taken = false // deliver meets it again, where it hurts nobody else
		}
	}()
	s.frame = frames.Get().(*frame)
	defer s.done()
	text, err := s.encode(batch)
	if err != nil || !s.w.(FlushWriter).TryWriteFlush(text) {
		return false
	}
	s.count(batch)
	return true
}

// deliver writes a batch, or the error that there was instead, and says
// whether there may be more.
func (s *stream) deliver(batch watch.Batch, err error) bool {
	s.frame = frames.Get().(*frame)
	defer s.done()
	var text []byte
	if err == nil {
		text, err = s.encode(batch)
	}
	if err != nil {
		s.encodeError(err)
		text = s.buf
	}
	gone := s.pass(text)
	s.count(batch)
	if batch.InitialEnd {
		seat.GiveBack(s.ctx) // from now on it waits for what others do
	}
	return gone == nil && err == nil
}

// encode is a batch as it is written. It is good until the frame is given back.
func (s *stream) encode(batch watch.Batch) ([]byte, error) {
	if text := s.shared(batch); text != nil {
		return text, nil
	}
	err := s.encodeBatch(batch)
	return s.buf, err
}

// done gives the frame back.
func (s *stream) done() {
	s.release()
	s.frame = nil
}

// count counts the events that were written.
func (s *stream) count(batch watch.Batch) {
	if n := len(batch.Events); s.sent != nil && n > 0 {
		s.sent.Add(float64(n))
	}
}

// FlushWriter is an answer that can pass a part on to the client at once: Write
// and Flush for the price of one.
type FlushWriter interface {
	WriteFlush(p []byte) (int, error)
	// TryWriteFlush does so if it need not wait, and says whether it has.
	TryWriteFlush(p []byte) bool
}

// pass passes events on to the client.
func (s *stream) pass(text []byte) error {
	if w, can := s.w.(FlushWriter); can {
		_, err := w.WriteFlush(text)
		return err
	}
	_, err := s.w.Write(text)
	s.flusher.Flush()
	return err
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
	if batch.InitialEnd {
		s.begun = batch.Rev
	}
	// A bookmark of where the client has begun would tell it nothing.
	if s.bookmarks && (batch.InitialEnd || len(batch.Events) == 0 && batch.Rev > s.begun) {
		return s.encodeBookmark(batch)
	}
	return nil
}

func (s *stream) encodeEvent(e watch.Event) error {
	form := s.form(e.Object)
	switch {
	case form != nil && s.out.Part == nil:
		s.event(eventName(e.Type), s.put(form, s.call, e.Value()))
		return nil
	case form != nil && e.Type != watch.Left: // then the part has another revision
		part, err := s.part(e.Object)
		if err != nil {
			return err
		}
		s.event(eventName(e.Type), s.put(form, s.call, part))
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
	s.event(name, body)
	return nil
}

// event writes an event in the stream's format.
func (s *stream) event(name string, object []byte) { s.buf = s.out.Form.Event(s.buf, name, object) }

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
	s.event("BOOKMARK", body)
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
		s.event("ERROR", body)
	}
}
