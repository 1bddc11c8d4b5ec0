package app

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/keyutil"

	"setpoint.dev/setpoint/pki"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/rest"
)

// Access says who vouches for users, beside this control plane itself, and who
// decides what they may do. Its fields are kube-apiserver's flags; the zero
// value works.
type Access struct {
	// ClientCAFile has certificates that may also sign for clients.
	ClientCAFile string
	// TokenFile is a CSV file of static tokens.
	TokenFile string
	// Anonymous says whether requests without credentials are let in; nil means
	// as AuthenticationConfig says, and yes where it says nothing.
	Anonymous *bool
	// OIDC is an issuer of identity tokens; AuthenticationConfig is a file that
	// names several.
	OIDC                 authn.OIDC
	AuthenticationConfig string
	// TokenWebhook is asked about tokens that nobody else knows.
	TokenWebhook Webhook
	// ServiceAccountIssuers are who service account tokens may be from; the
	// first is who new ones are from. None means authn.DefaultIssuer.
	ServiceAccountIssuers []string
	// ServiceAccountKeyFiles have keys that service account tokens may be signed
	// with, and ServiceAccountSigningKeyFile the one that signs new ones; "" means
	// one of the control plane's own.
	ServiceAccountKeyFiles       []string
	ServiceAccountSigningKeyFile string
	// MaxTokenLife is the longest that a service account token lives; 0 means as
	// asked.
	MaxTokenLife time.Duration
	// Audiences are whom tokens must be meant for; none means the issuers.
	Audiences []string

	// AuthorizationModes are asked in order; none means Node and RBAC.
	AuthorizationModes []string
	// AuthorizationConfig is a file that says who is asked, instead.
	AuthorizationConfig string
	// PolicyFile has the policies of the ABAC mode.
	PolicyFile string
	// AccessWebhook is asked in the Webhook mode.
	AccessWebhook Webhook
}

// Webhook is somebody to ask. TTLs are how long answers are kept; zero means
// upstream's, negative not at all.
type Webhook struct {
	// ConfigFile is a kubeconfig that says where; "" means nobody is asked.
	ConfigFile string
	// Version is that of the review that is sent; "" means v1beta1.
	Version string
	// TTL is for answers that allow, or of any kind for tokens; DeniedTTL for
	// the others.
	TTL, DeniedTTL time.Duration
}

// decide makes what says who asks and what they may, and returns who may sign
// for clients.
func (a *App) decide(ctx context.Context, lookup rest.Lookup, roles *authz.Roles) (*x509.CertPool, error) {
	cfg := a.cfg.Access
	clients := a.authority.ClientPool()
	a.clientCA = a.authority.CACert
	if cfg.ClientCAFile != "" {
		more, err := os.ReadFile(cfg.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		if !clients.AppendCertsFromPEM(more) {
			return nil, fmt.Errorf("--client-ca-file: no certificates in %s", cfg.ClientCAFile)
		}
		a.clientCA = bytes.Join([][]byte{bytes.TrimRight(a.clientCA, "\n"), more}, []byte("\n"))
	}
	if err := checkIssuers(cfg.ServiceAccountIssuers); err != nil {
		return nil, err
	}
	anonymous := cfg.Anonymous == nil || *cfg.Anonymous
	if anonymous && slices.Contains(cfg.AuthorizationModes, authz.AlwaysAllow) {
		// Compat: with nobody to refuse them, strangers are not let in at all.
		a.cfg.Logger.Warn("anonymous requests are not let in while the authorization mode AlwaysAllow is asked")
		anonymous = false
	}
	var err error
	if a.who, err = authn.New(ctx, authn.Config{
		ClientCAs: clients, ServiceAccountKeys: a.tokens.public, Objects: lookup, BootstrapTokens: true,
		ServiceAccountIssuers: cfg.ServiceAccountIssuers, Audiences: cfg.Audiences, TokenFile: cfg.TokenFile,
		OIDC: cfg.OIDC, ConfigFile: cfg.AuthenticationConfig, Logger: a.cfg.Logger,
		WebhookConfigFile: cfg.TokenWebhook.ConfigFile, WebhookVersion: cfg.TokenWebhook.Version, WebhookTTL: cfg.TokenWebhook.TTL,
		Anonymous: anonymous, AnonymousGiven: cfg.Anonymous != nil,
		RequestHeaderCAs: a.authority.FrontProxyPool(), RequestHeaderAllowedNames: []string{pki.FrontProxyUser},
		RequestHeaderUsernameHeaders: frontProxyHeaders.user, RequestHeaderUIDHeaders: frontProxyHeaders.uid,
		RequestHeaderGroupHeaders: frontProxyHeaders.groups, RequestHeaderExtraHeadersStart: frontProxyHeaders.extra,
	}); err != nil {
		return nil, err
	}
	modes := cfg.AuthorizationModes
	if len(modes) == 0 && cfg.AuthorizationConfig == "" {
		modes = []string{authz.Node, authz.RBAC}
	}
	nodes := authz.NewNodes()
	if a.may, err = authz.New(authz.Config{
		Modes: modes, ConfigFile: cfg.AuthorizationConfig, Roles: roles, Nodes: nodes, PolicyFile: cfg.PolicyFile, Logger: a.cfg.Logger,
		WebhookConfigFile: cfg.AccessWebhook.ConfigFile, WebhookVersion: cfg.AccessWebhook.Version,
		WebhookAllowedTTL: cfg.AccessWebhook.TTL, WebhookDeniedTTL: cfg.AccessWebhook.DeniedTTL,
	}); err != nil {
		return nil, err
	}
	if a.may.Asks(authz.Node) {
		a.nodes = nodes
	}
	return clients, nil
}

func checkIssuers(issuers []string) error {
	for i, issuer := range issuers {
		switch {
		case issuer == "":
			return errors.New("--service-account-issuer is empty")
		case slices.Contains(issuers[:i], issuer):
			return fmt.Errorf("--service-account-issuer: %q is given twice", issuer)
		case strings.Contains(issuer, ":"):
			if _, err := url.Parse(issuer); err != nil {
				return fmt.Errorf("--service-account-issuer: %q has a colon and is no URL: %w", issuer, err)
			}
		}
	}
	return nil
}

// tokenKeys sign service account tokens and tell whether they are genuine.
type tokenKeys struct {
	signing crypto.Signer
	public  []any // of signing, too
}

// loadTokenKeys reads the keys of service account tokens.
func (a *App) loadTokenKeys() error {
	cfg := a.cfg.Access
	keys := tokenKeys{signing: a.authority.ServiceAccountKey}
	if cfg.ServiceAccountSigningKeyFile != "" {
		key, err := keyutil.PrivateKeyFromFile(cfg.ServiceAccountSigningKeyFile)
		if err != nil {
			return fmt.Errorf("--service-account-signing-key-file: %w", err)
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return fmt.Errorf("--service-account-signing-key-file: %T cannot sign", key)
		}
		keys.signing = signer
	}
	keys.public = []any{keys.signing}
	for _, file := range cfg.ServiceAccountKeyFiles {
		more, err := keyutil.PublicKeysFromFile(file)
		if err != nil {
			return fmt.Errorf("--service-account-key-file: %w", err)
		}
		keys.public = append(keys.public, more...)
	}
	a.tokens = keys
	return nil
}

// issuer says how service account tokens are made.
func (cfg Access) issuer(keys tokenKeys, address string, objects authn.Objects) authn.IssuerConfig {
	c := authn.IssuerConfig{Key: keys.signing, Keys: keys.public[1:], MaxLife: cfg.MaxTokenLife, Address: address, Objects: objects, Audiences: cfg.Audiences}
	if len(cfg.ServiceAccountIssuers) > 0 {
		c.URL = cfg.ServiceAccountIssuers[0]
		if len(c.Audiences) == 0 {
			c.Audiences = cfg.ServiceAccountIssuers
		}
	}
	return c
}
