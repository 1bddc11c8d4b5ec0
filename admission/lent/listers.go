package lent

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/networking"
	"k8s.io/client-go/informers/node"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/admission/view"
)

// window is what one request at a time sees of its plane.
type window struct {
	ctx         context.Context //nolint:containedctx // of the request that it is lent to; nil in between
	objects     view.Objects
	provisioner Provisioner
}

// resources are the kinds that upstream's plugins list.
var resources = map[reflect.Type]schema.GroupVersionResource{
	reflect.TypeFor[*corev1.LimitRange]():            corev1.SchemeGroupVersion.WithResource("limitranges"),
	reflect.TypeFor[*corev1.Namespace]():             corev1.SchemeGroupVersion.WithResource("namespaces"),
	reflect.TypeFor[*corev1.Node]():                  corev1.SchemeGroupVersion.WithResource("nodes"),
	reflect.TypeFor[*corev1.PersistentVolume]():      corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
	reflect.TypeFor[*corev1.PersistentVolumeClaim](): corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
	reflect.TypeFor[*corev1.Pod]():                   corev1.SchemeGroupVersion.WithResource("pods"),
	reflect.TypeFor[*corev1.ServiceAccount]():        corev1.SchemeGroupVersion.WithResource("serviceaccounts"),
	reflect.TypeFor[*networkingv1.IngressClass]():    networkingv1.SchemeGroupVersion.WithResource("ingressclasses"),
	reflect.TypeFor[*nodev1.RuntimeClass]():          nodev1.SchemeGroupVersion.WithResource("runtimeclasses"),
	reflect.TypeFor[*schedulingv1.PriorityClass]():   schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"),
	reflect.TypeFor[*storagev1.CSIDriver]():          storagev1.SchemeGroupVersion.WithResource("csidrivers"),
	reflect.TypeFor[*storagev1.StorageClass]():       storagev1.SchemeGroupVersion.WithResource("storageclasses"),
}

// factory has the listers of the groups that upstream's plugins read.
type factory struct {
	informers.SharedInformerFactory // nil: nothing else is lent
	*window
}

func (f factory) Core() core.Interface             { return core.New(f, "", nil) }
func (f factory) Networking() networking.Interface { return networking.New(f, "", nil) }
func (f factory) Node() node.Interface             { return node.New(f, "", nil) }
func (f factory) Scheduling() scheduling.Interface { return scheduling.New(f, "", nil) }
func (f factory) Storage() storage.Interface       { return storage.New(f, "", nil) }

// Listers are those that are lent for the request of ctx.
func Listers(ctx context.Context, objects view.Objects) informers.SharedInformerFactory {
	return factory{window: &window{ctx: ctx, objects: objects}}
}

// InformerFor implements internalinterfaces.SharedInformerFactory.
func (f factory) InformerFor(obj runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	resource, ok := resources[reflect.TypeOf(obj)]
	if !ok {
		panic(fmt.Sprintf("no lister of %T is lent", obj))
	}
	return informer{indexer: indexer{window: f.window, resource: resource}}
}

// informer is always in step with the plane.
type informer struct {
	cache.SharedIndexInformer // nil: nobody may wait for changes
	indexer                   indexer
}

func (informer) HasSynced() bool             { return true }
func (i informer) GetIndexer() cache.Indexer { return i.indexer }
func (i informer) GetStore() cache.Store     { return i.indexer }

// indexer is what a lister reads: the objects of one resource.
type indexer struct {
	cache.Indexer // nil: nothing can be put in
	*window
	resource schema.GroupVersionResource
}

// GetByKey implements cache.Store.
func (i indexer) GetByKey(key string) (any, bool, error) {
	namespace, name, within := strings.Cut(key, "/")
	if !within {
		namespace, name = "", key
	}
	obj, err := i.objects.Get(i.ctx, i.resource, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	return obj, err == nil, err
}

// List implements cache.Store.
func (i indexer) List() []any {
	all, _ := i.list("") // a lister has no way to say that it cannot read
	return all
}

// Index implements cache.Indexer for the index by namespace.
func (i indexer) Index(_ string, like any) ([]any, error) {
	m, err := meta.Accessor(like)
	if err != nil {
		return nil, err
	}
	return i.list(m.GetNamespace())
}

func (i indexer) list(namespace string) (all []any, err error) {
	for obj, err := range i.objects.List(i.ctx, i.resource, namespace) {
		if err != nil {
			return nil, err
		}
		all = append(all, obj)
	}
	return all, nil
}
