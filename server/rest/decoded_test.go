package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/server/rest"
)

const (
	asTable    = "application/json;as=Table;g=meta.k8s.io;v=v1"
	configMaps = "/api/v1/namespaces/default/configmaps"
)

// Lists that are made of decoded objects wait while others have the memory, and
// not longer than their request lasts; lists of stored bytes do not.
func TestListsThatAreDecodedShareMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDirect(t)
		d.create("one", 1<<10)
		ask := func(accept string) <-chan *httptest.ResponseRecorder {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			answered := make(chan *httptest.ResponseRecorder, 1)
			r := d.request(ctx, http.MethodGet, configMaps, accept, "")
			go func() {
				defer cancel()
				w := httptest.NewRecorder()
				d.ServeHTTP(w, r)
				answered <- w
			}()
			synctest.Wait()
			return answered
		}
		release, held := d.HoldDecoded(rest.MaxDecoded)
		if !held {
			t.Fatal("somebody has some of it at the beginning")
		}
		for _, accept := range []string{asTable, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"} {
			begun := time.Now()
			late := ask(accept)
			if w := <-ask("application/json"); w.Code != http.StatusOK || time.Since(begun) != 0 {
				t.Errorf("stored bytes: %d after %v", w.Code, time.Since(begun))
			}
			if w := <-late; w.Code != http.StatusGatewayTimeout || time.Since(begun) != time.Minute {
				t.Errorf("%s: %d after %v", accept, w.Code, time.Since(begun))
			}
		}
		waits := ask(asTable)
		time.Sleep(time.Second)
		select {
		case w := <-waits:
			t.Fatalf("a list that should wait: %d", w.Code)
		default:
		}
		release()
		if w := <-waits; w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"one"`) {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	})
}

// A list that is larger than the bound is made alone, and gives back what it had.
func TestAListThatIsLargerThanTheBound(t *testing.T) {
	d := newDirect(t)
	const size = 1 << 20
	for i := range rest.MaxDecoded/size + 1 {
		d.create(fmt.Sprint("large-", i), size)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, d.request(t.Context(), http.MethodGet, configMaps, asTable+",application/json", ""))
	if n := strings.Count(w.Body.String(), `"large-`); w.Code != http.StatusOK || n < rest.MaxDecoded/size+1 {
		t.Errorf("%d: %d objects", w.Code, n)
	}
	if _, held := d.HoldDecoded(rest.MaxDecoded); !held {
		t.Error("not all is given back")
	}
}
