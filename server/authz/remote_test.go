package authz_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/server/authz"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// reviewer answers access reviews: alice may, mallory is denied, and of others
// it has no opinion. It counts what it is asked.
type reviewer struct {
	asked atomic.Int32
	down  atomic.Bool
}

func newReviewer(t *testing.T) (r *reviewer, kubeconfig string) {
	t.Helper()
	r = &reviewer{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil || r.down.Load() {
			http.Error(w, "closed", http.StatusServiceUnavailable)
			return
		}
		review.Status.Allowed = review.Spec.User == "alice"
		review.Status.Denied = review.Spec.User == "mallory"
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return r, write(t, "webhook.kubeconfig", fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, users: [{name: u}],
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`, server.URL))
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	r, kubeconfig := newReviewer(t)
	for _, version := range []string{"v1", "v1beta1", ""} {
		a, _ := newAuthz(t, authz.Config{Modes: []string{"Webhook", "AlwaysAllow"}, WebhookConfigFile: kubeconfig, WebhookVersion: version})
		for name, want := range map[string]bool{"alice": true, "bob": true, "mallory": false} {
			if got := allowed(t, a, on(who(name), "list", "pods", "", "")); got != want {
				t.Errorf("%s %s: allowed is %v", version, name, got)
			}
		}
	}
	for _, test := range []struct {
		name string
		ttl  time.Duration
		want int32
	}{{"kept", 0, 2}, {"not kept", -1, 6}} {
		t.Run(test.name, func(t *testing.T) {
			a, _ := newAuthz(t, authz.Config{
				Modes: []string{"Webhook"}, WebhookConfigFile: kubeconfig, WebhookVersion: "v1", WebhookAllowedTTL: test.ttl, WebhookDeniedTTL: test.ttl,
			})
			before := r.asked.Load()
			for range 3 {
				allowed(t, a, on(who("alice"), "list", "pods", "", ""))
				allowed(t, a, on(who("bob"), "list", "pods", "", ""))
			}
			if asked := r.asked.Load() - before; asked != test.want {
				t.Errorf("asked %d times, want %d", asked, test.want)
			}
		})
	}
}

// config is a configuration file that asks a webhook about all but secrets.
func config(kubeconfig, policy, then string) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: far
  webhook:
    authorizedTTL: 5m
    unauthorizedTTL: 30s
    timeout: 3s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: %s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: "!has(request.resourceAttributes) || request.resourceAttributes.resource != 'secrets'"
- {type: %s, name: %s}
`, policy, kubeconfig, then, strings.ToLower(then))
}

func TestWebhookDown(t *testing.T) {
	t.Parallel()
	r, kubeconfig := newReviewer(t)
	r.down.Store(true)
	pods := on(who("alice"), "list", "pods", "", "")
	for _, test := range []struct {
		name string
		cfg  authz.Config
		want authorizer.Decision
		err  string
	}{
		{"asked alone", authz.Config{Modes: []string{"Webhook"}, WebhookConfigFile: kubeconfig, WebhookVersion: "v1"}, authorizer.DecisionNoOpinion, "unable to handle the request"},
		{"before another", authz.Config{Modes: []string{"Webhook", "AlwaysAllow"}, WebhookConfigFile: kubeconfig, WebhookVersion: "v1"}, authorizer.DecisionAllow, "unable to handle the request"},
		{"no opinion", authz.Config{ConfigFile: write(t, "f", config(kubeconfig, "NoOpinion", "AlwaysAllow"))}, authorizer.DecisionAllow, "unable to handle the request"},
		{"denies", authz.Config{ConfigFile: write(t, "f", config(kubeconfig, "Deny", "AlwaysAllow"))}, authorizer.DecisionDeny, "unable to handle the request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			a, _ := newAuthz(t, test.cfg)
			decision, _, err := a.Authorize(t.Context(), pods)
			if decision != test.want || err == nil && test.want != authorizer.DecisionAllow || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("decision %v, error %v", decision, err)
			}
		})
	}
}

func TestABAC(t *testing.T) {
	file := write(t, "policy.jsonl", `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"shop","resource":"pods","readonly":true}}
`)
	a, _ := newAuthz(t, authz.Config{Modes: []string{"ABAC"}, PolicyFile: file})
	for _, test := range []struct {
		attrs authorizer.AttributesRecord
		want  bool
	}{
		{on(who("alice"), "list", "pods", "shop", ""), true},
		{on(who("alice"), "create", "pods", "shop", ""), false},
		{on(who("bob"), "list", "pods", "shop", ""), false},
	} {
		if got := allowed(t, a, test.attrs); got != test.want {
			t.Errorf("%s %s: allowed is %v", test.attrs.User.GetName(), test.attrs.Verb, got)
		}
	}
}

func TestConfigurationFile(t *testing.T) {
	t.Parallel()
	r, kubeconfig := newReviewer(t)
	file := write(t, "authz.yaml", config(kubeconfig, "NoOpinion", "AlwaysDeny"))
	chain, err := authz.New(authz.Config{ConfigFile: file})
	if err != nil {
		t.Fatal(err)
	}
	pods, secrets := on(who("alice"), "list", "pods", "", ""), on(who("alice"), "list", "secrets", "", "")
	if !allowed(t, chain, pods) {
		t.Error("the webhook is not asked about pods")
	}
	before := r.asked.Load()
	if allowed(t, chain, secrets) || r.asked.Load() != before {
		t.Error("the webhook is asked about secrets")
	}
	ended := make(chan error, 1)
	go func() { ended <- chain.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	rewrite := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("no configuration")
	rewrite(config(kubeconfig, "NoOpinion", "AlwaysAllow")) // a mode of the start is gone
	rewrite(config(kubeconfig, "NoOpinion", "AlwaysAllow") + "- {type: AlwaysDeny, name: alwaysdeny}\n")
	for deadline := time.Now().Add(time.Minute); !allowed(t, chain, secrets); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the new configuration is not in effect")
		}
	}
}

func TestConfigurationFileErrors(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n"
	_, kubeconfig := newReviewer(t)
	cluster := strings.Replace(config(kubeconfig, "Deny", "AlwaysAllow"), "{type: KubeConfigFile, kubeConfigFile: "+kubeconfig+"}", "{type: InClusterConfig}", 1)
	for _, test := range []struct{ name, content, want string }{
		{"empty", head, "at least one authorization mode"},
		{"unknown type", head + "authorizers: [{type: Chance, name: chance}]\n", `Unsupported value: "Chance"`},
		{"wrong name", head + "authorizers: [{type: AlwaysAllow, name: open}]\n", "expected name alwaysallow for authorizer AlwaysAllow instead of open"},
		{"unknown field", head + "authorisers: []\n", `unknown field "authorisers"`},
		{"no policies", head + "authorizers: [{type: ABAC, name: abac}]\n", "mode ABAC: --authorization-policy-file is needed"},
		{"condition", strings.Replace(config(kubeconfig, "Deny", "AlwaysAllow"), "!has(", "!is(", 1), "matchConditions"},
		{"in a cluster", cluster, "InClusterConfig is not served"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := authz.New(authz.Config{ConfigFile: write(t, "f", test.content)}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}
