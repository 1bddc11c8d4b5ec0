package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// A crowd that follows the same changes is told of them in passing. Each hears of
// all, in order, whatever the others ask for and whether they take it.
func TestACrowdOfWatchers(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, WriteTimeout: time.Minute})
	core := as(t, p, "").CoreV1().ConfigMaps("default")
	const crowd, changes = 60, 100
	made := must[*corev1.ConfigMap](t)(core.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: meta("one"), Data: map[string]string{"ballast": strings.Repeat("x", 2<<10)},
	}, metav1.CreateOptions{}))

	// One whose client takes only the first few holds up nobody.
	stuck := connect(t, p, 8<<10)
	id := stuck.get("/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=" + made.ResourceVersion)
	stuck.until("an answer", func() bool { return stuck.got[id] != nil })

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range crowd {
		cfg := rest.CopyConfig(p.Config)
		cfg.ContentType = []string{"application/json", "application/vnd.kubernetes.protobuf"}[i%2]
		options := metav1.ListOptions{ResourceVersion: made.ResourceVersion, AllowWatchBookmarks: i%3 == 0}
		if i%5 == 0 {
			options.LabelSelector = "even=yes"
		}
		w := must[watch.Interface](t)(kubernetes.NewForConfigOrDie(cfg).CoreV1().ConfigMaps("default").Watch(ctx, options))
		all.Go(func() {
			defer w.Stop()
			leaves := changes
			if i%7 == 0 {
				leaves = changes / 2 // and goes while the others go on
			}
			if err := follow(w, options.LabelSelector != "", leaves); err != nil {
				t.Errorf("watcher %d: %v", i, err)
			}
		})
	}
	for n := range changes {
		must[*corev1.ConfigMap](t)(core.Patch(ctx, "one", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"n":"%d","even":%q}}}`, n, []string{"yes", "no"}[n%2]), metav1.PatchOptions{}))
	}
}

// follow reads a watch until so many changes are in, of which one with a selector
// sees the even ones come and the odd ones go.
func follow(w watch.Interface, even bool, changes int) error {
	for n := range changes {
		want := watch.Modified
		switch {
		case even && n%2 == 0:
			want = watch.Added
		case even:
			want = watch.Deleted
		}
		e, open := <-w.ResultChan()
		for open && e.Type == watch.Bookmark {
			e, open = <-w.ResultChan()
		}
		if !open {
			return fmt.Errorf("ended before change %d", n)
		}
		got, is := e.Object.(*corev1.ConfigMap)
		if !is || e.Type != want {
			return fmt.Errorf("change %d: %s %v, want %s", n, e.Type, e.Object, want)
		}
		// One that leaves the selection is told as it was.
		if was := n - n%2; got.Labels["n"] != fmt.Sprint(n) && (!even || got.Labels["n"] != fmt.Sprint(was)) {
			return fmt.Errorf("change %d is %s", n, got.Labels["n"])
		}
	}
	return nil
}
