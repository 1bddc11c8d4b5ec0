package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"setpoint.dev/setpoint/server/configfile"
)

// OIDC is one issuer of identity tokens, said in the fewest words: those of
// the --oidc-* flags. The zero value is none.
type OIDC struct {
	// IssuerURL and ClientID are who tokens are from and for; both are needed.
	IssuerURL, ClientID string
	// CAFile has the certificates that the issuer is known by; "" means those
	// of this machine.
	CAFile string
	// UsernameClaim is the claim that is the user's name; "" means sub.
	UsernameClaim string
	// UsernamePrefix comes before it. "" means the issuer's URL and a #, or
	// nothing where the name is an email; "-" means nothing.
	UsernamePrefix string
	// GroupsClaim is the claim that has the user's groups, if any, and
	// GroupsPrefix what comes before each.
	GroupsClaim, GroupsPrefix string
	// SigningAlgorithms are those that tokens may be signed with; none means
	// RS256.
	SigningAlgorithms []string
	// RequiredClaims have to be in a token with these values.
	RequiredClaims map[string]string
}

// authenticator is the issuer in the words of a configuration file.
func (o OIDC) authenticator() (apiserver.JWTAuthenticator, error) {
	if o.IssuerURL == "" || o.ClientID == "" {
		return apiserver.JWTAuthenticator{}, errors.New("--oidc-issuer-url and --oidc-client-id have to be given when any --oidc-* flag is")
	}
	claim, prefix := o.UsernameClaim, o.UsernamePrefix
	if claim == "" {
		claim = "sub"
	}
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && claim != "email":
		prefix = o.IssuerURL + "#"
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: o.IssuerURL, Audiences: []string{o.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: claim, Prefix: &prefix},
		},
	}
	if o.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: o.GroupsClaim, Prefix: &o.GroupsPrefix}
	}
	for _, name := range slices.Sorted(maps.Keys(o.RequiredClaims)) {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: name, RequiredValue: o.RequiredClaims[name]})
	}
	if o.CAFile != "" {
		ca, err := os.ReadFile(o.CAFile)
		if err != nil {
			return jwt, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	return jwt, nil
}

// issuers know the tokens of all issuers of one configuration.
type issuers struct {
	cfg     *Config
	current atomic.Pointer[issuerSet]

	// What the configuration file held when it was last read.
	data      []byte
	anonymous *apiserver.AnonymousAuthConfig
}

// issuerSet is a configuration at work, until stop is called.
type issuerSet struct {
	authenticator.Token
	healthy func() error
	stop    context.CancelFunc
}

// newIssuers returns the issuers of the flags or of the file, nil when there
// are neither. It does not wait until it has reached them.
func newIssuers(ctx context.Context, cfg *Config) (*issuers, error) {
	flags := !reflect.ValueOf(cfg.OIDC).IsZero()
	is := &issuers{cfg: cfg}
	var jwts []apiserver.JWTAuthenticator
	algorithms := cfg.OIDC.SigningAlgorithms
	switch {
	case flags && cfg.ConfigFile != "":
		return nil, errors.New("--authentication-config and --oidc-* flags exclude each other")
	case flags:
		jwt, err := cfg.OIDC.authenticator()
		if err != nil {
			return nil, err
		}
		jwts = append(jwts, jwt)
		if err := is.check(&apiserver.AuthenticationConfiguration{JWT: jwts}); err != nil {
			return nil, fmt.Errorf("--oidc-* flags: %w", err)
		}
	case cfg.ConfigFile != "":
		var err error
		if is.data, err = os.ReadFile(cfg.ConfigFile); err != nil {
			return nil, fmt.Errorf("--authentication-config: %w", err)
		}
		config, err := is.read(is.data)
		if err != nil {
			return nil, fmt.Errorf("--authentication-config %s: %w", cfg.ConfigFile, err)
		}
		jwts, is.anonymous, algorithms = config.JWT, config.Anonymous, oidc.AllValidSigningAlgorithms()
	default:
		return nil, nil
	}
	set, err := is.set(ctx, jwts, algorithms)
	if err != nil {
		return nil, err
	}
	is.current.Store(set)
	return is, nil
}

// read is the configuration that a file holds.
func (is *issuers) read(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	config, err := configfile.Decode[*apiserver.AuthenticationConfiguration](data)
	if err != nil {
		return nil, err
	}
	return config, is.check(config)
}

func (is *issuers) check(config *apiserver.AuthenticationConfiguration) error {
	return validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), config, is.cfg.ServiceAccountIssuers).ToAggregate()
}

// AuthenticateToken implements authenticator.Token.
func (is *issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return is.current.Load().AuthenticateToken(ctx, token)
}

// set puts issuers to work, until ctx ends or they are stopped.
func (is *issuers) set(ctx context.Context, jwts []apiserver.JWTAuthenticator, algorithms []string) (_ *issuerSet, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			stop()
		}
	}()
	var tokens []authenticator.Token
	var checks []func() error
	for _, jwt := range jwts {
		options := oidc.Options{JWTAuthenticator: jwt, SupportedSigningAlgs: algorithms, DisallowedIssuers: is.cfg.ServiceAccountIssuers}
		if jwt.Issuer.CertificateAuthority != "" {
			options.CAContentProvider = bundle(jwt.Issuer.CertificateAuthority)
		}
		issuer, err := oidc.New(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		tokens, checks = append(tokens, issuer), append(checks, issuer.HealthCheck)
	}
	healthy := func() error {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		return errors.Join(errs...)
	}
	return &issuerSet{tokenunion.NewFailOnError(tokens...), healthy, stop}, nil
}

// bundle is a PEM bundle of certificates.
type bundle string

// CurrentCABundleContent implements oidc.CAContentProvider.
func (b bundle) CurrentCABundleContent() []byte { return []byte(b) }

// The pace of a change of the configuration: how often and how long the new
// issuers are asked whether they are ready, and how long the old ones stay for
// the requests that are with them.
const (
	askReady    = time.Second
	becomeReady = time.Minute
	letGo       = time.Minute
)

// follow puts the configuration file's changes into effect until ctx ends. A
// file that cannot be used changes nothing and is told of.
func (is *issuers) follow(ctx context.Context, log *slog.Logger) {
	path := is.cfg.ConfigFile
	failed := func(err error) {
		if ctx.Err() == nil {
			log.Error("the authentication configuration is not reloaded", "file", path, "error", err)
		}
	}
	configfile.Follow(ctx, path, is.data, func(data []byte) (retry bool) {
		config, err := is.read(data)
		if err == nil && !reflect.DeepEqual(config.Anonymous, is.anonymous) {
			// Compat: who is anonymous is settled at the start.
			err = field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file")
		}
		if err != nil {
			failed(err)
			return false
		}
		if err := is.change(ctx, config); err != nil {
			failed(err)
			return true
		}
		return false
	}, failed)
}

// change puts other issuers into the place of those at work, once it has
// reached them.
func (is *issuers) change(ctx context.Context, config *apiserver.AuthenticationConfiguration) error {
	next, err := is.set(ctx, config.JWT, oidc.AllValidSigningAlgorithms())
	if err != nil {
		return err
	}
	if err := wait.PollUntilContextTimeout(ctx, askReady, becomeReady, true, func(context.Context) (bool, error) {
		return next.healthy() == nil, nil
	}); err != nil {
		next.stop()
		return errors.Join(next.healthy(), err)
	}
	last := is.current.Swap(next)
	time.AfterFunc(letGo, last.stop)
	return nil
}
