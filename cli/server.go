package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/app"
)

// serverCommand is `up` and `server`, which are the same until there are nodes.
func serverCommand(name string) *cobra.Command {
	var cfg app.Config
	var kubeconfig string
	c := &cobra.Command{
		Use: name, Short: "Run the control plane", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
			klog.SetSlogLogger(cfg.Logger) // what client-go has to say
			a, err := app.Open(c.Context(), cfg)
			if err != nil {
				return err
			}
			if err := a.WriteKubeconfig(kubeconfig); err != nil {
				return errors.Join(err, a.Close())
			}
			if _, err := fmt.Fprintf(c.OutOrStdout(), "setpoint is ready at %s (kubeconfig %s, context setpoint)\n", a.URL(), kubeconfig); err != nil {
				return errors.Join(err, a.Close())
			}
			return a.Run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Data, "data", defaultData(), `folder that everything is kept in; "memory" keeps nothing`)
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:6443", "address to serve on; port 0 picks one")
	f.StringVar(&kubeconfig, "kubeconfig", defaultKubeconfig(), "file that the admin's credentials are written to")
	f.StringVar(&cfg.Audit.Path, "audit-log-path", "", "file that requests are written down in; - is standard output")
	f.StringVar(&cfg.Audit.PolicyFile, "audit-policy-file", "", "policy that says what is written down (default Metadata of every request)")
	f.IntVar(&cfg.Audit.MaxSize, "audit-log-maxsize", 0, "megabytes at which the audit log is rotated (default 100)")
	f.IntVar(&cfg.Audit.MaxBackups, "audit-log-maxbackup", 0, "old audit logs to keep; 0 keeps all")
	f.IntVar(&cfg.Audit.MaxAge, "audit-log-maxage", 0, "days to keep old audit logs for; 0 is forever")
	f.DurationVar(&cfg.RequestTimeout, "request-timeout", time.Minute, "how long a request may take that is not meant to last")
	f.DurationVar(&cfg.EventTTL, "event-ttl", time.Hour, "how long events are kept")
	f.StringSliceVar(&cfg.Controllers, "controllers", []string{"*"}, "controllers that run: a name, * for all that need not be named, -name for all but that one, or nothing for none\n"+
		"All: "+strings.Join(app.ControllerNames(), ", ")+"\nTo be named: "+strings.Join(app.NamedControllers(), ", "))
	f.DurationVar(&cfg.SigningDuration, "cluster-signing-duration", 365*24*time.Hour, "how long certificates live at most that are asked for by CertificateSigningRequests")
	f.DurationVar(&cfg.UnusedTokens, "legacy-service-account-token-clean-up-period", 365*24*time.Hour, "how long a service account token in a secret may be unused before it is given up")
	initializerFlags(c, &cfg)
	accessFlags(c, &cfg.Access)
	admissionFlags(c, &cfg.Admission)
	return c
}

// defaultData is under the user's data folder.
func defaultData() string {
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "setpoint")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "setpoint-data"
	}
	return filepath.Join(home, ".local", "share", "setpoint")
}

func defaultKubeconfig() string {
	if path := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); path != "" {
		return filepath.SplitList(path)[0]
	}
	return clientcmd.RecommendedHomeFile
}
