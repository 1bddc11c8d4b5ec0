package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
)

// controllerFlags adds the flags that say which controllers run, and how. They
// are kube-controller-manager's.
func controllerFlags(c *cobra.Command, cfg *app.Config) {
	f := c.Flags()
	f.StringSliceVar(&cfg.Controllers, "controllers", []string{"*"}, "controllers that run: a name, * for all that need not be named, -name for all but that one, or nothing for none\n"+
		"All: "+strings.Join(app.ControllerNames(), ", ")+"\nTo be named: "+strings.Join(app.NamedControllers(), ", "))
	f.DurationVar(&cfg.SigningDuration, "cluster-signing-duration", 365*24*time.Hour, "how long certificates live at most that are asked for by CertificateSigningRequests")
	f.DurationVar(&cfg.UnusedTokens, "legacy-service-account-token-clean-up-period", 365*24*time.Hour, "how long a service account token in a secret may be unused before it is given up")
}
