package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// view is what somebody who watches believes that there is.
type view interface {
	shard() string              // "" for all
	objects() map[string]string // revisions by name
}

// soaked is what a watcher reads of an object.
type soaked struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Code int `json:"code"` // of a Status
}

// follow starts the watchers and informers.
func (s *soak) follow(ctx context.Context, b *testing.B) []view {
	b.Helper()
	var views []view
	var all sync.WaitGroup
	b.Cleanup(all.Wait) // after ctx has ended
	for i := range soakWatchers {
		w := &follower{soak: s, of: fmt.Sprint(i % soakShards), has: map[string]string{}}
		views = append(views, w)
		all.Go(func() { w.run(ctx) })
	}
	for range soakInformers {
		shared := s.informers(b, "soak")
		views = append(views, informed{shared.Core().V1().ConfigMaps().Informer().GetStore()})
		shared.Start(ctx.Done())
		all.Go(shared.Shutdown)
	}
	return views
}

// informers makes informers of client-go for a namespace.
func (s *server) informers(b *testing.B, namespace string) informers.SharedInformerFactory {
	b.Helper()
	k, err := kubernetes.NewForConfig(&rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	if err != nil {
		b.Fatal(err)
	}
	return informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace(namespace))
}

// informed is what an informer of client-go has.
type informed struct{ cache.Store }

func (informed) shard() string { return "" }

func (i informed) objects() map[string]string {
	has := map[string]string{}
	for _, o := range i.List() {
		m := o.(*corev1.ConfigMap)
		has[m.Name] = m.ResourceVersion
	}
	return has
}

// follower is a watcher of one shard that goes on where it was when it is cut off,
// and begins anew when it is told that this is too long ago.
type follower struct {
	soak *soak
	of   string
	rev  string // where to go on; "" for anew

	mu  sync.Mutex // guards the field below
	has map[string]string
}

func (f *follower) shard() string { return f.of }

func (f *follower) objects() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.has)
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		life := f.soak.life.Load()
		err := f.list(ctx)
		if err == nil {
			err = f.watch(ctx)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if life%2 == 0 && f.soak.life.Load() == life {
			f.soak.note("watch: "+err.Error(), true)
		} else {
			f.soak.note("watch cut off while the server restarted", false)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// list begins anew, if it has to.
func (f *follower) list(ctx context.Context) error {
	if f.rev != "" {
		return nil
	}
	code, body, err := f.soak.do(ctx, http.MethodGet, soakPath+"?labelSelector=shard%3D"+f.of, "", nil)
	if err != nil || code != http.StatusOK {
		return fmt.Errorf("list: %d, %w", code, err)
	}
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []soaked `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.has)
	for _, o := range list.Items {
		f.has[o.Metadata.Name] = o.Metadata.ResourceVersion
	}
	f.rev = list.Metadata.ResourceVersion
	return nil
}

// watch follows until it is cut off. Its end without an error is the server's
// right.
func (f *follower) watch(ctx context.Context) error {
	url := fmt.Sprintf("https://127.0.0.1:%d%s?watch=true&allowWatchBookmarks=true&labelSelector=shard%%3D%s&resourceVersion=%s", f.soak.port, soakPath, f.of, f.rev)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := f.soak.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	if answer.StatusCode == http.StatusGone {
		return f.anew()
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%d", answer.StatusCode)
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(make([]byte, 8<<10), 1<<20)
	for lines.Scan() {
		var e struct {
			Type   string `json:"type"`
			Object soaked `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return err
		}
		if e.Type == "ERROR" && e.Object.Code == http.StatusGone {
			return f.anew()
		}
		if e.Type == "ERROR" {
			return fmt.Errorf("error event %d", e.Object.Code)
		}
		f.take(e.Type, e.Object)
	}
	return lines.Err()
}

// anew has the next list begin anew.
func (f *follower) anew() error {
	f.soak.note("watch: 410", false)
	f.rev = ""
	return nil
}

func (f *follower) take(event string, o soaked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch event {
	case "ADDED", "MODIFIED":
		f.has[o.Metadata.Name] = o.Metadata.ResourceVersion
	case "DELETED":
		delete(f.has, o.Metadata.Name)
	}
	f.rev = o.Metadata.ResourceVersion
}
