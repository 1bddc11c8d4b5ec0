package authn_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/server/authn"
)

// objects is a store of a handful of objects by namespace/name.
type objects struct {
	accounts map[string]*corev1.ServiceAccount
	pods     map[string]*corev1.Pod
	secrets  map[string]*corev1.Secret
	nodes    map[string]*corev1.Node
	patches  []string
}

func find[T any](from map[string]*T, resource, namespace, name string) (*T, error) {
	if obj, ok := from[strings.TrimPrefix(namespace+"/"+name, "/")]; ok {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource(resource), name)
}

func (o *objects) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return find(o.accounts, "serviceaccounts", namespace, name)
}

func (o *objects) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	return find(o.pods, "pods", namespace, name)
}

func (o *objects) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return find(o.secrets, "secrets", namespace, name)
}

func (o *objects) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return find(o.nodes, "nodes", "", name)
}

func (o *objects) PatchSecret(_ context.Context, namespace, name string, patch []byte) error {
	o.patches = append(o.patches, fmt.Sprintf("%s/%s %s", namespace, name, patch))
	return nil
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}
}

func newObjects() *objects {
	return &objects{
		accounts: map[string]*corev1.ServiceAccount{
			"shop/web":   {ObjectMeta: named("shop", "web")},
			"shop/other": {ObjectMeta: named("shop", "other")},
		},
		pods: map[string]*corev1.Pod{
			"shop/web-1": {ObjectMeta: named("shop", "web-1"), Spec: corev1.PodSpec{ServiceAccountName: "web", NodeName: "n1"}},
			"shop/lost":  {ObjectMeta: named("shop", "lost"), Spec: corev1.PodSpec{ServiceAccountName: "web", NodeName: "gone"}},
		},
		secrets: map[string]*corev1.Secret{"shop/s1": {ObjectMeta: named("shop", "s1")}},
		nodes:   map[string]*corev1.Node{"n1": {ObjectMeta: named("", "n1")}},
	}
}

var authority = func() *pki.Authority {
	a, err := pki.Load("", nil)
	if err != nil {
		panic(err)
	}
	return a
}()

func newIssuer(t *testing.T, objs *objects, change func(*authn.IssuerConfig)) *authn.Issuer {
	t.Helper()
	cfg := authn.IssuerConfig{Key: authority.ServiceAccountKey, Objects: objs, Address: "192.0.2.1:6443"}
	if change != nil {
		change(&cfg)
	}
	i, err := authn.NewIssuer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func newAuthn(t *testing.T, cfg authn.Config) *authn.Authenticator {
	t.Helper()
	a, err := authn.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// accounts is a Config for service account tokens that keeps no answers.
func accounts(objs *objects) authn.Config {
	return authn.Config{ServiceAccountKeys: []any{authority.ServiceAccountKey}, Objects: objs, Secrets: objs, TokenTTL: -1}
}

func withToken(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// who returns the user of a request: name, groups and extra as text, or why
// there is none.
func who(a authenticator.Request, r *http.Request) string {
	resp, ok, err := a.AuthenticateRequest(r)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case !ok:
		return "nobody"
	}
	return fmt.Sprintf("%s %v", resp.User.GetName(), resp.User.GetGroups())
}

func ask(audiences []string, seconds int64, ref *authenticationv1.BoundObjectReference) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: &seconds, BoundObjectRef: ref,
	}}
}

func token(t *testing.T, i *authn.Issuer, req *authenticationv1.TokenRequest) string {
	t.Helper()
	resp, err := i.Issue(t.Context(), "shop", "web", req, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status.Token
}

const web = "system:serviceaccount:shop:web [system:serviceaccounts system:serviceaccounts:shop system:authenticated]"

func TestServiceAccountToken(t *testing.T) {
	pod := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web-1"}
	node := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: "n1"}
	secret := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "s1"}
	tests := []struct {
		name string
		req  *authenticationv1.TokenRequest
		then func(*objects)
		want string
	}{
		{"unbound", ask(nil, 600, nil), nil, web},
		{"for another audience", ask([]string{"vault"}, 600, nil), nil, "error: token audiences"},
		{"account gone", ask(nil, 600, nil), func(o *objects) { delete(o.accounts, "shop/web") }, `error: serviceaccounts "web" not found`},
		{"account made anew", ask(nil, 600, nil), func(o *objects) {
			o.accounts["shop/web"] = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "new"}}
		}, "error: service account UID"},
		{"pod", ask(nil, 600, pod), nil, web},
		{"pod gone", ask(nil, 600, pod), func(o *objects) { delete(o.pods, "shop/web-1") }, "error: service account token has been invalidated"},
		{"node gone", ask(nil, 600, node), func(o *objects) { delete(o.nodes, "n1") }, "error: service account token has been invalidated"},
		{"secret gone", ask(nil, 600, secret), func(o *objects) { delete(o.secrets, "shop/s1") }, "error: service account token has been invalidated"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objs := newObjects()
			tok := token(t, newIssuer(t, objs, nil), test.req)
			if test.then != nil {
				test.then(objs)
			}
			if got := who(newAuthn(t, accounts(objs)), withToken(tok)); !strings.HasPrefix(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestPodTokenSaysWhere(t *testing.T) {
	objs := newObjects()
	tok := token(t, newIssuer(t, objs, nil), ask(nil, 600, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web-1"}))
	resp, ok, err := newAuthn(t, accounts(objs)).AuthenticateRequest(withToken(tok))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	extra := resp.User.GetExtra()
	if len(extra["authentication.kubernetes.io/credential-id"]) != 1 {
		t.Errorf("no credential id in %v", extra)
	}
	delete(extra, "authentication.kubernetes.io/credential-id")
	want := map[string][]string{
		"authentication.kubernetes.io/pod-name": {"web-1"}, "authentication.kubernetes.io/pod-uid": {"uid-web-1"},
		"authentication.kubernetes.io/node-name": {"n1"}, "authentication.kubernetes.io/node-uid": {"uid-n1"},
	}
	if diff := cmp.Diff(want, extra); diff != "" {
		t.Error(diff)
	}
}

func TestTokensEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := newObjects()
		i, a := newIssuer(t, objs, nil), newAuthn(t, accounts(objs))
		pod := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web-1"}
		short, long := token(t, i, ask(nil, 600, nil)), token(t, i, ask(nil, 3607, pod))
		time.Sleep(12 * time.Minute)
		if got := who(a, withToken(short)); got != "error: service account token has expired" {
			t.Errorf("after 12 minutes: %s", got)
		}
		time.Sleep(24 * time.Hour)
		if got := who(a, withToken(long)); got != web {
			t.Errorf("a pod's own token after a day: %s", got)
		}
	})
}

func TestIssueRefuses(t *testing.T) {
	tests := []struct {
		name string
		req  *authenticationv1.TokenRequest
		want string
	}{
		{"too short", ask(nil, 60, nil), "may not specify a duration less than 10 minutes"},
		{"pod of another account", ask(nil, 600, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web-1"}), "different serviceaccount"},
		{"unknown pod", ask(nil, 600, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "none"}), `pods "none" not found`},
		{"other UID", ask(nil, 600, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "s1", UID: "x"}), "does not match the UID in record"},
		{"strange kind", ask(nil, 600, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c"}), "cannot bind token to object of type"},
		{"other name", &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, "must match the service account name"},
		{"other namespace", &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "x"}}, "must match the service account namespace"},
		{"other account UID", &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: "x"}}, "does not match the UID of the service account"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := newIssuer(t, newObjects(), nil).Issue(t.Context(), "shop", "other", test.req, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
				t.Errorf("%T is no API error", err)
			}
		})
	}
}

func TestIssueCompletesTheRequest(t *testing.T) {
	i := newIssuer(t, newObjects(), func(cfg *authn.IssuerConfig) { cfg.MaxLife = 20 * time.Minute })
	req := &authenticationv1.TokenRequest{}
	var admitted *authenticationv1.TokenRequest
	resp, err := i.Issue(t.Context(), "shop", "web", req, func(r *authenticationv1.TokenRequest) error { admitted = r; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&authenticationv1.TokenRequest{}, req); diff != "" {
		t.Errorf("the request was changed:\n%s", diff)
	}
	if resp.Name != "web" || resp.Namespace != "shop" || resp.UID != "uid-web" || *resp.Spec.ExpirationSeconds != 1200 ||
		!slices.Equal(resp.Spec.Audiences, []string{authn.DefaultIssuer}) {
		t.Errorf("got %+v", resp.ObjectMeta)
	}
	if left := time.Until(resp.Status.ExpirationTimestamp.Time); left < 19*time.Minute || left > 20*time.Minute {
		t.Errorf("expires in %v", left)
	}
	if admitted == nil || admitted.Status.Token != "" || admitted.Name != "web" {
		t.Errorf("admission saw %+v", admitted)
	}
	_, err = i.Issue(t.Context(), "shop", "web", req, func(*authenticationv1.TokenRequest) error { return apierrors.NewBadRequest("no") })
	if !apierrors.IsBadRequest(err) {
		t.Errorf("admission was not heard: %v", err)
	}
}

func TestSecretToken(t *testing.T) {
	objs := newObjects()
	secret := objs.secrets["shop/s1"]
	tok, err := authn.SecretToken(t.Context(), authority.ServiceAccountKey, objs.accounts["shop/web"], secret)
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthn(t, accounts(objs))
	if got := who(a, withToken(tok)); got != "error: Token does not match server's copy" {
		t.Errorf("before it is in the secret: %s", got)
	}
	secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(tok)}
	if got := who(a, withToken(tok)); got != web {
		t.Errorf("got %s", got)
	}
	if len(objs.patches) != 1 || !strings.Contains(objs.patches[0], "kubernetes.io/legacy-token-last-used") {
		t.Errorf("its use was noted as %q", objs.patches)
	}
	cfg := accounts(objs)
	cfg.Secrets = nil
	if got := who(newAuthn(t, cfg), withToken(tok)); got != web {
		t.Errorf("without anyone to note it: %s", got)
	}
	delete(objs.secrets, "shop/s1")
	if got := who(a, withToken(tok)); got != "error: Token has been invalidated" {
		t.Errorf("after the secret is gone: %s", got)
	}
}

func TestBootstrapToken(t *testing.T) {
	objs := newObjects()
	objs.secrets["kube-system/bootstrap-token-abcdef"] = &corev1.Secret{
		ObjectMeta: named("kube-system", "bootstrap-token-abcdef"),
		Type:       "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
		},
	}
	a := newAuthn(t, authn.Config{BootstrapTokens: true, Objects: objs, Anonymous: true})
	for tok, want := range map[string]string{
		"abcdef.0123456789abcdef": "system:bootstrap:abcdef [system:bootstrappers system:authenticated]",
		"abcdef.fedcba9876543210": "error: invalid bearer token",
		"zzzzzz.0123456789abcdef": "error: invalid bearer token",
	} {
		if got := who(a, withToken(tok)); got != want {
			t.Errorf("%s: got %q, want %q", tok, got, want)
		}
	}
}

func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(file, []byte("s3cret,alice,1,\"dev,ops\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newAuthn(t, authn.Config{TokenFile: file})
	if got := who(a, withToken("s3cret")); got != "alice [dev ops system:authenticated]" {
		t.Error(got)
	}
	if got := who(a, withToken("wrong")); got != "error: invalid bearer token" {
		t.Error(got)
	}
	if got := who(a, httptest.NewRequest(http.MethodGet, "/", nil)); got != "nobody" {
		t.Error(got)
	}
	// Browsers cannot set headers on websockets: the token is a subprotocol.
	ws := httptest.NewRequest(http.MethodGet, "/api", nil)
	ws.Header.Set("Upgrade", "websocket")
	ws.Header.Set("Connection", "Upgrade")
	ws.Header.Set("Sec-WebSocket-Protocol", "base64url.bearer.authorization.k8s.io.czNjcmV0, v4.channel.k8s.io")
	if got := who(a, ws); got != "alice [dev ops system:authenticated]" {
		t.Error(got)
	}
	if _, err := authn.New(t.Context(), authn.Config{TokenFile: file + "x"}); err == nil {
		t.Error("a missing token file is no error")
	}
}

// certified is a request over TLS with a client certificate.
func certified(t *testing.T, a *pki.Authority, name string, groups ...string) *http.Request {
	t.Helper()
	cert, key, err := a.IssueClient(name, groups)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{pair.Leaf}}
	return r
}

func TestClientCertificate(t *testing.T) {
	a := newAuthn(t, authn.Config{ClientCAs: authority.ClientPool(), Anonymous: true})
	if got := who(a, certified(t, authority, "alice", "dev")); got != "alice [dev system:authenticated]" {
		t.Error(got)
	}
	stranger, err := pki.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := who(a, certified(t, stranger, "alice")); !strings.HasPrefix(got, "error: ") {
		t.Errorf("a stranger's certificate: %s", got)
	}
}

func TestFrontProxy(t *testing.T) {
	a := newAuthn(t, authn.Config{
		RequestHeaderCAs: authority.ClientPool(), RequestHeaderAllowedNames: []string{"proxy"},
		RequestHeaderUsernameHeaders: []string{"X-Remote-User"}, RequestHeaderGroupHeaders: []string{"X-Remote-Group"},
		ClientCAs: authority.ClientPool(),
	})
	r := certified(t, authority, "proxy")
	r.Header.Set("X-Remote-User", "alice")
	r.Header.Set("X-Remote-Group", "dev")
	if got := who(a, r); got != "alice [dev system:authenticated]" {
		t.Error(got)
	}
	if r.Header.Get("X-Remote-User") != "" {
		t.Error("the headers are still there")
	}
	r = certified(t, authority, "mallory")
	r.Header.Set("X-Remote-User", "alice")
	if got := who(a, r); got != "mallory [system:authenticated]" {
		t.Errorf("headers of one who is no proxy: %s", got)
	}
}

func TestAnonymous(t *testing.T) {
	open := newAuthn(t, authn.Config{Anonymous: true})
	health := newAuthn(t, authn.Config{ConfigFile: write(t, "authn.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
`)})
	nobody := newAuthn(t, authn.Config{})
	const anonymous = "system:anonymous [system:unauthenticated]"
	for _, test := range []struct {
		name string
		a    authenticator.Request
		path string
		want string
	}{
		{"open", open, "/api", anonymous},
		{"health", health, "/livez", anonymous},
		{"elsewhere", health, "/api", "nobody"},
		{"zero config", nobody, "/livez", "nobody"},
	} {
		if got := who(test.a, httptest.NewRequest(http.MethodGet, test.path, nil)); got != test.want {
			t.Errorf("%s: %s", test.name, got)
		}
	}
	bad := newAuthn(t, authn.Config{Anonymous: true, ClientCAs: authority.ClientPool(), ServiceAccountKeys: []any{authority.ServiceAccountKey}, Objects: newObjects()})
	if got := who(bad, withToken("wrong")); got != "error: invalid bearer token" {
		t.Errorf("a wrong token: %s", got)
	}
}

func TestTokensAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objs := newObjects()
		cfg := accounts(objs)
		cfg.TokenTTL = 0
		a := newAuthn(t, cfg)
		r := withToken(token(t, newIssuer(t, objs, nil), ask(nil, 600, nil)))
		if got := who(a, r.Clone(t.Context())); got != web {
			t.Fatal(got)
		}
		delete(objs.accounts, "shop/web")
		if got := who(a, r.Clone(t.Context())); got != web {
			t.Errorf("at once: %s", got)
		}
		time.Sleep(11 * time.Second)
		if got := who(a, r.Clone(t.Context())); !strings.HasPrefix(got, "error: ") {
			t.Errorf("after the TTL: %s", got)
		}
	})
}

func TestConfigErrors(t *testing.T) {
	for name, cfg := range map[string]authn.Config{
		"service accounts":                           {ServiceAccountKeys: []any{authority.ServiceAccountKey}},
		"bootstrap tokens":                           {BootstrapTokens: true},
		"--token-auth-file":                          {TokenFile: "none"},
		"--authentication-token-webhook-config-file": {WebhookConfigFile: "none"},
	} {
		if _, err := authn.New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDocuments(t *testing.T) {
	i := newIssuer(t, newObjects(), nil)
	config, age := i.OpenIDConfig()
	want := `{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://192.0.2.1:6443/openid/v1/jwks",` +
		`"response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256"]}`
	if diff := cmp.Diff(want, string(config)); diff != "" || age != 3600 {
		t.Errorf("age %d\n%s", age, diff)
	}
	jwks, _ := i.JWKS()
	var keys struct {
		Keys []struct{ Kty, Crv, Alg, Use, X, D string }
	}
	if err := json.Unmarshal(jwks, &keys); err != nil {
		t.Fatal(err)
	}
	if len(keys.Keys) != 1 || keys.Keys[0].Crv != "P-256" || keys.Keys[0].Use != "sig" || keys.Keys[0].D != "" {
		t.Errorf("keys %+v", keys)
	}
	plain := newIssuer(t, newObjects(), func(cfg *authn.IssuerConfig) { cfg.URL = "kubernetes" })
	if document, _ := plain.JWKS(); document != nil {
		t.Errorf("an issuer that is no URL has keys at %s", document)
	}
	if got := token(t, plain, ask(nil, 600, nil)); got == "" {
		t.Error("an issuer that is no URL makes no tokens")
	}
}

func BenchmarkNew(b *testing.B) {
	objs := newObjects()
	for b.Loop() {
		cfg := authn.Config{
			ClientCAs: authority.ClientPool(), ServiceAccountKeys: []any{authority.ServiceAccountKey}, Objects: objs,
			BootstrapTokens: true, Anonymous: true,
		}
		if _, err := authn.New(b.Context(), cfg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	objs := newObjects()
	i, err := authn.NewIssuer(authn.IssuerConfig{Key: authority.ServiceAccountKey, Objects: objs, Address: "localhost"})
	if err != nil {
		b.Fatal(err)
	}
	resp, err := i.Issue(b.Context(), "shop", "web", ask(nil, 3600, nil), nil)
	if err != nil {
		b.Fatal(err)
	}
	for name, ttl := range map[string]time.Duration{"remembered": time.Minute, "each time": -1} {
		a, err := authn.New(b.Context(), authn.Config{ServiceAccountKeys: []any{authority.ServiceAccountKey}, Objects: objs, TokenTTL: ttl})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			for b.Loop() {
				r.Header.Set("Authorization", "Bearer "+resp.Status.Token)
				if _, ok, err := a.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
