package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/cli/quiet"
)

// run is how a server runs, beside what it serves.
type run struct {
	cfg        app.Config
	kubeconfig string
	output     string
	withParent bool
	privileged bool
}

// serverCommand is `up`, which runs pods as well, and `server`, which does not.
func serverCommand(name string) *cobra.Command {
	var r run
	c := &cobra.Command{
		Use: name, Short: "Run the control plane", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return r.run(c) },
	}
	f := c.Flags()
	f.StringVar(&r.cfg.Data, "data", defaultData(), `folder that everything is kept in; "memory" keeps nothing`)
	f.StringVar(&r.cfg.Listen, "listen", "127.0.0.1:6443", "address to serve on; port 0 picks one")
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "file that the admin's credentials are written to (default "+defaultKubeconfig()+";\nwith --output json one of its own, which goes with the server)")
	f.StringVar(&r.output, "output", "text", "how to say that the server is ready: text, or json for programs")
	f.BoolVar(&r.withParent, "exit-with-parent", false, "end when the process that started this one does")
	privilegedFlag(c, &r.privileged)
	if name == "up" {
		f.BoolVar(&r.cfg.Node.On, "node", true, "run pods on this machine")
		runNodeFlags(c, &r.cfg.Node)
	}
	controllerFlags(c, &r.cfg)
	requestFlags(c, &r.cfg)
	servingFlags(c, &r.cfg)
	nodeAccessFlags(c, &r.cfg.NodeAccess)
	f.BoolVar(&r.cfg.MetricsAPI, "metrics-api", true, "serve metrics.k8s.io: what nodes and pods use")
	initializerFlags(c, &r.cfg)
	accessFlags(c, &r.cfg.Access)
	admissionFlags(c, &r.cfg.Admission)
	return c
}

// run runs the control plane until it is told to end.
func (r *run) run(c *cobra.Command) (err error) {
	if r.output != "text" && r.output != "json" {
		return fmt.Errorf("--output: %q is neither text nor json", r.output)
	}
	parent := 0
	if r.withParent {
		parent = os.Getppid()
	}
	ctx, stop := withParent(c.Context(), parent)
	defer stop()
	allowPrivileged(r.privileged)
	if !c.Flags().Changed("scheduler") {
		r.cfg.Scheduler.On = len(r.cfg.Controllers) > 0
	}
	r.cfg.Logger = logger()
	r.cfg.EndAtOnce = r.withParent
	r.cfg.Node.On = r.cfg.Node.On && r.cfg.Scheduler.On
	if r.cfg.Node.Dir == "" {
		r.cfg.Node.Dir = nodeFolder(r.cfg.Data)
	}
	a, err := app.Open(ctx, r.cfg)
	if err != nil {
		return err
	}
	switch {
	case r.kubeconfig != "":
	case r.output == "json":
		dir, err := os.MkdirTemp("", "setpoint-")
		if err != nil {
			return errors.Join(err, a.Close())
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		r.kubeconfig = filepath.Join(dir, "kubeconfig")
	default:
		r.kubeconfig = defaultKubeconfig()
	}
	if err := a.WriteKubeconfig(r.kubeconfig); err != nil {
		return errors.Join(err, a.Close())
	}
	if err := r.sayReady(c.OutOrStdout(), a.URL()); err != nil {
		return errors.Join(err, a.Close())
	}
	return a.Run(ctx)
}

// ready is what programs are told when the server is ready, on one line.
type ready struct {
	URL        string `json:"url"`
	Kubeconfig string `json:"kubeconfig"`
	Context    string `json:"context"`
	PID        int    `json:"pid"`
}

func (r *run) sayReady(w io.Writer, url string) error {
	if r.output == "json" {
		return json.NewEncoder(w).Encode(ready{url, r.kubeconfig, app.ContextName, os.Getpid()})
	}
	_, err := fmt.Fprintf(w, "setpoint is ready at %s (kubeconfig %s, context %s)\n", url, r.kubeconfig, app.ContextName)
	return err
}

// logger writes what goes wrong to standard error, what libraries say included but
// for what is nobody's concern.
func logger() *slog.Logger {
	h := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})
	klog.SetSlogLogger(slog.New(quiet.New(h)))
	return slog.New(h)
}

// requestFlags adds the flags that say what is written down of requests, and how
// long they and events last. They are kube-apiserver's.
func requestFlags(c *cobra.Command, cfg *app.Config) {
	f := c.Flags()
	f.StringVar(&cfg.Audit.Path, "audit-log-path", "", "file that requests are written down in; - is standard output")
	f.StringVar(&cfg.Audit.PolicyFile, "audit-policy-file", "", "policy that says what is written down (default Metadata of every request)")
	f.IntVar(&cfg.Audit.MaxSize, "audit-log-maxsize", 0, "megabytes at which the audit log is rotated (default 100)")
	f.IntVar(&cfg.Audit.MaxBackups, "audit-log-maxbackup", 0, "old audit logs to keep; 0 keeps all")
	f.IntVar(&cfg.Audit.MaxAge, "audit-log-maxage", 0, "days to keep old audit logs for; 0 is forever")
	f.DurationVar(&cfg.RequestTimeout, "request-timeout", time.Minute, "how long a request may take that is not meant to last")
	f.IntVar(&cfg.Fairness.Reads, "max-requests-inflight", 400, "how many requests that change nothing may be under way; priority levels share this and the next")
	f.IntVar(&cfg.Fairness.Writes, "max-mutating-requests-inflight", 200, "how many requests that change something may be under way")
	f.Var(&unless{&cfg.Fairness.Off}, "enable-priority-and-fairness", "let requests in by flow schemas and priority levels, in turn (default true)")
	f.Lookup("enable-priority-and-fairness").NoOptDefVal = "true"
	f.DurationVar(&cfg.EventTTL, "event-ttl", time.Hour, "how long events are kept")
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
