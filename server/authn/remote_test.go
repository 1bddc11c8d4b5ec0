package authn_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"

	"setpoint.dev/setpoint/server/authn"
)

// patience bounds every wait for an issuer, which is looked for every 10
// seconds.
const patience = 2 * time.Minute

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// provider issues identity tokens and serves the documents about them.
type provider struct {
	*httptest.Server
	key *rsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := stoppedProvider(t)
	p.StartTLS()
	return p
}

// stoppedProvider has an address, where nobody answers before StartTLS.
func stoppedProvider(t *testing.T) *provider {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(p.documents))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) documents(w http.ResponseWriter, r *http.Request) {
	var document any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		document = map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys", "id_token_signing_alg_values_supported": []string{"RS256"}}
	case "/keys":
		document = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "1", Algorithm: "RS256", Use: "sig"}}}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document)
}

func (p *provider) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
}

// token has claims, over those of a good token for the client app; nil takes
// one away.
func (p *provider) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{
		"iss": p.URL, "aud": "app", "sub": "alice", "email": "alice@example.org", "email_verified": true,
		"groups": []string{"dev", "ops"}, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	}
	for name, value := range claims {
		all[name] = value
		if value == nil {
			delete(all, name)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: p.key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(all).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// eventually asks who a token's user is until it is the wanted one.
func eventually(t *testing.T, a *authn.Authenticator, token, want string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = who(a, withToken(token)); got == want {
			return
		}
	}
	t.Fatalf("after %s it is %q, not %q", patience, got, want)
}

func TestOIDC(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	other := newProvider(t)
	ca := write(t, "ca.crt", p.ca())
	plain := authn.OIDC{IssuerURL: p.URL, ClientID: "app", CAFile: ca}
	with := func(change func(*authn.OIDC)) authn.OIDC {
		o := plain
		change(&o)
		return o
	}
	grouped := with(func(o *authn.OIDC) { o.GroupsClaim, o.GroupsPrefix, o.UsernamePrefix = "groups", "g:", "u:" })
	byEmail := with(func(o *authn.OIDC) { o.UsernameClaim = "email" })
	bare := with(func(o *authn.OIDC) { o.UsernamePrefix = "-" })
	strict := with(func(o *authn.OIDC) { o.RequiredClaims, o.UsernamePrefix = map[string]string{"team": "red"}, "-" })
	otherAlgorithm := with(func(o *authn.OIDC) { o.SigningAlgorithms = []string{"ES256"} })
	set := func(name string, value any) map[string]any { return map[string]any{name: value} }
	const invalid = "error: invalid bearer token"
	tests := []struct {
		name  string
		oidc  authn.OIDC
		token string
		want  string // a prefix
	}{
		{"good", plain, p.token(t, nil), p.URL + "#alice [system:authenticated]"},
		{"no prefix", bare, p.token(t, nil), "alice [system:authenticated]"},
		{"groups and prefixes", grouped, p.token(t, nil), "u:alice [g:dev g:ops system:authenticated]"},
		{"one group as text", grouped, p.token(t, set("groups", "dev")), "u:alice [g:dev system:authenticated]"},
		{"email has no prefix", byEmail, p.token(t, nil), "alice@example.org [system:authenticated]"},
		{"email not verified", byEmail, p.token(t, set("email_verified", false)), "error: oidc: email not verified"},
		{"required claim", strict, p.token(t, set("team", "red")), "alice [system:authenticated]"},
		{"required claim missing", strict, p.token(t, nil), "error: oidc: required claim team not present in ID token"},
		{"required claim wrong", strict, p.token(t, set("team", "blue")), "error: oidc: required claim team value does not match"},
		{"wrong audience", plain, p.token(t, set("aud", "shop")), `error: oidc: verify token: oidc: expected audience "app" got ["shop"]`},
		{"expired", plain, p.token(t, set("exp", time.Now().Add(-time.Hour).Unix())), "error: oidc: verify token: oidc: token is expired"},
		{"wrong issuer", plain, p.token(t, set("iss", "https://elsewhere")), invalid},
		{"another's key", plain, other.token(t, set("iss", p.URL)), "error: oidc: verify token: failed to verify signature"},
		{"no name", plain, p.token(t, set("sub", nil)), "error: oidc: parse username claims"},
		{"another algorithm", otherAlgorithm, p.token(t, nil), "error: oidc: verify token: oidc: "},
		{"no token at all", plain, "x", invalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := accounts(newObjects()) // the other reader of such tokens
			cfg.OIDC = test.oidc
			a := newAuthn(t, cfg)
			var got string
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				if got = who(a, withToken(test.token)); !strings.Contains(got, "not initialized") {
					break
				}
			}
			if !strings.HasPrefix(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestIssuerThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	p := stoppedProvider(t)
	address := p.Listener.Addr().String()
	_ = p.Listener.Close() // nobody listens there
	known := newProvider(t)
	cfg := accounts(newObjects())
	cfg.OIDC = authn.OIDC{IssuerURL: "https://" + address, ClientID: "app", CAFile: write(t, "ca.crt", known.ca()), UsernamePrefix: "-"}
	cfg.TokenFile = write(t, "tokens.csv", "s3cret,bob,1\n")
	a := newAuthn(t, cfg)
	p.URL = "https://" + address
	token := p.token(t, nil)
	if got := who(a, withToken(token)); !strings.Contains(got, "oidc: authenticator not initialized") {
		t.Errorf("while it is down: %s", got)
	}
	if got := who(a, withToken("s3cret")); got != "bob [system:authenticated]" {
		t.Errorf("another's token while it is down: %s", got)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the issuer's address was taken meanwhile: %v", err)
	}
	p.Listener, p.URL = listener, ""
	p.StartTLS()
	eventually(t, a, token, "alice [system:authenticated]")
}

func configOf(p *provider, prefix string) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [app, shop]
    audienceMatchPolicy: MatchAny
    certificateAuthority: %q
  claimValidationRules:
  - expression: "!has(claims.banned)"
    message: banned
  claimMappings:
    username: {claim: sub, prefix: %q}
    groups: {expression: claims.groups}
`, p.URL, p.ca(), prefix)
}

func TestConfigurationFile(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	cfg := accounts(newObjects())
	cfg.ConfigFile = write(t, "authn.yaml", configOf(p, "one:"))
	a := newAuthn(t, cfg)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	eventually(t, a, p.token(t, map[string]any{"aud": "shop"}), "one:alice [dev ops system:authenticated]")
	if got := who(a, withToken(p.token(t, map[string]any{"banned": true}))); !strings.Contains(got, "banned") {
		t.Errorf("a banned user: %s", got)
	}
	rewrite := func(content string) {
		if err := os.WriteFile(cfg.ConfigFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("no configuration")
	rewrite(configOf(p, "two:"))
	eventually(t, a, p.token(t, nil), "two:alice [dev ops system:authenticated]")
}

// reviewer answers token reviews: alice for the token "remote", an error for
// "trouble". It counts what it is asked.
type reviewer struct {
	*httptest.Server
	asked atomic.Int32
	down  atomic.Bool
}

func newReviewer(t *testing.T) (r *reviewer, kubeconfig string) {
	t.Helper()
	r = &reviewer{}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked.Add(1)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || r.down.Load() {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		review.Status.Authenticated = review.Spec.Token == "remote"
		review.Status.User = authenticationv1.UserInfo{Username: "alice", Groups: []string{"far"}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(r.Close)
	config, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{
			"server": r.URL, "certificate-authority-data": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}),
		}}},
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, write(t, "webhook.kubeconfig", string(config))
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	r, kubeconfig := newReviewer(t)
	for _, version := range []string{"v1", "v1beta1"} {
		a := newAuthn(t, authn.Config{WebhookConfigFile: kubeconfig, WebhookVersion: version})
		if got := who(a, withToken("remote")); got != "alice [far system:authenticated]" {
			t.Error(got)
		}
		if got := who(a, withToken("wrong")); got != "error: invalid bearer token" {
			t.Error(got)
		}
	}
	for _, test := range []struct {
		name string
		ttl  time.Duration
		want int32
	}{{"kept", 0, 1}, {"not kept", -1, 3}} {
		t.Run(test.name, func(t *testing.T) {
			a := newAuthn(t, authn.Config{WebhookConfigFile: kubeconfig, WebhookVersion: "v1", WebhookTTL: test.ttl, TokenTTL: -1})
			before := r.asked.Load()
			for range 3 {
				who(a, withToken("remote"))
			}
			if asked := r.asked.Load() - before; asked != test.want {
				t.Errorf("asked %d times, want %d", asked, test.want)
			}
		})
	}
}

func TestWebhookDown(t *testing.T) {
	t.Parallel()
	r, kubeconfig := newReviewer(t)
	r.down.Store(true)
	a := newAuthn(t, authn.Config{
		WebhookConfigFile: kubeconfig, WebhookVersion: "v1", TokenTTL: -1, Anonymous: true,
		TokenFile: write(t, "tokens.csv", "s3cret,bob,1\n"),
	})
	if got := who(a, withToken("remote")); !strings.Contains(got, "the server is currently unable to handle the request") {
		t.Errorf("while it is down: %s", got)
	}
	if got := who(a, withToken("s3cret")); got != "bob [system:authenticated]" {
		t.Errorf("another's token while it is down: %s", got)
	}
	if got := who(a, httptest.NewRequest(http.MethodGet, "/", nil)); got != "system:anonymous [system:unauthenticated]" {
		t.Errorf("without a token while it is down: %s", got)
	}
	r.down.Store(false)
	if got := who(a, withToken("remote")); got != "alice [far system:authenticated]" {
		t.Errorf("when it is up again: %s", got)
	}
}

func TestRemoteConfigErrors(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	anonymous := head + "anonymous: {enabled: false}\n"
	for _, test := range []struct {
		name string
		cfg  authn.Config
		want string
	}{
		{"issuer without client", authn.Config{OIDC: authn.OIDC{IssuerURL: "https://x"}}, "--oidc-issuer-url and --oidc-client-id have to be given"},
		{"claim without issuer", authn.Config{OIDC: authn.OIDC{GroupsClaim: "groups"}}, "--oidc-issuer-url and --oidc-client-id have to be given"},
		{"issuer not secure", authn.Config{OIDC: authn.OIDC{IssuerURL: "http://x", ClientID: "a"}}, "--oidc-* flags: "},
		{"our own issuer", authn.Config{OIDC: authn.OIDC{IssuerURL: authn.DefaultIssuer, ClientID: "a"}}, "--oidc-* flags: "},
		{"algorithm", authn.Config{OIDC: authn.OIDC{IssuerURL: "https://x", ClientID: "a", SigningAlgorithms: []string{"none"}}}, `unsupported signing alg: "none"`},
		{"ca", authn.Config{OIDC: authn.OIDC{IssuerURL: "https://x", ClientID: "a", CAFile: "none"}}, "--oidc-ca-file: open none"},
		{"flags and file", authn.Config{OIDC: authn.OIDC{IssuerURL: "https://x"}, ConfigFile: "y"}, "--authentication-config and --oidc-* flags exclude"},
		{"no file", authn.Config{ConfigFile: "none"}, "--authentication-config: open none"},
		{"another kind", authn.Config{ConfigFile: write(t, "f", "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n")}, "AuthorizationConfiguration, not *apiserver.AuthenticationConfiguration"},
		{"unknown field", authn.Config{ConfigFile: write(t, "f", head+"jwts: []\n")}, `unknown field "jwts"`},
		{"invalid", authn.Config{ConfigFile: write(t, "f", head+"jwt: [{issuer: {url: 'http://x'}}]\n")}, "jwt[0].issuer.url: Invalid value"},
		{"anonymous twice", authn.Config{ConfigFile: write(t, "f", anonymous), AnonymousGiven: true}, "--anonymous-auth cannot be given"},
		{"webhook version", authn.Config{WebhookConfigFile: func() string { _, f := newReviewer(t); return f }(), WebhookVersion: "v7"}, "unsupported"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := authn.New(t.Context(), test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
