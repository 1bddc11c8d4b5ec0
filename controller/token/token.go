// Package token sees to service account tokens that live in secrets: it fills
// them in, takes them away with their accounts, and gives up those that nobody
// has used for a year.
//
// In come secrets of type kubernetes.io/service-account-token, service accounts
// and, for what is in use, pods; out come the token, the namespace and the root
// certificate in those secrets, deletions, and service accounts that name no
// secret that is gone. plan.go decides.
package token

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/secrets"
)

// workers is how many secrets are worked on at once. Compat: as upstream.
const workers = 5

// Make makes the token of an account that a secret holds.
type Make func(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)

// key is a secret and the account that it is of: when the secret is gone, that is
// who may still name it.
type key struct {
	loop.Key
	account string
}

func keyOf(s *corev1.Secret) key {
	return key{loop.KeyOf(s), s.Annotations[corev1.ServiceAccountNameKey]}
}

// Controller fills tokens in.
type Controller struct {
	*loop.Loop[key]
	actor    *loop.Actor
	make     Make
	rootCA   []byte
	secrets  listers.SecretLister
	accounts listers.ServiceAccountLister
}

// New returns the controller that fills secrets in with what make makes and
// rootCA, by which the API server is known.
func New(a *loop.Actor, rootCA []byte, makeToken Make) loop.Runner {
	informer, lister := secrets.Of(a, metav1.NamespaceAll, corev1.SecretTypeServiceAccountToken)
	accounts := a.Informers.Core().V1().ServiceAccounts()
	c := &Controller{actor: a, make: makeToken, rootCA: rootCA, secrets: lister, accounts: accounts.Lister()}
	c.Loop = loop.New(a, "serviceaccount_tokens_service", workers, c.reconcile)
	c.Own(informer)
	loop.Watch(c.Loop, "secrets", informer, func(before, after *corev1.Secret) []key {
		var keys []key
		for _, s := range []*corev1.Secret{before, after} {
			if s != nil {
				keys = append(keys, keyOf(s))
			}
		}
		return keys
	})
	loop.Watch(c.Loop, "serviceaccounts", accounts.Informer(), c.ofAccount)
	return c
}

// ofAccount are the secrets of an account that has gone.
func (c *Controller) ofAccount(before, after *corev1.ServiceAccount) []key {
	if after != nil && (before == nil || before.UID == after.UID) {
		return nil
	}
	var keys []key
	all, _ := c.secrets.Secrets(before.Namespace).List(labels.Everything()) // a cache has no errors
	for _, s := range all {
		if s.Annotations[corev1.ServiceAccountNameKey] == before.Name {
			keys = append(keys, keyOf(s))
		}
	}
	return keys
}

func (c *Controller) reconcile(ctx context.Context, k key) (time.Duration, error) {
	secret, err := c.secrets.Secrets(k.Namespace).Get(k.Name)
	if err != nil {
		return 0, c.forget(ctx, k)
	}
	account, err := c.account(ctx, secret)
	if err != nil {
		return 0, err
	}
	switch plan(secret, account, c.rootCA) {
	case remove:
		return 0, gone(c.actor.Client.CoreV1().Secrets(k.Namespace).Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}}))
	case fill:
		return 0, c.fill(ctx, account, secret)
	default:
		return 0, nil
	}
}

// account is whose a secret is, nil when there is nobody. One that is not in the
// cache is asked for: a secret must not go because it was seen before its
// account.
func (c *Controller) account(ctx context.Context, s *corev1.Secret) (*corev1.ServiceAccount, error) {
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if account, err := c.accounts.ServiceAccounts(s.Namespace).Get(name); err == nil && of(s, account) {
		return account, nil
	}
	account, err := c.actor.Client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !of(s, account) {
		return nil, nil
	}
	return account, err
}

func (c *Controller) fill(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) error {
	filled := filled(secret, account, c.rootCA)
	if len(filled.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := c.make(ctx, account, secret)
		if err != nil {
			return err
		}
		filled.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	_, err := c.actor.Client.CoreV1().Secrets(secret.Namespace).Update(ctx, filled, metav1.UpdateOptions{})
	return gone(err)
}

// forget has an account not name a secret that is gone. One that is not in the
// cache is asked for: nobody looks again when it comes.
func (c *Controller) forget(ctx context.Context, k key) error {
	account, err := c.accounts.ServiceAccounts(k.Namespace).Get(k.account)
	if err != nil {
		account, err = c.actor.Client.CoreV1().ServiceAccounts(k.Namespace).Get(ctx, k.account, metav1.GetOptions{})
	}
	if err != nil || !names(account, k.Name) {
		return gone(err)
	}
	_, err = c.actor.Client.CoreV1().ServiceAccounts(k.Namespace).Update(ctx, without(account, k.Name), metav1.UpdateOptions{})
	return gone(err)
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
