// Package authz decides whether a user may do what a request asks.
//
// In comes a Config with the modes to ask, in order, and where roles are read
// from; out comes an authorizer.Authorizer, the chain of them. The first that
// allows or denies has decided; when none does, the request is not allowed:
//
//	always-allowed paths -> system:masters -> modes in the given order
//
// RBAC reads roles and bindings through Roles, which follows its source: a
// write to a role is in force for the next request. The Node mode reads Nodes.
// Guard keeps users from granting what they do not have.
package authz

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// Modes, as in --authorization-mode.
const (
	AlwaysAllow = "AlwaysAllow"
	AlwaysDeny  = "AlwaysDeny"
	RBAC        = "RBAC"
	Node        = "Node"
	Webhook     = "Webhook"
)

// Config says who decides.
type Config struct {
	// Modes are asked in order; none means RBAC.
	Modes []string
	// AlwaysAllowPaths are open to everyone; a trailing * matches any rest.
	// Nil means the health checks.
	AlwaysAllowPaths []string

	// Roles are what RBAC reads; it is needed in that mode.
	Roles *Roles
	// Nodes is what the Node mode reads; it is needed in that mode.
	Nodes *Nodes

	// WebhookConfigFile is a kubeconfig that says where the Webhook mode asks.
	WebhookConfigFile string
	// WebhookVersion is the version of the SubjectAccessReview that is sent;
	// empty means v1beta1, as upstream.
	WebhookVersion string
	// WebhookAllowedTTL and WebhookDeniedTTL are how long answers are kept;
	// zero means upstream's 5 minutes and 30 seconds.
	WebhookAllowedTTL, WebhookDeniedTTL time.Duration
}

// healthPaths are what probes ask without credentials.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// New returns the authorizer, and what can tell a user's rules.
func New(cfg Config) (authorizer.Authorizer, authorizer.RuleResolver, error) {
	paths := cfg.AlwaysAllowPaths
	if paths == nil {
		paths = healthPaths
	}
	open, err := path.NewAuthorizer(paths)
	if err != nil {
		return nil, nil, fmt.Errorf("authz: always-allowed paths: %w", err)
	}
	modes := cfg.Modes
	if len(modes) == 0 {
		modes = []string{RBAC}
	}
	chain := []authorizer.Authorizer{open, authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)}
	var rules []authorizer.RuleResolver
	for i, mode := range modes {
		if slices.Contains(modes[:i], mode) {
			return nil, nil, fmt.Errorf("authz: mode %s is given twice", mode)
		}
		m, err := cfg.mode(mode)
		if err != nil {
			return nil, nil, fmt.Errorf("authz: mode %s: %w", mode, err)
		}
		chain = append(chain, m)
		rules = append(rules, m)
	}
	return union.New(chain...), union.NewRuleResolvers(rules...), nil
}

// decider is what every mode is.
type decider interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

func (cfg Config) mode(mode string) (decider, error) {
	switch mode {
	case AlwaysAllow:
		return authorizerfactory.NewAlwaysAllowAuthorizer(), nil
	case AlwaysDeny:
		return authorizerfactory.NewAlwaysDenyAuthorizer(), nil
	case RBAC:
		if cfg.Roles == nil {
			return nil, errors.New("no roles to read")
		}
		return newRBAC(cfg.Roles), nil
	case Node:
		if cfg.Nodes == nil {
			return nil, errors.New("nothing is known of nodes")
		}
		return node.NewAuthorizer(cfg.Nodes.graph, nodeidentifier.NewDefaultNodeIdentifier(), bootstrappolicy.NodeRules()), nil
	case Webhook:
		return cfg.webhook()
	}
	return nil, fmt.Errorf("unknown; the modes are %s",
		strings.Join([]string{AlwaysAllow, AlwaysDeny, RBAC, Node, Webhook}, ", "))
}

// webhookBackoff is upstream's for both of its authentication and
// authorization webhooks.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

func (cfg Config) webhook() (decider, error) {
	if cfg.WebhookConfigFile == "" {
		return nil, errors.New("no kubeconfig that says where to ask")
	}
	client, err := webhookutil.LoadKubeconfig(cfg.WebhookConfigFile, nil)
	if err != nil {
		return nil, err
	}
	version, allowed, denied := cfg.WebhookVersion, cfg.WebhookAllowedTTL, cfg.WebhookDeniedTTL
	if version == "" {
		version = "v1beta1"
	}
	if allowed == 0 {
		allowed = 5 * time.Minute
	}
	if denied == 0 {
		denied = 30 * time.Second
	}
	return webhook.New(client, version, allowed, denied, webhookBackoff, authorizer.DecisionNoOpinion,
		nil, "webhook", webhookmetrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
}

// quote keeps names that users choose from looking like markup in a browser.
var quote = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// Forbidden is the API error for a request that is not allowed; reason may be
// empty.
//
// Compat: the sentence is upstream's, which people and tools search for.
func Forbidden(attrs authorizer.Attributes, reason string) error {
	var who string
	if u := attrs.GetUser(); u != nil {
		who = u.GetName()
	}
	resource := attrs.GetResource()
	if sub := attrs.GetSubresource(); sub != "" {
		resource += "/" + sub
	}
	var what string
	switch {
	case !attrs.IsResourceRequest():
		what = fmt.Sprintf("User %q cannot %s path %q", who, attrs.GetVerb(), attrs.GetPath())
	case attrs.GetNamespace() != "":
		what = fmt.Sprintf("User %q cannot %s resource %q in API group %q in the namespace %q",
			who, attrs.GetVerb(), resource, attrs.GetAPIGroup(), attrs.GetNamespace())
	default:
		what = fmt.Sprintf("User %q cannot %s resource %q in API group %q at the cluster scope",
			who, attrs.GetVerb(), resource, attrs.GetAPIGroup())
	}
	what = quote.Replace(what)
	if reason != "" {
		what += ": " + reason
	}
	gr := schema.GroupResource{Group: attrs.GetAPIGroup(), Resource: attrs.GetResource()}
	return apierrors.NewForbidden(gr, attrs.GetName(), errors.New(what))
}
