// Package bootstraptoken sees to the tokens that new nodes join with: it signs
// what they are told of the cluster, and takes tokens away that have ended.
//
// In come secrets of type bootstrap.kubernetes.io/token in kube-system and the
// config map kube-public/cluster-info; out come signatures in that config map,
// one for each token that may sign, and deletions.
//
// Compat: as upstream, neither controller runs unless it is named.
package bootstraptoken

import (
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	informers "k8s.io/client-go/informers/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	bootstrapsecrets "k8s.io/cluster-bootstrap/util/secrets"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/secrets"
)

// info is the only key that is signed.
var info = loop.Key{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}

// NewSigner returns the controller that signs what nodes are told.
func NewSigner(a *loop.Actor) loop.Runner {
	tokens, lister := secrets.Of(a, metav1.NamespaceSystem, bootstrapapi.SecretTypeBootstrapToken)
	maps := informers.NewFilteredConfigMapInformer(a.Client, info.Namespace, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", info.Name).String()
	})
	_ = maps.SetTransform(client.WithoutOwnership) // it has not been started
	infos := listers.NewConfigMapLister(maps.GetIndexer())
	l := loop.New(a, "bootstrap_signer_queue", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		told, err := infos.ConfigMaps(key.Namespace).Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		all, _ := lister.List(labels.Everything()) // a cache has no errors
		signed, again, err := sign(told, all, time.Now())
		if signed == nil || err != nil {
			return again, err
		}
		_, err = a.Client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, signed, metav1.UpdateOptions{})
		return again, err
	})
	l.Own(tokens)
	l.Own(maps)
	loop.Watch(l, "secrets", tokens, func(_, _ *corev1.Secret) []loop.Key { return []loop.Key{info} })
	loop.Watch(l, "configmaps", maps, loop.Self[*corev1.ConfigMap])
	return l
}

// sign returns what is told with the signatures of all tokens that may sign, nil
// when it has just these, and when the first of them ends.
func sign(told *corev1.ConfigMap, tokens []*corev1.Secret, now time.Time) (*corev1.ConfigMap, time.Duration, error) {
	text, has := told.Data[bootstrapapi.KubeConfigKey]
	if !has {
		return nil, 0, nil
	}
	data := maps.Clone(told.Data)
	maps.DeleteFunc(data, func(key, _ string) bool { return strings.HasPrefix(key, bootstrapapi.JWSSignatureKeyPrefix) })
	var again time.Duration
	for _, t := range tokens {
		id, secret, left := signer(t, now)
		if id == "" {
			continue
		}
		signature, err := jws.ComputeDetachedSignature(text, id, secret)
		if err != nil {
			return nil, 0, err
		}
		data[bootstrapapi.JWSSignatureKeyPrefix+id] = signature
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	if maps.Equal(data, told.Data) {
		return nil, again, nil
	}
	told = told.DeepCopy()
	told.Data = data
	return told, again, nil
}

// signer is the token in a secret, and how long it lives if that is known; ""
// when it may not sign.
func signer(s *corev1.Secret, now time.Time) (id, secret string, left time.Duration) {
	named, ok := bootstrapsecrets.ParseName(s.Name)
	id, secret = bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenIDKey), bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenSecretKey)
	left, ended := bootstrapsecrets.GetExpiration(s, now)
	may := bootstrapsecrets.GetData(s, bootstrapapi.BootstrapTokenUsageSigningKey) == "true"
	if !ok || !may || ended || id != named || secret == "" || s.DeletionTimestamp != nil {
		return "", "", 0
	}
	return id, secret, left
}

// NewCleaner returns the controller that takes tokens away that have ended.
func NewCleaner(a *loop.Actor) loop.Runner {
	tokens, lister := secrets.Of(a, metav1.NamespaceSystem, bootstrapapi.SecretTypeBootstrapToken)
	l := loop.New(a, "token_cleaner", 1, func(ctx context.Context, key loop.Key) (time.Duration, error) {
		token, err := lister.Secrets(key.Namespace).Get(key.Name)
		if err != nil {
			return 0, nil //nolint:nilerr // it is not there
		}
		left, ended := bootstrapsecrets.GetExpiration(token, time.Now())
		if !ended {
			return left, nil
		}
		err = a.Client.CoreV1().Secrets(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &token.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil
		}
		return 0, err
	})
	l.Own(tokens)
	loop.Watch(l, "secrets", tokens, loop.Self[*corev1.Secret])
	return l
}
