// Package authz decides whether a user may do what a request asks.
//
// In comes a Config with the modes to ask, in order, or a file that says so,
// and where roles are read from; out comes the Chain of them. The first that
// allows or denies has decided; when none does, the request is not allowed:
//
//	always-allowed paths -> system:masters -> modes in the given order
//
// config.go reads the order; a mode is made once and kept when the order
// changes. RBAC reads roles and bindings through Roles, which follows its source: a
// write to a role is in force for the next request. The Node mode reads Nodes.
// Guard keeps users from granting what they do not have.
package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
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
	ABAC        = "ABAC"
	Webhook     = "Webhook"
)

// modes are all of them; only Webhook may be there more than once.
var modes = sets.New(AlwaysAllow, AlwaysDeny, RBAC, Node, ABAC, Webhook)

// Config says who decides.
type Config struct {
	// Modes are asked in order; none means RBAC.
	Modes []string
	// ConfigFile is an AuthorizationConfiguration, instead of Modes and
	// Webhook*. Run follows its changes.
	ConfigFile string
	// AlwaysAllowPaths are open to everyone; a trailing * matches any rest.
	// Nil means the health checks.
	AlwaysAllowPaths []string

	// Roles are what RBAC reads; it is needed in that mode.
	Roles *Roles
	// Nodes is what the Node mode reads; it is needed in that mode.
	Nodes *Nodes

	// PolicyFile has the policies of the ABAC mode, one in a line.
	PolicyFile string

	// WebhookConfigFile is a kubeconfig that says where the Webhook mode asks.
	WebhookConfigFile string
	// WebhookVersion is the version of the SubjectAccessReview that is sent;
	// empty means v1beta1, as upstream.
	WebhookVersion string
	// WebhookAllowedTTL and WebhookDeniedTTL are how long answers are kept;
	// zero means upstream's 5 minutes and 30 seconds, negative not at all.
	WebhookAllowedTTL, WebhookDeniedTTL time.Duration

	// Logger hears of configuration files that cannot be used; nil means
	// slog.Default.
	Logger *slog.Logger
}

// healthPaths are what probes ask without credentials.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// Chain decides, and can tell a user's rules.
type Chain struct {
	cfg Config
	// first are asked before the modes.
	first []authorizer.Authorizer
	// made are the modes but Webhook, which never change.
	made    map[string]decider
	current atomic.Pointer[order]
	data    []byte // what the configuration file held when it was read
}

// order is who is asked, in order.
type order struct {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// decider is what every mode is.
type decider interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// New returns the chain.
func New(cfg Config) (*Chain, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	paths := cfg.AlwaysAllowPaths
	if paths == nil {
		paths = healthPaths
	}
	open, err := path.NewAuthorizer(paths)
	if err != nil {
		return nil, fmt.Errorf("authz: always-allowed paths: %w", err)
	}
	c := &Chain{
		cfg: cfg, made: map[string]decider{},
		first: []authorizer.Authorizer{open, authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	}
	config, err := c.configure()
	if err != nil {
		return nil, fmt.Errorf("authz: %w", err)
	}
	next, err := c.order(config, func(mode string) (decider, error) {
		made, err := cfg.mode(mode)
		c.made[mode] = made
		return made, err
	})
	if err != nil {
		return nil, fmt.Errorf("authz: %w", err)
	}
	c.current.Store(next)
	return c, nil
}

// Authorize implements authorizer.Authorizer.
func (c *Chain) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	return c.current.Load().Authorize(ctx, attrs)
}

// RulesFor implements authorizer.RuleResolver.
func (c *Chain) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return c.current.Load().RulesFor(ctx, u, namespace)
}

// order is a configuration at work; mode gives the modes but Webhook.
func (c *Chain) order(config *apiserver.AuthorizationConfiguration, mode func(string) (decider, error)) (*order, error) {
	chain := slices.Clone(c.first)
	var rules []authorizer.RuleResolver
	for _, a := range config.Authorizers {
		var m decider
		var err error
		if a.Type == apiserver.TypeWebhook {
			m, err = webhookMode(a)
		} else {
			m, err = mode(string(a.Type))
		}
		if err != nil {
			return nil, fmt.Errorf("mode %s: %w", a.Type, err)
		}
		chain, rules = append(chain, m), append(rules, m)
	}
	return &order{union.New(chain...), union.NewRuleResolvers(rules...)}, nil
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
	case ABAC:
		if cfg.PolicyFile == "" {
			return nil, errors.New("--authorization-policy-file is needed")
		}
		return abac.NewFromFile(cfg.PolicyFile)
	}
	return nil, fmt.Errorf("unknown; the modes are %s", strings.Join(sets.List(modes), ", "))
}

// webhookBackoff is upstream's for both of its authentication and
// authorization webhooks.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

func webhookMode(a apiserver.AuthorizerConfiguration) (decider, error) {
	if a.Webhook.ConnectionInfo.KubeConfigFile == nil {
		return nil, fmt.Errorf("%s: connectionInfo of type %s is not served: there is no pod around this server", a.Name, a.Webhook.ConnectionInfo.Type)
	}
	client, err := webhookutil.LoadKubeconfig(*a.Webhook.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", *a.Webhook.ConnectionInfo.KubeConfigFile, err)
	}
	client.Timeout = a.Webhook.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if a.Webhook.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	var allowed, denied time.Duration
	if a.Webhook.CacheAuthorizedRequests {
		allowed = a.Webhook.AuthorizedTTL.Duration
	}
	if a.Webhook.CacheUnauthorizedRequests {
		denied = a.Webhook.UnauthorizedTTL.Duration
	}
	return webhook.New(client, a.Webhook.SubjectAccessReviewVersion, allowed, denied, webhookBackoff, onError,
		a.Webhook.MatchConditions, a.Name, webhookmetrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
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
