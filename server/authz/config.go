package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"setpoint.dev/setpoint/server/configfile"
)

// configure is who is asked at first, by the modes or by the file.
func (c *Chain) configure() (*apiserver.AuthorizationConfiguration, error) {
	if c.cfg.ConfigFile == "" {
		return c.cfg.configuration()
	}
	if len(c.cfg.Modes) > 0 || c.cfg.WebhookConfigFile != "" {
		return nil, errors.New("--authorization-config excludes --authorization-mode and --authorization-webhook-* flags")
	}
	var err error
	if c.data, err = os.ReadFile(c.cfg.ConfigFile); err != nil {
		return nil, fmt.Errorf("--authorization-config: %w", err)
	}
	config, err := readConfig(c.data)
	if err != nil {
		return nil, fmt.Errorf("--authorization-config %s: %w", c.cfg.ConfigFile, err)
	}
	return config, nil
}

// configuration is what the modes would be in a file.
func (cfg Config) configuration() (*apiserver.AuthorizationConfiguration, error) {
	asked := cfg.Modes
	if len(asked) == 0 {
		asked = []string{RBAC}
	}
	switch {
	case slices.Contains(asked, Webhook) && cfg.WebhookConfigFile == "":
		return nil, errors.New("mode Webhook: --authorization-webhook-config-file is needed")
	case !slices.Contains(asked, Webhook) && cfg.WebhookConfigFile != "":
		return nil, errors.New("--authorization-webhook-config-file is of no use without mode Webhook in --authorization-mode")
	case !slices.Contains(asked, ABAC) && cfg.PolicyFile != "":
		return nil, errors.New("--authorization-policy-file is of no use without mode ABAC in --authorization-mode")
	}
	config := &apiserver.AuthorizationConfiguration{}
	for i, mode := range asked {
		if slices.Contains(asked[:i], mode) {
			return nil, fmt.Errorf("--authorization-mode: mode %s is given twice", mode)
		}
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: nameOf(mode)}
		if mode == Webhook {
			a.Name, a.Webhook = "default", cfg.webhook()
		}
		config.Authorizers = append(config.Authorizers, a)
	}
	return config, nil
}

func (cfg Config) webhook() *apiserver.WebhookConfiguration {
	allowed := cmp.Or(cfg.WebhookAllowedTTL, 5*time.Minute)
	denied := cmp.Or(cfg.WebhookDeniedTTL, 30*time.Second)
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: allowed}, CacheAuthorizedRequests: allowed > 0,
		UnauthorizedTTL: metav1.Duration{Duration: denied}, CacheUnauthorizedRequests: denied > 0,
		Timeout: metav1.Duration{Duration: 30 * time.Second}, FailurePolicy: apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: cmp.Or(cfg.WebhookVersion, "v1beta1"),
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &cfg.WebhookConfigFile,
		},
	}
}

// nameOf is what a mode but Webhook is called. Compat: upstream's files may call
// it nothing else.
func nameOf(mode string) string { return strings.ToLower(mode) }

func readConfig(data []byte) (*apiserver.AuthorizationConfiguration, error) {
	config, err := configfile.Decode[*apiserver.AuthorizationConfiguration](data)
	if err != nil {
		return nil, err
	}
	if err := validation.ValidateAuthorizationConfiguration(authorizationcel.NewDefaultCompiler(), nil, config, modes, sets.New(Webhook)).ToAggregate(); err != nil {
		return nil, err
	}
	for _, a := range config.Authorizers {
		if want := nameOf(string(a.Type)); a.Type != apiserver.TypeWebhook && a.Name != want {
			return nil, fmt.Errorf("expected name %s for authorizer %s instead of %s", want, a.Type, a.Name)
		}
	}
	return config, nil
}

// Asks says whether a mode other than Webhook is asked.
func (c *Chain) Asks(mode string) bool { return c.made[mode] != nil }

// Run puts the configuration file's changes into effect until ctx ends. A file
// that cannot be used changes nothing and is told of. Without a file there is
// nothing to do.
func (c *Chain) Run(ctx context.Context) error {
	if c.cfg.ConfigFile == "" {
		return nil
	}
	failed := func(err error) {
		if ctx.Err() == nil {
			c.cfg.Logger.Error("the authorization configuration is not reloaded", "file", c.cfg.ConfigFile, "error", err)
		}
	}
	configfile.Follow(ctx, c.cfg.ConfigFile, c.data, func(data []byte) (retry bool) {
		if err := c.change(data); err != nil {
			failed(err)
		}
		return false
	}, failed)
	return nil
}

// change puts another configuration into effect. Compat: the modes of the start
// have to stay; only those can be added that have nothing to read.
func (c *Chain) change(data []byte) error {
	config, err := readConfig(data)
	if err != nil {
		return err
	}
	kept := 0
	next, err := c.order(config, func(mode string) (decider, error) {
		switch made := c.made[mode]; {
		case made != nil:
			kept++
			return made, nil
		case mode == AlwaysAllow || mode == AlwaysDeny:
			return c.cfg.mode(mode)
		}
		return nil, errors.New("it was not there at the start")
	})
	if err != nil {
		return err
	}
	if kept < len(c.made) {
		return errors.New("modes of the start are missing")
	}
	c.current.Store(next)
	return nil
}
