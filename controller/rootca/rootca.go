// Package rootca puts the certificate that the API server is known by into every
// namespace, where pods find it.
//
// In come namespaces and the config maps of that name; out comes the config map
// kube-root-ca.crt in every namespace that is active, as it should be.
package rootca

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	informers "k8s.io/client-go/informers/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
)

// Compat: the name, the annotation and its words are upstream's.
const (
	name        = "kube-root-ca.crt"
	annotation  = "kubernetes.io/description"
	description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
	workers = 1
)

// New returns the controller that publishes bundle, which is PEM.
func New(a *loop.Actor, bundle []byte) loop.Runner {
	data := map[string]string{"ca.crt": string(bundle)}
	namespaces := a.Informers.Core().V1().Namespaces()
	published := informers.NewFilteredConfigMapInformer(a.Client, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})
	_ = published.SetTransform(client.WithoutOwnership) // it has not been started
	lister := listers.NewConfigMapLister(published.GetIndexer())
	l := loop.New(a, "root_ca_cert_publisher", workers, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		ns, err := namespaces.Lister().Get(key.Name)
		if err != nil || ns.Status.Phase != corev1.NamespaceActive {
			return 0, nil //nolint:nilerr // it is not there
		}
		have, err := lister.ConfigMaps(key.Name).Get(name)
		configMaps := a.Client.CoreV1().ConfigMaps(key.Name)
		if err != nil {
			_, err = configMaps.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation: description}}, Data: data,
			}, metav1.CreateOptions{})
			if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return 0, nil
			}
			return 0, err
		}
		if maps.Equal(have.Data, data) && have.Annotations[annotation] != "" {
			return 0, nil
		}
		have = have.DeepCopy()
		have.Data = data
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, annotation, description)
		_, err = configMaps.Update(ctx, have, metav1.UpdateOptions{})
		return 0, err
	})
	l.Own(published)
	loop.Watch(l, "namespaces", namespaces.Informer(), func(_, after *corev1.Namespace) []loop.Key {
		if after == nil {
			return nil
		}
		return []loop.Key{loop.KeyOf(after)}
	})
	loop.Watch(l, "configmaps", published, func(before, after *corev1.ConfigMap) []loop.Key {
		if after == nil {
			after = before
		}
		return []loop.Key{{Name: after.Namespace}}
	})
	return l
}
