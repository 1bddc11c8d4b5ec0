package rest

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/server/rest/zipped"
	"setpoint.dev/setpoint/store"
)

func somePiece() *zipped.Piece {
	w := zipped.New(&bytes.Buffer{})
	w.Keep(1 << 10)
	_, _ = w.Write([]byte("items"))
	defer w.Close()
	return w.Cut()
}

// Lists are kept for who asks soon for the same, and for no longer, and not any
// number of them.
func TestListsAreKeptForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lists
		a, b := []*store.Object{{}, {}}, []*store.Object{{}, {}}
		l.put(&zippedList{media: "x", objects: a, items: somePiece()})
		for _, c := range []struct {
			media   string
			objects []*store.Object
			kept    bool
		}{{"x", a, true}, {"y", a, false}, {"x", b, false}, {"x", a[:1], false}} {
			if got := l.get(c.media, c.objects); (got != nil) != c.kept {
				t.Errorf("%v: %v", c, got)
			}
		}
		for range 3 { // asked for
			time.Sleep(listsKeptFor * 3 / 4)
			if l.get("x", a) == nil {
				t.Fatal("gone although it is asked for")
			}
		}
		time.Sleep(3 * listsKeptFor)
		if l.get("x", a) != nil || l.size != 0 || l.tidy != nil {
			t.Errorf("%d bytes are kept", l.size)
		}
		for i := range maxLists + 1 {
			time.Sleep(time.Second / 10)
			l.put(&zippedList{media: "x", objects: make([]*store.Object, i+1), items: somePiece()})
		}
		if len(l.all) != maxLists || l.get("x", make([]*store.Object, 1)) != nil {
			t.Errorf("%d are kept, and not the last", len(l.all))
		}
		time.Sleep(3 * listsKeptFor) // the timer ends
	})
}
