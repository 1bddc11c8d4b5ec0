package cli

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/server/authn"
)

// parse reads flags as a command does, which then does nothing.
func parse(flags ...string) (app.Access, error) {
	var cfg app.Access
	c := &cobra.Command{Use: "test", SilenceUsage: true, SilenceErrors: true, RunE: func(*cobra.Command, []string) error { return nil }}
	c.SetOut(io.Discard)
	accessFlags(c, &cfg)
	c.SetArgs(flags)
	return cfg, c.Execute()
}

func TestAccessFlags(t *testing.T) {
	yes, no := true, false
	const version = "v1beta1"
	for _, test := range []struct {
		name  string
		flags []string
		want  app.Access
	}{
		{"none", nil, app.Access{}},
		{"anonymous", []string{"--anonymous-auth"}, app.Access{Anonymous: &yes}},
		{"not anonymous", []string{"--anonymous-auth=false"}, app.Access{Anonymous: &no}},
		{
			"oidc",
			[]string{"--oidc-issuer-url=https://x", "--oidc-client-id=app", "--oidc-required-claim=a=1,2", "--oidc-required-claim=b=c=d", "--oidc-signing-algs=RS256,ES256"},
			app.Access{OIDC: authn.OIDC{
				IssuerURL: "https://x", ClientID: "app", SigningAlgorithms: []string{"RS256", "ES256"},
				RequiredClaims: map[string]string{"a": "1,2", "b": "c=d"},
			}},
		},
		{
			"nothing is kept",
			[]string{"--authentication-token-webhook-cache-ttl=0", "--authorization-webhook-cache-authorized-ttl=0s", "--authorization-webhook-cache-unauthorized-ttl=1m"},
			app.Access{TokenWebhook: app.Webhook{TTL: -1}, AccessWebhook: app.Webhook{TTL: -1, DeniedTTL: time.Minute}},
		},
		{"issuers", []string{"--service-account-issuer=https://a,b", "--service-account-issuer=c", "--api-audiences=d,e"}, app.Access{ServiceAccountIssuers: []string{"https://a,b", "c"}, Audiences: []string{"d", "e"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.want.TokenWebhook.Version, test.want.AccessWebhook.Version = version, version
			got, err := parse(test.flags...)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAccessFlagsThatDoNotFit(t *testing.T) {
	for _, test := range []struct {
		flags, want string
	}{
		{"--authentication-config=f --oidc-client-id=app", "[authentication-config oidc-client-id]"},
		{"--authorization-config=f --authorization-mode=RBAC", "[authorization-config authorization-mode]"},
		{"--authorization-config=f --authorization-webhook-cache-authorized-ttl=1m", "[authorization-config authorization-webhook-cache-authorized-ttl]"},
		{"--oidc-required-claim=x", `"--oidc-required-claim"`},
		{"--anonymous-auth=perhaps", `"--anonymous-auth"`},
		{"--authentication-token-webhook-cache-ttl=long", `"--authentication-token-webhook-cache-ttl"`},
	} {
		if _, err := parse(strings.Fields(test.flags)...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.flags, err)
		}
	}
}
