package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/envtest"
	"setpoint.dev/setpoint/server"
)

// ignoredFlags are the flags of kube-apiserver that change nothing here, with
// "bool" behind those that need no value.
//
//go:embed apiserver_flags.txt
var ignoredFlags string

// switchOn is the environment variable that says what runs beside the API: it
// is how suites that know nothing of Setpoint ask for more than envtest has.
const switchOn = "SETPOINT_ENVTEST"

// apiserver is what kube-apiserver is told beside what servers are told.
type apiserver struct {
	cfg        app.Config
	address    string
	port       int
	certDir    string
	etcd       []string
	parent     int
	version    bool
	privileged bool
}

// apiserverCommand stands in for kube-apiserver in test suites: its flags, its
// defaults, and no controllers unless the environment asks for them.
func apiserverCommand() *cobra.Command {
	var s apiserver
	c := &cobra.Command{
		Use: "kube-apiserver", Short: "Stand in for kube-apiserver in test suites", Args: cobra.NoArgs, Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error { return s.run(c) },
	}
	f := c.Flags()
	f.BoolVar(&s.version, "version", false, "say which Kubernetes this is")
	f.StringVar(&s.address, "bind-address", "0.0.0.0", "address to serve on")
	f.IntVar(&s.port, "secure-port", 6443, "port to serve on")
	f.StringVar(&s.certDir, "cert-dir", "/var/run/kubernetes", "folder with apiserver.crt and apiserver.key, unless --tls-cert-file says otherwise")
	f.StringSliceVar(&s.etcd, "etcd-servers", nil, "the etcd of the same test suite, which says where data is kept")
	privilegedFlag(c, &s.privileged)
	f.IntVar(&s.parent, "parent", 0, "process to end with")
	_ = f.MarkHidden("parent") // it is there
	requestFlags(c, &s.cfg)
	servingFlags(c, &s.cfg)
	nodeAccessFlags(c, &s.cfg.NodeAccess)
	accessFlags(c, &s.cfg.Access)
	admissionFlags(c, &s.cfg.Admission)
	ignoreFlags(f)
	return c
}

// ignoreFlags adds flags that are taken and change nothing.
func ignoreFlags(f *pflag.FlagSet) {
	for line := range strings.Lines(ignoredFlags) {
		name, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		if f.Lookup(name) != nil {
			continue
		}
		shorthand := ""
		if name == "v" {
			shorthand = name
		}
		v := f.VarPF(&ignored{}, name, shorthand, "taken, and changes nothing")
		if kind == "bool" {
			v.NoOptDefVal = "true"
		}
	}
}

// ignored is a value that nobody asks for.
type ignored struct{ text string }

// String implements pflag.Value.
func (i *ignored) String() string { return i.text }

// Set implements pflag.Value.
func (i *ignored) Set(text string) error {
	i.text = text
	return nil
}

// Type implements pflag.Value.
func (i *ignored) Type() string { return "" }

func (s *apiserver) run(c *cobra.Command) error {
	if s.version {
		_, err := fmt.Fprintln(c.OutOrStdout(), "Kubernetes "+server.Version())
		return err
	}
	cfg, err := s.config(c)
	if err != nil {
		return err
	}
	allowPrivileged(s.privileged)
	cfg.Logger = logger()
	for _, name := range worthSaying(c.Flags()) {
		cfg.Logger.Warn("a flag changes nothing here", "flag", name)
	}
	ctx, stop := withParent(c.Context(), s.parent)
	defer stop()
	a, err := app.Open(ctx, cfg)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// worthSaying are the flags that were given although they change nothing, but
// for those that only say how much is logged.
func worthSaying(f *pflag.FlagSet) []string {
	var names []string
	f.Visit(func(flag *pflag.Flag) {
		if _, is := flag.Value.(*ignored); is && flag.Name != "v" && flag.Name != "vmodule" {
			names = append(names, flag.Name)
		}
	})
	return names
}

// config says what to run.
func (s *apiserver) config(c *cobra.Command) (app.Config, error) {
	cfg := s.cfg
	if len(s.etcd) == 0 {
		return cfg, errors.New("--etcd-servers must be specified")
	}
	place, err := envtest.Ask(c.Context(), s.etcd[0])
	if err != nil {
		return cfg, err
	}
	cfg.Data, cfg.NoSync, cfg.EndAtOnce = place.Folder, place.NoSync, true
	cfg.Listen = net.JoinHostPort(s.address, strconv.Itoa(s.port))
	if cfg.CertFile == "" && cfg.KeyFile == "" {
		cert, key := filepath.Join(s.certDir, "apiserver.crt"), filepath.Join(s.certDir, "apiserver.key")
		if _, err := os.Stat(cert); err == nil {
			cfg.CertFile, cfg.KeyFile = cert, key
		}
	}
	if len(cfg.Access.AuthorizationModes) == 0 && cfg.Access.AuthorizationConfig == "" {
		cfg.Access.AuthorizationModes = []string{"AlwaysAllow"} // Compat: it is kube-apiserver's default
	}
	return cfg, also(&cfg, os.Getenv(switchOn))
}

// also adds what the environment asks for.
func also(cfg *app.Config, wanted string) error {
	for what := range strings.SplitSeq(wanted, ",") {
		switch strings.TrimSpace(what) {
		case "":
		case "nodes":
			cfg.PretendNode, cfg.Scheduler.On = true, true
			cfg.Controllers = []string{"*"}
		case "controllers":
			cfg.Controllers = []string{"*"}
		default:
			return fmt.Errorf("%s: %q is neither controllers nor nodes", switchOn, what)
		}
	}
	return nil
}
