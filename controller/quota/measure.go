package quota

import (
	"context"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
)

var claims = resourcev1.SchemeGroupVersion.WithResource("resourceclaims")

// special are upstream's evaluators of what is more than counted, but for claims
// of devices. Their objects are found by f.
func special(f upstream.ListerForResourceFunc) []upstream.Evaluator {
	all, err := core.NewEvaluators(f, nil, func(r schema.GroupVersionResource) bool { return r != claims })
	if err != nil {
		panic(err) // it fails for claims alone
	}
	return all
}

// known tell which resources a limit is about.
var known = append(special(nil), core.NewResourceClaimEvaluator(nil, nil, nil, nil))

// counted are the resources whose objects limits count.
func counted(hard corev1.ResourceList) []schema.GroupResource {
	names := upstream.ResourceNames(hard)
	var all []schema.GroupResource
	for _, e := range known {
		if len(e.MatchingResources(names)) > 0 {
			all = append(all, e.GroupResource())
		}
	}
	for _, name := range names {
		if counts, is := strings.CutPrefix(string(name), "count/"); is {
			if r := schema.ParseGroupResource(counts); !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

// counts says that limits count the objects of a resource.
func counts(hard corev1.ResourceList, of schema.GroupResource) bool {
	return slices.Contains(counted(hard), of)
}

// measure is what the objects of a quota's namespace use of what it limits.
// resources are those to look at, with the versions that are served. With an
// error the rest has been measured.
func (c *Controller) measure(ctx context.Context, q *corev1.ResourceQuota, resources []schema.GroupVersionResource) (corev1.ResourceList, error) {
	f := func(of schema.GroupVersionResource) (cache.GenericLister, error) {
		return lister{ctx: ctx, c: c, of: of}, nil
	}
	evaluators := special(f)
	for _, r := range resources {
		of := r.GroupResource()
		switch {
		case r == claims:
			e, err := c.claims(ctx, f)
			if err != nil {
				return nil, err
			}
			evaluators = append(evaluators, e)
		case !slices.ContainsFunc(evaluators, func(e upstream.Evaluator) bool { return e.GroupResource() == of }):
			evaluators = append(evaluators, generic.NewObjectCountEvaluator(of, generic.ListResourceUsingListerFunc(f, r), ""))
		}
	}
	return upstream.CalculateUsage(q.Namespace, q.Spec.Scopes, q.Spec.Hard, generic.NewRegistry(evaluators), q.Spec.ScopeSelector)
}

// claims knows what claims of devices use.
func (c *Controller) claims(ctx context.Context, f upstream.ListerForResourceFunc) (upstream.Evaluator, error) {
	classes, err := c.actor.Client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	devices := extendedresourcecache.NewExtendedResourceCache(logr.Discard())
	for i := range classes.Items {
		devices.OnAdd(&classes.Items[i], true)
	}
	owned := func(namespace string, pod types.UID) (found []*resourcev1.ResourceClaim, err error) {
		all, err := c.actor.Client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range all.Items {
			if owner := metav1.GetControllerOfNoCopy(&all.Items[i]); owner != nil && owner.UID == pod {
				found = append(found, &all.Items[i])
			}
		}
		return found, nil
	}
	return core.NewResourceClaimEvaluator(f, devices, c.pods, owned), nil
}

// lister asks the API for all objects of a namespace, as they are now. What is
// only counted is asked for its metadata.
type lister struct {
	cache.GenericLister
	ctx       context.Context
	c         *Controller
	of        schema.GroupVersionResource
	namespace string
}

// ByNamespace implements cache.GenericLister.
func (l lister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	l.namespace = namespace
	return namespaced{l: l}
}

type namespaced struct {
	cache.GenericNamespaceLister
	l lister
}

// List implements cache.GenericNamespaceLister.
func (n namespaced) List(labels.Selector) ([]runtime.Object, error) {
	list, err := n.l.list()
	if err != nil {
		return nil, err
	}
	return meta.ExtractList(list)
}

func (l lister) list() (runtime.Object, error) {
	whole, is := wholes[l.of.GroupResource()]
	if is {
		return whole(l.ctx, l.c.actor.Client, l.namespace)
	}
	objects, err := l.c.actor.API.Metadata()
	if err != nil {
		return nil, err
	}
	return objects.Resource(l.of).Namespace(l.namespace).List(l.ctx, metav1.ListOptions{})
}

// wholes list the resources whose objects are more than counted.
var wholes = map[schema.GroupResource]func(ctx context.Context, k kubernetes.Interface, namespace string) (runtime.Object, error){
	{Resource: "pods"}: func(ctx context.Context, k kubernetes.Interface, namespace string) (runtime.Object, error) {
		return k.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	},
	{Resource: "services"}: func(ctx context.Context, k kubernetes.Interface, namespace string) (runtime.Object, error) {
		return k.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	},
	{Resource: "persistentvolumeclaims"}: func(ctx context.Context, k kubernetes.Interface, namespace string) (runtime.Object, error) {
		return k.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	},
	claims.GroupResource(): func(ctx context.Context, k kubernetes.Interface, namespace string) (runtime.Object, error) {
		return k.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	},
}
