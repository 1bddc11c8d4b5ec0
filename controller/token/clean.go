package token

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	podapi "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"setpoint.dev/setpoint/controller/loop"
	"setpoint.dev/setpoint/controller/secrets"
)

// Compat: the pace, and where it is written since when use is noted, are
// upstream's.
const (
	lookEvery = 24 * time.Hour
	year      = 365 * 24 * time.Hour
	tracking  = "kube-apiserver-legacy-service-account-token-tracking"
)

// everything is the only key: all tokens are looked at together.
var everything = loop.Key{}

// NewCleaner returns the controller that gives up tokens that were made for an
// account and that nobody has used for so long; 0 means a year. One is marked as
// invalid first, and deleted when that has been so for as long again.
func NewCleaner(a *loop.Actor, unused time.Duration) loop.Runner {
	if unused == 0 {
		unused = year
	}
	informer, lister := secrets.Of(a, metav1.NamespaceAll, corev1.SecretTypeServiceAccountToken)
	core := a.Informers.Core().V1()
	l := loop.New(a, "legacy_service_account_token_cleaner", 1, func(ctx context.Context, _ loop.Key) (time.Duration, error) {
		tokens, _ := lister.List(labels.Everything()) // a cache has no errors
		if len(tokens) == 0 {
			return lookEvery, nil
		}
		since, err := noted(ctx, a)
		if err != nil {
			return 0, err
		}
		now := time.Now().UTC()
		if now.Before(since.Add(unused)) {
			return lookEvery, nil // nothing is known of the time before
		}
		for _, s := range tokens {
			account, err := core.ServiceAccounts().Lister().ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
			if err != nil {
				account = nil
			}
			inPods := func() bool {
				pods, _ := core.Pods().Lister().Pods(s.Namespace).List(labels.Everything()) // a cache has no errors
				return mounted(pods, s.Name)
			}
			if err := giveUp(ctx, a, s, clean(s, account, inPods, now, unused), now); err != nil {
				return 0, err
			}
		}
		return lookEvery, nil
	})
	l.Own(informer)
	loop.Watch[loop.Key, *corev1.Secret](l, "secrets", informer, nil)
	loop.Watch[loop.Key, *corev1.ServiceAccount](l, "serviceaccounts", core.ServiceAccounts().Informer(), nil)
	loop.Watch[loop.Key, *corev1.Pod](l, "pods", core.Pods().Informer(), nil)
	l.Add(everything)
	return l
}

// noted is since when the use of tokens is noted: the end of the day on which
// that began.
func noted(ctx context.Context, a *loop.Actor) (time.Time, error) {
	m, err := a.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, err
	}
	day, err := time.Parse(time.DateOnly, m.Data["since"])
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %w", tracking, err)
	}
	return day.AddDate(0, 0, 1), nil
}

const mark verdict = "mark"

// clean says what becomes of a token: leave, mark as invalid or remove. inPods is
// asked last.
func clean(s *corev1.Secret, account *corev1.ServiceAccount, inPods func() bool, now time.Time, unused time.Duration) verdict {
	limit := now.Add(-unused)
	day := limit.Format(time.DateOnly)
	used, noted := s.Labels[serviceaccount.LastUsedLabelKey]
	_, unreadable := time.Parse(time.DateOnly, used)
	switch {
	case s.DeletionTimestamp != nil, !s.CreationTimestamp.Time.Before(limit):
		return leave
	case noted && (unreadable != nil || used >= day):
		return leave
	case account == nil || !of(s, account) || !names(account, s.Name): // somebody made it by hand
		return leave
	case inPods():
		return leave
	}
	since := s.Labels[serviceaccount.InvalidSinceLabelKey]
	if _, err := time.Parse(time.DateOnly, since); err != nil {
		return mark
	}
	if since >= day {
		return leave
	}
	return remove
}

// mounted says whether one of some pods uses a secret.
func mounted(pods []*corev1.Pod, secret string) bool {
	for _, p := range pods {
		if !podapi.VisitPodSecretNames(p, func(name string) bool { return name != secret }) {
			return true
		}
	}
	return false
}

func giveUp(ctx context.Context, a *loop.Actor, s *corev1.Secret, v verdict, now time.Time) error {
	var err error
	switch v {
	case mark:
		var patch []byte
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": s.UID, "labels": map[string]string{serviceaccount.InvalidSinceLabelKey: now.Format(time.DateOnly)},
		}})
		if err == nil {
			_, err = a.Client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	case remove:
		err = a.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &s.ResourceVersion}})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has changed, which is looked at another day
	}
	return err
}
