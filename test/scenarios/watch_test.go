package scenarios

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// watching is a watch that a story has opened.
type watching struct {
	order  order
	events chan event
}

type event struct {
	name string
	obj  map[string]any
	err  error
}

// watch opens a watch; "events" tells what it has seen.
func (s *teller) watch(o order) []string {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	req, err := s.request(ctx, o, "")
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close() //nolint:errcheck // it was read
		obj, err := decode(resp)
		if err != nil {
			s.t.Fatal(err)
		}
		return s.plain(s.describe(o, resp.StatusCode, obj))
	}
	w := &watching{order: o, events: make(chan event, 100)}
	s.watches[o.id] = w
	go w.read(resp)
	return []string{"200 watching"}
}

func (w *watching) read(resp *http.Response) {
	defer close(w.events)
	defer resp.Body.Close() //nolint:errcheck // it was read
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	info := serializerOf(media)
	frames := info.StreamSerializer.NewFrameReader(resp.Body)
	buf := make([]byte, 1<<20)
	for {
		n, err := frames.Read(buf)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		if err != nil {
			w.events <- event{err: err}
			return
		}
		var e metav1.WatchEvent
		if _, _, err := info.StreamSerializer.Decode(buf[:n], nil, &e); err != nil {
			w.events <- event{err: err}
			return
		}
		obj, err := plainJSON(media, e.Object.Raw)
		w.events <- event{name: e.Type, obj: obj, err: err}
	}
}

// events waits for count events of a watch, or for its end, and tells them.
func (s *teller) events(o order) []string {
	w := s.watches[o.resource]
	if w == nil {
		s.t.Fatalf("the story has no watch %q", o.resource)
	}
	count := -1
	if o.count != "" && o.count != "all" {
		n, err := strconv.Atoi(o.count)
		if err != nil {
			s.t.Fatal(err)
		}
		count = n
	}
	deadline := time.After(patience)
	var lines []string
	for n := 0; n != count; n++ {
		select {
		case e, open := <-w.events:
			if !open {
				return s.plain(append(lines, "end"))
			}
			if e.err != nil {
				s.t.Fatalf("watch %s: %v", o.resource, e.err)
			}
			lines = append(lines, s.event(w, o, e)...)
		case <-deadline:
			return s.plain(append(lines, "nothing more"))
		}
	}
	return s.plain(lines)
}

func (s *teller) event(w *watching, o order, e event) []string {
	switch kind := text(e.obj, "kind"); {
	case e.name == "ERROR":
		return []string{fmt.Sprintf("ERROR %v %s", e.obj["code"], s.status(e.obj))}
	case kind == "Table":
		return append([]string{e.name + " Table"}, table(e.obj)...)
	case w.order.as != "":
		return append([]string{e.name + " " + kind + " " + s.object(e.obj)}, s.show(o, e.obj)...)
	default:
		return append([]string{e.name + " " + s.object(e.obj)}, s.show(o, e.obj)...)
	}
}
