package rest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A client that asks for bookmarks is told where to go on before its watch
// ends, if it has seen nothing newer.
func TestAWatchTellsWhereToGoOn(t *testing.T) {
	for _, test := range []struct {
		name, query string
		write       bool
		want        int
	}{
		{"something has happened elsewhere", "allowWatchBookmarks=true&timeoutSeconds=30", true, 1},
		{"nothing has happened", "allowWatchBookmarks=true&timeoutSeconds=30", false, 0},
		{"nobody has asked", "timeoutSeconds=30", true, 0},
		{"the watch is short", "allowWatchBookmarks=true&timeoutSeconds=1", true, 0},
		{"the watch is long", "allowWatchBookmarks=true&timeoutSeconds=150", true, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDirect(t)
				d.create("one", 10)
				w := httptest.NewRecorder()
				done := make(chan struct{})
				r := d.request(t.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=1&labelSelector=none&"+test.query, "application/json", "")
				go func() {
					defer close(done)
					d.ServeHTTP(w, r)
				}()
				synctest.Wait()
				if test.write {
					d.create("two", 10)
				}
				begun := time.Now()
				<-done
				if got := strings.Count(w.Body.String(), `"type":"BOOKMARK"`); got != test.want || strings.Contains(w.Body.String(), "initial-events-end") {
					t.Errorf("%d bookmarks in %v: %s", got, time.Since(begun), w.Body)
				}
			})
		})
	}
}
