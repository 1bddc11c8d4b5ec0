// Package secrets shows controllers the secrets of one type, and no others: what
// nobody asks about is not kept in memory.
package secrets

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	informers "k8s.io/client-go/informers/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
)

// Of returns an informer of the secrets of a type, in one namespace or, with "",
// in all, and its lister. It is the loop's own that is to run it.
func Of(a *loop.Actor, namespace string, kind corev1.SecretType) (cache.SharedIndexInformer, listers.SecretLister) {
	informer := informers.NewFilteredSecretInformer(a.Client, namespace, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(kind)).String()
	})
	_ = informer.SetTransform(client.WithoutOwnership) // it has not been started
	return informer, listers.NewSecretLister(informer.GetIndexer())
}
