package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Compat: a token is renewed after 80 % of its life or a day, whichever is
// first, and up to ten seconds earlier, so that nodes do not ask all at once.
const (
	maxAge = 24 * time.Hour
	jitter = 10 * time.Second
)

// tokens are those that pods have now, by what they were asked for.
type tokens struct {
	mu       sync.Mutex // guards requests
	requests map[tokenKey]*token
}

type tokenKey struct {
	pod      types.UID
	account  string
	audience string
	seconds  int64
}

type token struct {
	mu      sync.Mutex // guards the fields below, and is held while asking
	value   string
	life    time.Duration
	expires time.Time
}

// Token returns a token of the pod's service account that is bound to the pod,
// asking for one only when there is none that has enough of its life left. One
// that cannot be renewed is used until it expires.
func (s *Source) Token(ctx context.Context, pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) (string, error) {
	key := tokenKey{pod: pod.UID, account: pod.Spec.ServiceAccountName, audience: p.Audience}
	if p.ExpirationSeconds != nil {
		key.seconds = *p.ExpirationSeconds
	}
	t := s.tokens.of(key)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.value != "" && !t.due(now, rand.N(jitter)) {
		return t.value, nil
	}
	answer, err := s.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, key.account, request(pod, p), metav1.CreateOptions{})
	switch {
	case err == nil:
		t.value, t.expires = answer.Status.Token, answer.Status.ExpirationTimestamp.Time
		t.life = t.expires.Sub(now)
		if answer.Spec.ExpirationSeconds != nil {
			t.life = time.Duration(*answer.Spec.ExpirationSeconds) * time.Second
		}
		return t.value, nil
	case t.value == "":
		return "", fmt.Errorf("failed to fetch token: %w", err)
	case now.After(t.expires):
		return "", fmt.Errorf("token of %s/%s expired and refresh failed: %w", pod.Namespace, key.account, err)
	}
	s.cfg.Logger.WarnContext(ctx, "a token could not be renewed", "namespace", pod.Namespace, "pod", pod.Name, "expires", t.expires, "error", err)
	return t.value, nil
}

func request(pod *corev1.Pod, p *corev1.ServiceAccountTokenProjection) *authenticationv1.TokenRequest {
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: p.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if p.Audience != "" {
		r.Spec.Audiences = []string{p.Audience}
	}
	return r
}

// due reports whether it is time to renew, early earlier than it must be.
func (t *token) due(now time.Time, early time.Duration) bool {
	begun := t.expires.Add(-t.life)
	return now.After(begun.Add(maxAge-early)) || now.After(t.expires.Add(-t.life/5-early))
}

func (t *tokens) of(key tokenKey) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.requests[key] == nil {
		t.requests[key] = &token{}
	}
	return t.requests[key]
}

func (t *tokens) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.requests {
		if key.pod == pod {
			delete(t.requests, key)
		}
	}
}
