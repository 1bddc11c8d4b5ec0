package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

// How long answers of the API are kept, and how many. Compat: as kubelet does.
const (
	tokenTTL   = 2 * time.Minute
	allowedTTL = 5 * time.Minute
	deniedTTL  = 30 * time.Second
	maxAnswers = 4096
)

// access knows who asks, and whether they may.
type access struct {
	node    string
	client  kubernetes.Interface
	roots   *x509.CertPool
	answers *cache.LRUExpireCache
}

func newAccess(cfg Config) *access {
	return &access{node: cfg.Name, client: cfg.Client, roots: cfg.ClientCAs, answers: cache.NewLRUExpireCache(maxAnswers)}
}

// refusal is why somebody may not.
type refusal struct {
	code int
	text string
}

// check says why a request may not be; nil when it may.
func (a *access) check(r *http.Request) *refusal {
	who, err := a.identify(r)
	if err != nil || who == nil {
		return &refusal{http.StatusUnauthorized, "Unauthorized"}
	}
	verb, subresources := verbOf(r.Method), subresourcesOf(r.URL.Path)
	for _, sub := range subresources {
		allowed, err := a.allows(r.Context(), who, verb, sub)
		if err != nil {
			return &refusal{http.StatusInternalServerError, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource=%s)", who.Username, verb, sub)}
		}
		if allowed {
			return nil
		}
	}
	return &refusal{http.StatusForbidden, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)\n", who.Username, verb, subresources)}
}

// identify finds out who asks; nil is a stranger.
func (a *access) identify(r *http.Request) (*authenticationv1.UserInfo, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if who := a.byCertificate(r.TLS.PeerCertificates); who != nil {
			return who, nil
		}
	}
	kind, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(kind, "bearer") || strings.TrimSpace(token) == "" {
		return nil, nil
	}
	return a.byToken(r.Context(), strings.TrimSpace(token))
}

// byCertificate is who a certificate is for: its common name, in the groups that
// its organizations are.
func (a *access) byCertificate(chain []*x509.Certificate) *authenticationv1.UserInfo {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	opts := x509.VerifyOptions{Roots: a.roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := chain[0].Verify(opts); err != nil || chain[0].Subject.CommonName == "" {
		return nil
	}
	return &authenticationv1.UserInfo{Username: chain[0].Subject.CommonName, Groups: append(slices.Clone(chain[0].Subject.Organization), "system:authenticated")}
}

// byToken asks the API whose a token is.
func (a *access) byToken(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	key := sha256.Sum256([]byte(token))
	if known, is := a.answers.Get(key); is {
		who, _ := known.(*authenticationv1.UserInfo)
		return who, nil
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if !review.Status.Authenticated {
		return nil, nil
	}
	a.answers.Add(key, &review.Status.User, tokenTTL)
	return &review.Status.User, nil
}

// question is what the API is asked about a user.
type question struct{ user, uid, groups, extra, verb, subresource string }

// allows asks the API whether a user may do something with the node.
func (a *access) allows(ctx context.Context, who *authenticationv1.UserInfo, verb, subresource string) (bool, error) {
	key := question{who.Username, who.UID, fmt.Sprintf("%q", who.Groups), fmt.Sprintf("%q", who.Extra), verb, subresource}
	if known, is := a.answers.Get(key); is {
		return known == true, nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range who.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who.Username, UID: who.UID, Groups: who.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.node},
	}}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	ttl := deniedTTL
	if review.Status.Allowed {
		ttl = allowedTTL
	}
	a.answers.Add(key, review.Status.Allowed, ttl)
	return review.Status.Allowed, nil
}

// verbOf is what the API calls a method.
func verbOf(method string) string {
	return map[string]string{
		http.MethodPost: "create", http.MethodGet: "get", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[method]
}

// subresources are what paths are to the API, beside proxy, which is all that are
// not named here. Those with also can be reached by whoever may proxy, too.
var subresources = []struct {
	path, name string
	also       bool
}{
	{"/pods", "pods", true},
	{"/runningpods", "pods", true},
	{"/healthz", "healthz", true},
	{"/configz", "configz", true},
	{"/stats", "stats", false},
	{"/metrics", "metrics", false},
	{"/logs", "log", false},
	{"/checkpoint", "checkpoint", false},
}

// subresourcesOf are the subresources of the node that a path is, any of which
// suffices.
func subresourcesOf(path string) []string {
	for _, s := range subresources {
		if path != s.path && !strings.HasPrefix(path, s.path+"/") {
			continue
		}
		if s.also {
			return []string{s.name, "proxy"}
		}
		return []string{s.name}
	}
	return []string{"proxy"}
}
