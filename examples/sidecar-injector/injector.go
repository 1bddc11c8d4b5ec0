package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"setpoint.dev/setpoint/initclient"
)

// Config says what to inject, and into which pods.
type Config struct {
	// Name is the initializer's, as in the InitializerConfiguration.
	Name string
	// Namespace and ConfigMap say where the sidecar is described.
	Namespace, ConfigMap string
	// Annotation is what pods ask for the sidecar with, if Required.
	Annotation string
	Required   bool
	// Workers is how many pods are worked on at once; 0 means 2.
	Workers int
	Logger  *slog.Logger
}

// Injector adds a sidecar to pods that wait for it.
type Injector struct {
	cfg     Config
	pods    dynamic.NamespaceableResourceInterface
	waiting cache.SharedIndexInformer // pods, those that nobody else sees among them
	configs cache.SharedIndexInformer // the one ConfigMap
	queue   workqueue.TypedRateLimitingInterface[string]
}

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// resync is how often every pod is looked at again.
const resync = 30 * time.Second

// New returns an injector that talks to the server that cfg names.
func New(server *rest.Config, cfg Config) (*Injector, error) {
	if cfg.Workers <= 0 {
		cfg.Workers = 2
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	all, err := dynamic.NewForConfig(initclient.IncludeUninitialized(server))
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfig(server)
	if err != nil {
		return nil, err
	}
	only := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", cfg.ConfigMap).String()
	}
	i := &Injector{
		cfg:     cfg,
		pods:    all.Resource(podResource),
		waiting: dynamicinformer.NewDynamicSharedInformerFactory(all, resync).ForResource(podResource).Informer(),
		configs: informers.NewSharedInformerFactoryWithOptions(typed, resync,
			informers.WithNamespace(cfg.Namespace), informers.WithTweakListOptions(only)).Core().V1().ConfigMaps().Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
	}
	if _, err := i.waiting.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    i.enqueue,
		UpdateFunc: func(_, obj any) { i.enqueue(obj) },
	}); err != nil {
		return nil, err
	}
	again := func() {
		for _, obj := range i.waiting.GetStore().List() {
			i.enqueue(obj)
		}
	}
	_, err = i.configs.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { again() },
		UpdateFunc: func(any, any) { again() },
	})
	return i, err
}

// enqueue takes a pod up whose turn it is.
func (i *Injector) enqueue(obj any) {
	pod, ok := obj.(*unstructured.Unstructured)
	if !ok || !i.mine(pod) {
		return
	}
	if key, err := cache.MetaNamespaceKeyFunc(pod); err == nil {
		i.queue.Add(key)
	}
}

// mine says that the pod waits for this initializer next.
func (i *Injector) mine(pod *unstructured.Unstructured) bool {
	pending := initclient.Pending(pod)
	return len(pending) > 0 && pending[0] == i.cfg.Name && !initclient.Failed(pod)
}

// Run injects until ctx ends.
func (i *Injector) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer i.queue.ShutDown()
	running.Go(func() { i.waiting.Run(ctx.Done()) })
	running.Go(func() { i.configs.Run(ctx.Done()) })
	if !cache.WaitForCacheSync(ctx.Done(), i.waiting.HasSynced, i.configs.HasSynced) {
		return nil // ctx has ended
	}
	i.cfg.Logger.Info("injecting", "initializer", i.cfg.Name)
	for range i.cfg.Workers {
		running.Go(func() {
			for i.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	return nil
}

func (i *Injector) next(ctx context.Context) bool {
	key, quit := i.queue.Get()
	if quit {
		return false
	}
	defer i.queue.Done(key)
	if err := i.reconcile(ctx, key); err != nil {
		i.cfg.Logger.Error("will try again", "pod", key, "error", err)
		i.queue.AddRateLimited(key)
		return true
	}
	i.queue.Forget(key)
	return true
}

// reconcile takes the initializer's turn on one pod, if it has one.
func (i *Injector) reconcile(ctx context.Context, key string) error {
	obj, exists, err := i.waiting.GetStore().GetByKey(key)
	if err != nil || !exists {
		return err
	}
	pod, ok := obj.(*unstructured.Unstructured)
	if !ok || !i.mine(pod) {
		return nil
	}
	plan, err := i.plan(pod)
	if err != nil {
		return err
	}
	_, err = i.pods.Namespace(pod.GetNamespace()).Patch(ctx, pod.GetName(), plan.Type, plan.Data, metav1.PatchOptions{FieldManager: "sidecar-injector"})
	switch {
	case apierrors.IsNotFound(err):
		return nil // it was not waited for
	case apierrors.IsConflict(err):
		return fmt.Errorf("changed meanwhile: %w", err)
	case err == nil:
		i.cfg.Logger.Info("done", "pod", key)
	}
	return err
}

// plan decides what to do with a pod whose turn it is.
func (i *Injector) plan(pod *unstructured.Unstructured) (Plan, error) {
	if _, asks := pod.GetAnnotations()[i.cfg.Annotation]; i.cfg.Required && !asks {
		return inject(pod, nil, i.cfg.Name)
	}
	obj, exists, err := i.configs.GetStore().GetByKey(i.cfg.Namespace + "/" + i.cfg.ConfigMap)
	if err != nil {
		return Plan{}, err
	}
	if !exists {
		return Plan{}, fmt.Errorf("config map %s/%s is not there yet", i.cfg.Namespace, i.cfg.ConfigMap)
	}
	config, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return Plan{}, errors.New("not a config map")
	}
	sidecar, err := ParseSidecar(config)
	if err != nil {
		return reject(pod, err)
	}
	return inject(pod, sidecar, i.cfg.Name)
}
