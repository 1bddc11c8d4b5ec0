package admission

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	apiserverv1alpha1 "k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/lent"
	"setpoint.dev/setpoint/admission/tolerations"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/admission/webhook"
	"setpoint.dev/setpoint/kinds"
)

// Options are what whoever runs the server may choose.
type Options struct {
	// Enable and Disable name plugins that run, or do not, against the default.
	Enable, Disable []string
	// File has the configuration of plugins that take one, as an
	// AdmissionConfiguration; "" means none.
	File string
	// NotReadySeconds and UnreachableSeconds are how long pods stay on a node in
	// such a state that say nothing of it; nil means five minutes.
	NotReadySeconds, UnreachableSeconds *int64
}

// Config says what the plugins work with, and which of them run.
type Config struct {
	Options
	Objects view.Objects
	// Services finds where webhooks that are services are reached.
	Services webhookutil.ServiceResolver
	// Failed hears of calls of webhooks that failed; nil of nothing.
	Failed func(webhook.Failure)
	// Authorizer answers what conditions and policies ask about users, and
	// whether they may approve, sign, and own.
	Authorizer authorizer.Authorizer
	// Kinds are those that are served.
	Kinds func() *kinds.List
	// Initializers says how objects wait for initializers, Waiting which do, and
	// Health what has been seen of those that they wait for.
	Initializers initializer.Settings
	Waiting      initializer.Waiting
	Health       *initializer.Health
	// Namespaces makes those that NamespaceAutoProvision wants.
	Namespaces lent.Provisioner

	files admission.ConfigProvider
}

// complete checks what was chosen, and reads the plugins' configuration.
func (cfg *Config) complete() error {
	var errs []error
	for flag, names := range map[string][]string{"enable-admission-plugins": cfg.Enable, "disable-admission-plugins": cfg.Disable} {
		for _, name := range names {
			if !slices.ContainsFunc(plugins, func(p plugin) bool { return p.name == name }) {
				errs = append(errs, fmt.Errorf("%s plugin %q is unknown", flag, name))
			}
		}
	}
	var both []string
	for _, name := range cfg.Enable {
		if slices.Contains(cfg.Disable, name) && !slices.Contains(both, name) {
			both = append(both, name)
		}
	}
	if slices.Sort(both); len(both) > 0 {
		errs = append(errs, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", both))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if cfg.NotReadySeconds == nil {
		cfg.NotReadySeconds = new(int64(tolerations.DefaultSeconds))
	}
	if cfg.UnreachableSeconds == nil {
		cfg.UnreachableSeconds = new(int64(tolerations.DefaultSeconds))
	}
	return cfg.read()
}

// Names are those of the plugins that there are, in the order in which they act:
// those that run by default, and those that must be asked for. Plugins for kinds
// that are not served are in neither.
func Names() (on, off []string) {
	for _, p := range plugins {
		switch {
		case p.make == nil && p.lend == nil:
		case p.off:
			off = append(off, p.name)
		default:
			on = append(on, p.name)
		}
	}
	return on, off
}

// runs says that a plugin is among those that are asked for.
func (cfg *Config) runs(p plugin) bool {
	if p.make == nil && p.lend == nil || slices.Contains(cfg.Disable, p.name) {
		return false
	}
	return !p.off || slices.Contains(cfg.Enable, p.name)
}

// read reads the file, if there is one.
func (cfg *Config) read() (err error) {
	if cfg.File == "" {
		return nil
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiserver.AddToScheme, apiserverv1alpha1.AddToScheme, apiserverv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var names []string
	for _, p := range plugins {
		if cfg.runs(p) {
			names = append(names, p.name)
		}
	}
	if cfg.files, err = admission.ReadAdmissionConfiguration(names, cfg.File, scheme); err != nil {
		return fmt.Errorf("failed to read plugin config: %w", err)
	}
	return nil
}

// file is the configuration of a plugin; nil when there is none.
func (cfg *Config) file(plugin string) ([]byte, error) {
	if cfg.files == nil {
		return nil, nil
	}
	r, err := cfg.files.ConfigFor(plugin)
	if err != nil || r == nil {
		return nil, err
	}
	return io.ReadAll(r)
}
