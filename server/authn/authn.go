// Package authn says who makes a request.
//
// In comes a Config with everyone who may vouch for a user; out comes an
// authenticator.Request over upstream's parts, asked in upstream's order until
// one of them knows the user:
//
//	front proxy headers -> client certificate -> bearer token -> anonymous
//
// and for a token, local before remote:
//
//	token file -> service account -> bootstrap token -> OIDC -> webhook
//
// A token that somebody claims and finds wrong makes the request
// unauthenticated, not anonymous. Answers about tokens are kept for a short
// time. Issuer makes service account tokens; Impersonate lets one user act as
// another.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	certificate "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// DefaultIssuer is who service account tokens are from, unless said otherwise.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// Config says who vouches for users. With the zero value nobody does.
type Config struct {
	// ClientCAs verify client certificates, whose common name is the user and
	// whose organizations are the groups.
	ClientCAs *x509.CertPool

	// Audiences are whom tokens must be meant for; none means
	// ServiceAccountIssuers.
	Audiences []string

	// ServiceAccountKeys verify service account tokens: public keys, or
	// private ones, of which the public part is used. Objects must be set, too.
	ServiceAccountKeys []any
	// ServiceAccountIssuers are who the tokens may be from; none means
	// DefaultIssuer.
	ServiceAccountIssuers []string
	// Objects are what tokens are about and bound to.
	Objects Objects
	// Secrets notes the use of tokens that are kept in secrets; nil does not.
	Secrets SecretPatcher

	// BootstrapTokens makes secrets of type bootstrap.kubernetes.io/token in
	// kube-system valid tokens; it needs Objects.
	BootstrapTokens bool

	// TokenFile names a CSV file: token, user name, uid, groups.
	TokenFile string

	// OIDC is an issuer of identity tokens.
	OIDC OIDC
	// ConfigFile is an AuthenticationConfiguration: issuers of identity tokens,
	// instead of OIDC, and who may be anonymous. Run follows its changes.
	ConfigFile string

	// WebhookConfigFile is a kubeconfig that says who is asked about tokens
	// that nobody else knows.
	WebhookConfigFile string
	// WebhookVersion is the version of the TokenReview that is sent; empty
	// means v1beta1, as upstream.
	WebhookVersion string
	// WebhookTTL is how long its answers are kept; zero means 2 minutes,
	// negative not at all.
	WebhookTTL time.Duration

	// RequestHeaderCAs verify the certificates of front proxies, which say in
	// headers who makes a request. RequestHeaderAllowedNames are the common
	// names they may have; none means any.
	RequestHeaderCAs               *x509.CertPool
	RequestHeaderAllowedNames      []string
	RequestHeaderUsernameHeaders   []string
	RequestHeaderUIDHeaders        []string
	RequestHeaderGroupHeaders      []string
	RequestHeaderExtraHeadersStart []string

	// Anonymous lets requests without credentials in as system:anonymous,
	// unless ConfigFile says otherwise. AnonymousGiven says that somebody has
	// decided so: a file that says anything about it is then refused.
	Anonymous, AnonymousGiven bool

	// TokenTTL is how long it is believed that a token is valid; zero means 10
	// seconds, negative not at all. It is also how long a token outlives the
	// pod or service account it is bound to.
	TokenTTL time.Duration

	// Logger hears of configuration files that cannot be used; nil means
	// slog.Default.
	Logger *slog.Logger
}

// Authenticator says who makes a request.
type Authenticator struct {
	authenticator.Request
	issuers *issuers // nil when there are none
	logger  *slog.Logger
}

// Run follows the configuration file, if there is one, until ctx ends.
func (a *Authenticator) Run(ctx context.Context) error {
	if a.issuers != nil && a.issuers.cfg.ConfigFile != "" {
		a.issuers.follow(ctx, a.logger)
	}
	return nil
}

// New returns what authenticates requests. Issuers of identity tokens are
// looked for from now on, until ctx ends. When nobody vouches for users, every
// request is unauthenticated.
func New(ctx context.Context, cfg Config) (*Authenticator, error) {
	if len(cfg.ServiceAccountIssuers) == 0 {
		cfg.ServiceAccountIssuers = []string{DefaultIssuer}
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = cfg.ServiceAccountIssuers
	}
	if cfg.TokenTTL == 0 {
		cfg.TokenTTL = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}

	var requests []authenticator.Request
	if cfg.RequestHeaderCAs != nil {
		requests = append(requests, authenticator.WrapAudienceAgnosticRequest(cfg.Audiences, cfg.frontProxy()))
	}
	if cfg.ClientCAs != nil {
		requests = append(requests, certificate.NewDynamic(verifyWith(cfg.ClientCAs), certificate.CommonNameUserConversion))
	}
	issuers, err := newIssuers(ctx, &cfg)
	if err != nil {
		return nil, fmt.Errorf("authn: %w", err)
	}
	allowed := apiserver.AnonymousAuthConfig{Enabled: cfg.Anonymous}
	if issuers != nil && issuers.anonymous != nil {
		if cfg.AnonymousGiven {
			return nil, errors.New("authn: --anonymous-auth cannot be given when the file of --authentication-config configures anonymous")
		}
		allowed = *issuers.anonymous
	}
	tokens, err := cfg.tokens(issuers)
	if err != nil {
		return nil, fmt.Errorf("authn: %w", err)
	}
	if len(tokens) > 0 {
		token := tokenunion.New(tokens...)
		if cfg.TokenTTL > 0 {
			token = cache.New(token, true, cfg.TokenTTL, 0)
		}
		requests = append(requests, bearertoken.New(token), websocket.NewProtocolAuthenticator(token))
	}

	a := &Authenticator{Request: group.NewAuthenticatedGroupAdder(union.New(requests...)), issuers: issuers, logger: cfg.Logger}
	if allowed.Enabled {
		// Wrong credentials are an error, not anonymous.
		a.Request = union.NewFailOnError(a.Request, anonymous.NewAuthenticator(allowed.Conditions))
	}
	return a, nil
}

// tokens are who knows tokens, local before remote. OIDC comes after service
// accounts: both read the same kind of token, and a token that OIDC does not
// know may cost it a question to the issuer.
func (cfg Config) tokens(issuers *issuers) ([]authenticator.Token, error) {
	var tokens []authenticator.Token
	add := func(t authenticator.Token) {
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, t))
	}
	if cfg.TokenFile != "" {
		file, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("--token-auth-file: %w", err)
		}
		add(file)
	}
	if len(cfg.ServiceAccountKeys) > 0 {
		accounts, err := cfg.serviceAccounts()
		if err != nil {
			return nil, fmt.Errorf("service accounts: %w", err)
		}
		tokens = append(tokens, accounts...)
	}
	if cfg.BootstrapTokens {
		if cfg.Objects == nil {
			return nil, fmt.Errorf("bootstrap tokens: %w", errNoObjects)
		}
		add(bootstrap.NewTokenAuthenticator(secretLister{cfg.Objects}))
	}
	if issuers != nil {
		add(issuers)
	}
	if cfg.WebhookConfigFile != "" {
		hook, err := cfg.webhook()
		if err != nil {
			return nil, fmt.Errorf("--authentication-token-webhook-config-file: %w", err)
		}
		tokens = append(tokens, hook)
	}
	return tokens, nil
}

// serviceAccounts read tokens kept in secrets, then those made on request.
func (cfg Config) serviceAccounts() ([]authenticator.Token, error) {
	if cfg.Objects == nil {
		return nil, errNoObjects
	}
	keys, err := serviceaccount.StaticPublicKeysGetter(cfg.ServiceAccountKeys)
	if err != nil {
		return nil, err
	}
	legacy, err := serviceaccount.NewLegacyValidator(true, cfg.Objects, secretWriter{cfg.Secrets})
	if err != nil {
		return nil, err
	}
	return []authenticator.Token{
		serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, keys, cfg.Audiences, legacy),
		serviceaccount.JWTTokenAuthenticator(cfg.ServiceAccountIssuers, keys, cfg.Audiences, serviceaccount.NewValidator(cfg.Objects)),
	}, nil
}

// webhookBackoff is upstream's.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

func (cfg Config) webhook() (authenticator.Token, error) {
	client, err := webhookutil.LoadKubeconfig(cfg.WebhookConfigFile, nil)
	if err != nil {
		return nil, err
	}
	version, ttl := cfg.WebhookVersion, cfg.WebhookTTL
	if version == "" {
		version = "v1beta1"
	}
	if ttl == 0 {
		ttl = 2 * time.Minute
	}
	hook, err := webhook.New(client, version, cfg.Audiences, webhookBackoff)
	if err != nil {
		return nil, err
	}
	if ttl < 0 {
		return hook, nil
	}
	return cache.New(hook, false, ttl, ttl), nil
}

func (cfg Config) frontProxy() authenticator.Request {
	list := func(s []string) headerrequest.StringSliceProvider { return headerrequest.StaticStringSlice(s) }
	return headerrequest.NewDynamicVerifyOptionsSecure(verifyWith(cfg.RequestHeaderCAs),
		list(cfg.RequestHeaderAllowedNames), list(cfg.RequestHeaderUsernameHeaders), list(cfg.RequestHeaderUIDHeaders),
		list(cfg.RequestHeaderGroupHeaders), list(cfg.RequestHeaderExtraHeadersStart))
}

// verifyWith accepts certificates for clients that one of the pool signed.
func verifyWith(pool *x509.CertPool) certificate.VerifyOptionFunc {
	return func() (x509.VerifyOptions, bool) {
		options := certificate.DefaultVerifyOptions()
		options.Roots = pool
		return options, true
	}
}
