package rest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Many who patch one object all succeed, and no patch is lost.
func TestContendedPatches(t *testing.T) {
	const writers, each = 16, 20
	d := newDirect(t)
	d.create("one", 10)
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf(`{"data":{"from-%d-%d":"x"}}`, w, i)
				r := d.request(t.Context(), http.MethodPatch, "/api/v1/namespaces/default/configmaps/one", "application/json", body)
				r.Header.Set("Content-Type", "application/merge-patch+json")
				answer := httptest.NewRecorder()
				if d.ServeHTTP(answer, r); answer.Code != http.StatusOK {
					t.Errorf("writer %d, patch %d: %d: %s", w, i, answer.Code, answer.Body)
				}
			}
		})
	}
	wait.Wait()
	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, d.request(t.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps/one", "application/json", ""))
	for w := range writers {
		for i := range each {
			if !strings.Contains(answer.Body.String(), fmt.Sprintf(`"from-%d-%d":"x"`, w, i)) {
				t.Errorf("patch %d of writer %d is lost", i, w)
			}
		}
	}
}
