package conformance

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// speaking is config for clients that speak one representation, and understand
// JSON. Those that are not told choose for themselves.
func speaking(config *rest.Config, media string) *rest.Config {
	c := rest.CopyConfig(config)
	c.ContentType = media
	c.AcceptContentTypes = media + "," + runtime.ContentTypeJSON
	return c
}

// protobuf is config for clients that speak protobuf.
func protobuf(config *rest.Config) *rest.Config {
	return speaking(config, runtime.ContentTypeProtobuf)
}

func typed(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"test": "yes"}}, Data: map[string]string{"k": "v"}}
}

// eventually waits until check has nothing to complain about.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", what, last)
	}
}

func TestTypedClient(t *testing.T) {
	plane := apptest.Start(t)
	for name, config := range map[string]*rest.Config{"json": speaking(plane.Config, runtime.ContentTypeJSON), "protobuf": protobuf(plane.Config)} {
		t.Run(name, func(t *testing.T) { typedLife(t, config, name) })
	}
}

// typedLife writes and reads in a namespace of its own.
func typedLife(t *testing.T, config *rest.Config, name string) {
	t.Helper()
	ctx := t.Context()
	client := typed(t, config)
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps := client.CoreV1().ConfigMaps(name)
	made, err := maps.Create(ctx, configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, got); diff != "" {
		t.Errorf("what was created is not what is read (-created +read):\n%s", diff)
	}
	// Two writers meet, and the slower one tries again.
	stale := made.DeepCopy()
	made.Data["k"] = "first"
	if _, err := maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a stale update: %v", err)
	}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := maps.Get(ctx, "a", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Data["k"] = "second"
		_, err = maps.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := maps.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{"data":{"p":"1"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	applied, err := maps.Apply(ctx, applycorev1.ConfigMap("a", name).WithData(map[string]string{"applied": "yes"}), metav1.ApplyOptions{FieldManager: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"k": "second", "p": "1", "applied": "yes"}, applied.Data); diff != "" {
		t.Errorf("after all writes (-want +got):\n%s", diff)
	}
	// Deleting with options in the body, as controllers do.
	foreground := metav1.DeletePropagationForeground
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("another"), PropagationPolicy: &foreground}); !apierrors.IsConflict(err) {
		t.Errorf("deleting another object: %v", err)
	}
	background := metav1.DeletePropagationBackground
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(made.UID)), PropagationPolicy: &background}); err != nil {
		t.Error(err)
	}
	for i := range 5 {
		if _, err := maps.Create(ctx, configMap(fmt.Sprint("many-", i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	page, err := maps.List(ctx, metav1.ListOptions{Limit: 2, LabelSelector: "test=yes"})
	if err != nil || len(page.Items) != 2 || page.Continue == "" {
		t.Errorf("a page: %v, %v", page, err)
	}
	if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "test"}); err != nil {
		t.Error(err)
	}
	rest, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(rest.Items) != 0 {
		t.Errorf("after deleting all: %v, %v", rest, err)
	}
}

func TestDynamicAndMetadataClients(t *testing.T) { dynamicLife(t, apptest.Start(t).Config) }

// dynamicLife writes and reads without types.
func dynamicLife(t *testing.T, config *rest.Config) {
	t.Helper()
	ctx := t.Context()
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "dyn"}, "data": map[string]any{"k": "v"},
	}}
	maps := dyn.Resource(configMaps).Namespace("default")
	if _, err := maps.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	obj.SetLabels(map[string]string{"a": "b"})
	if _, err := maps.Apply(ctx, "dyn", obj, metav1.ApplyOptions{FieldManager: "test", Force: true}); err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*rest.Config{"plain": config, "protobuf": metadata.ConfigFor(config)} {
		meta, err := metadata.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		one, err := meta.Resource(configMaps).Namespace("default").Get(ctx, "dyn", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if one.Labels["a"] != "b" {
			t.Errorf("%s: got %+v", name, one)
		}
		if _, err := meta.Resource(configMaps).Namespace("default").Patch(ctx, "dyn", types.MergePatchType, []byte(`{"metadata":{"annotations":{"by":"`+name+`"}}}`), metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		all, err := meta.Resource(configMaps).List(ctx, metav1.ListOptions{LabelSelector: "a=b"})
		if err != nil || len(all.Items) != 1 {
			t.Errorf("%s: list %v, %v", name, all, err)
		}
	}
	if err := maps.Delete(ctx, "dyn", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

func TestDiscovery(t *testing.T) {
	plane := apptest.Start(t)
	client, err := discovery.NewDiscoveryClientForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	names := func(c discovery.DiscoveryInterface) []string {
		_, lists, err := c.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, l := range lists {
			for _, r := range l.APIResources {
				all = append(all, fmt.Sprintf("%s %s %s %v %v", l.GroupVersion, r.Name, r.Kind, r.Namespaced, r.Verbs))
			}
		}
		slices.Sort(all)
		return all
	}
	aggregated, legacy := names(client), names(client.WithLegacy())
	if len(aggregated) < 100 {
		t.Errorf("only %d resources are told of", len(aggregated))
	}
	if diff := cmp.Diff(legacy, aggregated); diff != "" {
		t.Errorf("the two ways to discover differ (-legacy +aggregated):\n%s", diff)
	}
	version, err := client.ServerVersion()
	if err != nil || version.Minor != "36" {
		t.Errorf("version %v, %v", version, err)
	}
	v2, err := client.OpenAPISchema()
	if err != nil || len(v2.GetDefinitions().GetAdditionalProperties()) < 100 {
		t.Errorf("OpenAPI v2: %v", err)
	}
	v3, err := client.OpenAPIV3().Paths()
	if err != nil || v3["apis/apps/v1"] == nil {
		t.Errorf("OpenAPI v3: %v, %v", slices.Collect(maps.Keys(v3)), err)
	}
}

// seen collects what an informer tells, as "verb name value".
type seen struct {
	mu     sync.Mutex // guards the field below
	events []string
}

func (s *seen) add(verb string, obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	m := obj.(metav1.Object)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, verb+" "+m.GetName())
}

func (s *seen) handler() cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.add("add", obj) },
		UpdateFunc: func(old, obj any) {
			if old.(metav1.Object).GetResourceVersion() != obj.(metav1.Object).GetResourceVersion() {
				s.add("update", obj)
			}
		},
		DeleteFunc: func(obj any) { s.add("delete", obj) },
	}
}

// missing says what of want has not been seen yet.
func (s *seen) missing(want ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.events, want) {
		return nil
	}
	return fmt.Errorf("seen %v, want %v", s.events, want)
}

func TestInformers(t *testing.T) { followedLife(t, apptest.Start(t).Config) }

// followedLife follows the same life with each kind of informer.
func followedLife(t *testing.T, config *rest.Config) {
	t.Helper()
	client := typed(t, config)
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ours := func(o *metav1.ListOptions) { o.LabelSelector = "test=yes" }
	factory := func(c kubernetes.Interface) cache.SharedIndexInformer {
		return informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("default"), informers.WithTweakListOptions(ours)).Core().V1().ConfigMaps().Informer()
	}
	// classic refuses what streaming lists need, as old servers do.
	classic := func(c kubernetes.Interface) cache.SharedIndexInformer {
		lw := cache.NewFilteredListWatchFromClient(c.CoreV1().RESTClient(), "configmaps", "default", ours)
		return cache.NewSharedIndexInformer(listThenWatch{lw}, &corev1.ConfigMap{}, 0, cache.Indexers{})
	}
	all := map[string]cache.SharedIndexInformer{
		"plain":            factory(client),
		"protobuf":         factory(typed(t, protobuf(config))),
		"classic plain":    classic(client),
		"classic protobuf": classic(typed(t, protobuf(config))),
		"dynamic":          dynamicinformer.NewFilteredDynamicInformer(dyn, configMaps, "default", 0, cache.Indexers{}, ours).Informer(),
		"metadata":         metadatainformer.NewFilteredMetadataInformer(meta, configMaps, "default", 0, cache.Indexers{}, ours).Informer(),
	}
	ctx := t.Context()
	cms := client.CoreV1().ConfigMaps("default")
	if _, err := cms.Create(ctx, configMap("before"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tell := map[string]*seen{}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for name, informer := range all {
		tell[name] = &seen{}
		if _, err := informer.AddEventHandler(tell[name].handler()); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	for name, s := range tell {
		eventually(t, name, func() error { return s.missing("add before") })
	}
	obj, err := cms.Create(ctx, configMap("after"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	obj.Data["k"] = "changed"
	if _, err := cms.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cms.Delete(ctx, "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, s := range tell {
		eventually(t, name, func() error { return s.missing("add before", "add after", "update after", "delete before") })
	}
}

// listThenWatch hides that the server can stream lists.
type listThenWatch struct{ cache.ListerWatcher }

// IsWatchListSemanticsUnSupported makes the reflector list first.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// TestInformerOutlivesServer stops the server and starts it again on the same
// data and port. The informer sees all that happened, each once.
func TestInformerOutlivesServer(t *testing.T) {
	cfg := app.Config{Data: t.TempDir()}
	plane := apptest.StartOn(t, cfg)
	client := typed(t, plane.Config)
	informer := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "test=yes" })).Core().V1().ConfigMaps().Informer()
	s := &seen{}
	if _, err := informer.AddEventHandler(s.handler()); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() { informer.RunWithContext(ctx) })
	create := func(name string) {
		eventually(t, "creating "+name, func() error {
			_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
	create("one")
	create("two")
	eventually(t, "before", func() error { return s.missing("add one", "add two") })
	plane.Stop()
	where, err := url.Parse(plane.URL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen = where.Host
	apptest.StartOn(t, cfg)
	eventually(t, "deleting", func() error {
		err := client.CoreV1().ConfigMaps("default").Delete(ctx, "one", metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	create("three")
	eventually(t, "after", func() error { return s.missing("add one", "add two", "delete one", "add three") })
}

func TestLeaderElection(t *testing.T) {
	plane := apptest.Start(t)
	client := typed(t, plane.Config)
	var running sync.WaitGroup
	defer running.Wait()
	led := make(chan string, 2)
	stand := func(ctx context.Context, name string) {
		lock := &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "leader"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: lock, LeaseDuration: 10 * time.Second, RenewDeadline: 5 * time.Second, RetryPeriod: 50 * time.Millisecond, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { led <- name },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			t.Error(err)
			return
		}
		running.Go(func() { elector.Run(ctx) })
	}
	next := func(want string) {
		t.Helper()
		select {
		case name := <-led:
			if name != want {
				t.Errorf("%s leads, want %s", name, want)
			}
		case <-time.After(patience):
			t.Fatalf("%s does not come to lead", want)
		}
	}
	first, resign := context.WithCancel(t.Context())
	defer resign()
	stand(first, "first")
	next("first")
	second, stop := context.WithCancel(t.Context())
	defer stop()
	stand(second, "second")
	resign() // gives the lease back
	next("second")
}
