package rest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/admission"
	core "k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/admission/settled"
	"setpoint.dev/setpoint/store"
	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/memory"
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

// full is an engine that takes its time, and for every fifth group of commits has no
// space.
type full struct {
	*memory.Engine
	groups int // the committer's
}

func (f *full) Commit(ctx context.Context, group []engine.Txn, reserve engine.Revision) error {
	time.Sleep(time.Millisecond)
	if f.groups++; f.groups%5 == 0 {
		return store.ErrNoSpace
	}
	return f.Engine.Commit(ctx, group, reserve)
}

// A patch is made to what another is about to store. When that is not stored in the
// end, neither is anything of it with the patch, and who has changed nothing is not
// told of it.
func TestContendedPatchesOnAFullDisk(t *testing.T) {
	const writers, each = 16, 20
	d := newDirectOn(t, store.Config{Engine: &full{Engine: memory.New()}}, nil)
	d.create("one", 10)
	patch := func(body string) (int, string) {
		r := d.request(t.Context(), http.MethodPatch, "/api/v1/namespaces/default/configmaps/one", "application/json", body)
		r.Header.Set("Content-Type", "application/merge-patch+json")
		answer := httptest.NewRecorder()
		d.ServeHTTP(answer, r)
		return answer.Code, answer.Body.String()
	}
	var wait sync.WaitGroup
	var mu sync.Mutex // guards those below
	stored, seen := map[string]bool{}, map[string]bool{}
	for w := range writers {
		wait.Go(func() {
			for i := range each {
				key := fmt.Sprintf(`"from-%d-%d":"x"`, w, i)
				if i%4 == 0 { // what is there already
					code, answer := patch(`{"metadata":{"name":"one"}}`)
					mu.Lock()
					for _, one := range strings.SplitAfter(answer, ",") {
						if at := strings.Index(one, `"from-`); code == http.StatusOK && at >= 0 && strings.Contains(one, `":"x"`) {
							seen[strings.TrimRight(one[at:], ",}")] = true
						}
					}
					mu.Unlock()
					continue
				}
				code, answer := patch(`{"data":{` + key + `}}`)
				switch {
				case code == http.StatusOK && !strings.Contains(answer, key):
					t.Errorf("%s is not in the answer: %s", key, answer)
				case code != http.StatusOK && code != http.StatusInsufficientStorage:
					t.Errorf("%s: %d: %s", key, code, answer)
				}
				mu.Lock()
				stored[key] = code == http.StatusOK
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	answer := httptest.NewRecorder()
	d.ServeHTTP(answer, d.request(t.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps/one", "application/json", ""))
	failed := 0
	for key, is := range stored {
		if !is {
			failed++
		}
		if has := strings.Contains(answer.Body.String(), key); has != is {
			t.Errorf("%s: stored %v, acknowledged %v", key, has, is)
		}
	}
	for key := range seen {
		if !stored[key] {
			t.Errorf("%s was seen, and never stored", key)
		}
	}
	if failed == 0 || failed == len(stored) || len(seen) == 0 {
		t.Errorf("%d of %d failed, %d were seen: this has shown nothing", failed, len(stored), len(seen))
	}
}

// outsider is somebody outside, whom admission tells of the object that is changed.
type outsider struct {
	read          func() string // the object that is stored
	early, refuse atomic.Int64  // how often it was not stored yet, and in the end
	told          atomic.Int64
	t             *testing.T
}

func (o *outsider) Handles(op admission.Operation) bool { return op == admission.Update }

func (o *outsider) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	lacks := func() string {
		now := o.read()
		for key := range a.GetOldObject().(*core.ConfigMap).Data {
			if !strings.Contains(now, key) {
				return key
			}
		}
		return ""
	}
	if lacks() != "" {
		o.early.Add(1)
	}
	if err := settled.Await(ctx); err != nil {
		o.refuse.Add(1)
		return err
	}
	o.told.Add(1)
	if key := lacks(); key != "" {
		o.t.Errorf("told of %s, which is not stored", key)
	}
	return nil
}

// Nobody outside is told of what is about to be stored.
func TestContendedPatchesAreToldOutside(t *testing.T) {
	const writers, each = 16, 20
	o := &outsider{t: t}
	d := newDirectOn(t, store.Config{Engine: &full{Engine: memory.New()}}, o)
	do := func(method, body string) string {
		r := d.request(t.Context(), method, "/api/v1/namespaces/default/configmaps/one", "application/json", body)
		r.Header.Set("Content-Type", "application/merge-patch+json")
		answer := httptest.NewRecorder()
		d.ServeHTTP(answer, r)
		return answer.Body.String()
	}
	o.read = func() string { return do(http.MethodGet, "") }
	d.create("one", 10)
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			for i := range each {
				do(http.MethodPatch, fmt.Sprintf(`{"data":{"from-%d-%d":"x"}}`, w, i)) // some fail, since the disk is full
			}
		})
	}
	wait.Wait()
	if o.early.Load() == 0 || o.refuse.Load() == 0 || o.told.Load() == 0 {
		t.Errorf("%d asked early, %d not told, %d told: this has shown nothing", o.early.Load(), o.refuse.Load(), o.told.Load())
	}
}
