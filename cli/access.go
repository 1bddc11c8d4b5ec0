package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
)

// accessFlags adds the flags that say who vouches for users and who decides.
// They are kube-apiserver's.
func accessFlags(c *cobra.Command, cfg *app.Access) {
	f := c.Flags()
	f.StringVar(&cfg.ClientCAFile, "client-ca-file", "", "file with certificates that may sign for clients, beside the control plane's own")
	f.StringVar(&cfg.TokenFile, "token-auth-file", "", "CSV file of static tokens")
	f.Var(&maybe{&cfg.Anonymous}, "anonymous-auth", "let requests without credentials in as system:anonymous (default true)")
	f.Lookup("anonymous-auth").NoOptDefVal = "true"
	f.StringArrayVar(&cfg.ServiceAccountIssuers, "service-account-issuer", nil, "who service account tokens may be from; the first makes new ones (may be repeated)")
	f.StringSliceVar(&cfg.Audiences, "api-audiences", nil, "whom tokens must be meant for (default the issuers of service account tokens)")

	f.StringVar(&cfg.AuthenticationConfig, "authentication-config", "", "AuthenticationConfiguration file: issuers of identity tokens, and anonymous requests")
	f.StringVar(&cfg.OIDC.IssuerURL, "oidc-issuer-url", "", "issuer of identity tokens, an https URL")
	f.StringVar(&cfg.OIDC.ClientID, "oidc-client-id", "", "whom its tokens must be meant for")
	f.StringVar(&cfg.OIDC.CAFile, "oidc-ca-file", "", "certificates that the issuer is known by (default those of this machine)")
	f.StringVar(&cfg.OIDC.UsernameClaim, "oidc-username-claim", "", `claim that is the user's name (default "sub")`)
	f.StringVar(&cfg.OIDC.UsernamePrefix, "oidc-username-prefix", "", "what comes before it; - is nothing (default the issuer's URL and #, unless the claim is email)")
	f.StringVar(&cfg.OIDC.GroupsClaim, "oidc-groups-claim", "", "claim that has the user's groups")
	f.StringVar(&cfg.OIDC.GroupsPrefix, "oidc-groups-prefix", "", "what comes before each group")
	f.StringSliceVar(&cfg.OIDC.SigningAlgorithms, "oidc-signing-algs", nil, "algorithms that tokens may be signed with (default RS256)")
	f.Var(claims{&cfg.OIDC.RequiredClaims}, "oidc-required-claim", "key=value that has to be in a token (may be repeated)")
	for _, flag := range []string{
		"oidc-issuer-url", "oidc-client-id", "oidc-ca-file", "oidc-username-claim", "oidc-username-prefix",
		"oidc-groups-claim", "oidc-groups-prefix", "oidc-signing-algs", "oidc-required-claim",
	} {
		c.MarkFlagsMutuallyExclusive("authentication-config", flag)
	}
	f.StringVar(&cfg.TokenWebhook.ConfigFile, "authentication-token-webhook-config-file", "", "kubeconfig that says who is asked about unknown tokens")
	f.StringVar(&cfg.TokenWebhook.Version, "authentication-token-webhook-version", "v1beta1", "version of the TokenReview that is sent")
	f.Var(ttl{&cfg.TokenWebhook.TTL, 2 * time.Minute}, "authentication-token-webhook-cache-ttl", "how long its answers are kept")

	f.StringSliceVar(&cfg.AuthorizationModes, "authorization-mode", nil, "who decides what users may do, in order (default Node,RBAC)")
	f.StringVar(&cfg.PolicyFile, "authorization-policy-file", "", "policies of the mode ABAC")
	f.StringVar(&cfg.AccessWebhook.ConfigFile, "authorization-webhook-config-file", "", "kubeconfig that says who is asked in the mode Webhook")
	f.StringVar(&cfg.AccessWebhook.Version, "authorization-webhook-version", "v1beta1", "version of the SubjectAccessReview that is sent")
	f.Var(ttl{&cfg.AccessWebhook.TTL, 5 * time.Minute}, "authorization-webhook-cache-authorized-ttl", "how long answers that allow are kept")
	f.Var(ttl{&cfg.AccessWebhook.DeniedTTL, 30 * time.Second}, "authorization-webhook-cache-unauthorized-ttl", "how long other answers are kept")
	f.StringVar(&cfg.AuthorizationConfig, "authorization-config", "", "AuthorizationConfiguration file: who decides, in order")
	for _, flag := range []string{
		"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
	} {
		c.MarkFlagsMutuallyExclusive("authorization-config", flag)
	}
}

// maybe is a yes or no that may be left open.
type maybe struct{ value **bool }

// String implements pflag.Value.
func (m *maybe) String() string {
	if m.value == nil || *m.value == nil {
		return ""
	}
	return strconv.FormatBool(**m.value)
}

// Set implements pflag.Value.
func (m *maybe) Set(text string) error {
	yes, err := strconv.ParseBool(text)
	*m.value = &yes
	return err
}

// Type implements pflag.Value.
func (m *maybe) Type() string { return "bool" }

// ttl is how long something is kept: upstream's time when it is not given, not
// at all when it is 0.
type ttl struct {
	value    *time.Duration
	upstream time.Duration
}

// String implements pflag.Value.
func (t ttl) String() string {
	if t.value == nil || *t.value == 0 {
		return t.upstream.String()
	}
	return max(*t.value, 0).String()
}

// Set implements pflag.Value.
func (t ttl) Set(text string) error {
	d, err := time.ParseDuration(text)
	if d <= 0 {
		d = -1
	}
	*t.value = d
	return err
}

// Type implements pflag.Value.
func (t ttl) Type() string { return "duration" }

// claims are key=value, one at a time; a value may have commas.
type claims struct{ value *map[string]string }

// String implements pflag.Value.
func (c claims) String() string { return "" }

// Set implements pflag.Value.
func (c claims) Set(text string) error {
	name, value, is := strings.Cut(text, "=")
	if !is || strings.TrimSpace(name) == "" {
		return strconv.ErrSyntax
	}
	if *c.value == nil {
		*c.value = map[string]string{}
	}
	(*c.value)[strings.TrimSpace(name)] = strings.TrimSpace(value)
	return nil
}

// Type implements pflag.Value.
func (c claims) Type() string { return "key=value" }
