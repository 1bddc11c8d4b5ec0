package app_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/server/authn"
)

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func start(t *testing.T, access app.Access) *apptest.Plane {
	t.Helper()
	return apptest.StartOn(t, app.Config{Data: app.Memory, Access: access})
}

// as is a client of a plane with other credentials than the admin's.
func as(t *testing.T, p *apptest.Plane, change func(*rest.Config)) *kubernetes.Clientset {
	t.Helper()
	cfg := rest.AnonymousClientConfig(p.Config)
	change(cfg)
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func bearer(token string) func(*rest.Config) {
	return func(cfg *rest.Config) { cfg.BearerToken = token }
}

func nobody(*rest.Config) {}

func whoami(t *testing.T, c *kubernetes.Clientset) (string, error) {
	t.Helper()
	review, err := c.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// webhook is a kubeconfig of a server that answers reviews.
func webhook(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) string {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(answer))
	t.Cleanup(s.Close)
	return write(t, "webhook.kubeconfig", fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, users: [{name: u}],
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`, s.URL))
}

func TestClientCA(t *testing.T) {
	other, err := pki.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := other.IssueClient("carol", nil)
	if err != nil {
		t.Fatal(err)
	}
	carol := func(cfg *rest.Config) { cfg.CertData, cfg.KeyData = cert, key }
	p := start(t, app.Access{ClientCAFile: write(t, "ca.crt", other.CACert)})
	if got, err := whoami(t, as(t, p, carol)); got != "carol" {
		t.Errorf("with the file: %q, %v", got, err)
	}
	admin := kubernetes.NewForConfigOrDie(p.Config)
	trust, err := admin.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil || strings.Count(trust.Data["client-ca-file"], "BEGIN CERTIFICATE") != 2 {
		t.Errorf("extension servers are told %v, %v", trust.Data, err)
	}
	if _, err := whoami(t, as(t, start(t, app.Access{}), carol)); !apierrors.IsUnauthorized(err) {
		t.Errorf("without the file: %v", err)
	}
}

func TestAnonymous(t *testing.T) {
	no := false
	for _, test := range []struct {
		name   string
		access app.Access
		want   bool
	}{
		{"by default", app.Access{}, true},
		{"not wanted", app.Access{Anonymous: &no}, false},
		{"when all may do all", app.Access{AuthorizationModes: []string{"AlwaysAllow"}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := as(t, start(t, test.access), nobody).Discovery().ServerVersion()
			if (err == nil) != test.want || err != nil && !apierrors.IsUnauthorized(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestServiceAccountIssuer(t *testing.T) {
	p := start(t, app.Access{ServiceAccountIssuers: []string{"https://new.example", "https://old.example"}})
	admin := kubernetes.NewForConfigOrDie(p.Config)
	accounts := admin.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	made, err := accounts.CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(made.Status.Token, ".")[1])
	if err != nil || !strings.Contains(string(body), `"aud":["https://new.example","https://old.example"]`) || !strings.Contains(string(body), `"iss":"https://new.example"`) {
		t.Errorf("the token says %s, %v", body, err)
	}
	if got, err := whoami(t, as(t, p, bearer(made.Status.Token))); got != "system:serviceaccount:default:robot" {
		t.Errorf("it is %q, %v", got, err)
	}
}

func TestOthersVouchAndDecide(t *testing.T) {
	tokens := webhook(t, func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status.Authenticated = true
		review.Status.User.Username = review.Spec.Token
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})
	access := webhook(t, func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		if review.Spec.User == "trouble" {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		review.Status.Allowed = review.Spec.User == "alice"
		review.Status.Reason = "ask alice"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})
	p := start(t, app.Access{
		TokenWebhook:       app.Webhook{ConfigFile: tokens, Version: "v1"},
		AuthorizationModes: []string{"RBAC", "Webhook"},
		AccessWebhook:      app.Webhook{ConfigFile: access, Version: "v1"},
		// An issuer that is down: nothing waits for it.
		OIDC: authn.OIDC{IssuerURL: "https://127.0.0.1:1", ClientID: "app"},
	})
	list := func(ctx context.Context, user string) error {
		_, err := as(t, p, bearer(user)).CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(t.Context(), "alice"); err != nil {
		t.Errorf("alice: %v", err)
	}
	if err := list(t.Context(), "bob"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ask alice") {
		t.Errorf("bob: %v", err)
	}
	if err := list(t.Context(), "trouble"); !apierrors.IsInternalError(err) {
		t.Errorf("while the webhook is down: %v", err)
	}
	if _, err := kubernetes.NewForConfigOrDie(p.Config).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the admin: %v", err)
	}
}

func TestAccessThatCannotBe(t *testing.T) {
	for _, test := range []struct {
		access app.Access
		want   string
	}{
		{app.Access{ClientCAFile: "none"}, "--client-ca-file: open none"},
		{app.Access{ClientCAFile: write(t, "ca.crt", []byte("x"))}, "--client-ca-file: no certificates in"},
		{app.Access{ServiceAccountIssuers: []string{""}}, "--service-account-issuer is empty"},
		{app.Access{ServiceAccountIssuers: []string{"a", "a"}}, `--service-account-issuer: "a" is given twice`},
		{app.Access{ServiceAccountIssuers: []string{"http://[x"}}, "has a colon and is no URL"},
		{app.Access{OIDC: authn.OIDC{ClientID: "app"}}, "--oidc-issuer-url"},
		{app.Access{AuthorizationModes: []string{"Webhook"}}, "--authorization-webhook-config-file"},
		{app.Access{AuthorizationConfig: "f", AuthorizationModes: []string{"RBAC"}}, "--authorization-config"},
	} {
		a, err := app.Open(t.Context(), app.Config{Data: app.Memory, Listen: "127.0.0.1:0", Access: test.access, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test.access, err)
		}
		if err == nil {
			_ = a.Close()
		}
	}
}
