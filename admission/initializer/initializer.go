// Package initializer is the life of an object that must be initialized before
// anyone sees it: which initializers a new object gets, who may take them off,
// and what the server does when they do not act.
//
// In come the configurations, read through a view so that one holds from the
// moment its write has returned, and requests; out go objects with the list of
// what they wait for, or refusals. Deciding is here and touches nothing: server/rest
// stores, waits and sweeps as MakePlan says.
//
// What always holds: what configures, authorizes or keeps the control plane
// alive waits for nobody; initialization ends once and never begins again; no
// name leaves an object without its writer having been allowed to take it off, or
// its time being over.
package initializer

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// PluginName is what the plugin is switched on and off by.
const PluginName = "Initializers"

// Settings are what the server's flags say.
type Settings struct {
	// DefaultTimeout is how long an initializer may take when its
	// configuration does not say; 0 means ten minutes, less than 0 for ever.
	DefaultTimeout time.Duration
	// ExemptNamespaces have no objects that wait; nil means kube-system and
	// kube-node-lease.
	ExemptNamespaces []string
	// MaxWaiting is how many creates may wait at once; 0 means 500.
	MaxWaiting int
	// StrictOwnership lets nobody take off or move a name but its owner.
	StrictOwnership bool
	// SkipFinalAdmission leaves what initializers made of an object unchecked
	// by what checks new objects.
	SkipFinalAdmission bool
}

// WithDefaults are the settings with what was left out.
func (s Settings) WithDefaults() Settings {
	if s.DefaultTimeout == 0 {
		s.DefaultTimeout = 10 * time.Minute
	}
	if s.ExemptNamespaces == nil {
		s.ExemptNamespaces = []string{"kube-system", "kube-node-lease"}
	}
	if s.MaxWaiting == 0 {
		s.MaxWaiting = 500
	}
	return s
}

// Default are the terms of an initializer whose configuration names none.
func (s Settings) Default() Terms {
	if s.DefaultTimeout < 0 {
		return Terms{Policy: v1alpha1.Wait}
	}
	return Terms{Policy: v1alpha1.Fail, Timeout: s.DefaultTimeout}
}

// Config is what the plugin works with.
type Config struct {
	Settings
	Objects    view.Objects
	Authorizer authorizer.Authorizer
	// Waiting tells which objects wait. It may be nil: then nothing does.
	Waiting Waiting
	// Health is what has been seen of initializers; nil is nothing.
	Health *Health
}

// Waiting tells which objects of the plane of a request wait.
type Waiting interface {
	// Next says that an object waits for a name, and that it is its turn.
	Next(ctx context.Context, name string) bool
	// All yields the records of those that wait, and at most one error, as its
	// last element.
	All(ctx context.Context) iter.Seq2[*Record, error]
}

// Plugin gives new objects their initializers, and guards the list of objects
// that have some.
type Plugin struct {
	*admission.Handler
	cfg        Config
	configured view.Memo[*List]
	last       *List // made last; for whoever makes the next, one at a time
}

// New returns the plugin.
func New(cfg Config) *Plugin {
	cfg.Settings = cfg.WithDefaults()
	if cfg.Health == nil {
		cfg.Health = &Health{}
	}
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete), cfg: cfg}
}

// Admit implements admission.MutationInterface. Where others will go over the
// object once more, it waits for that: what an object gets depends on what they
// make of it, and it is settled once.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	switch again := a.GetReinvocationContext(); {
	case again.ShouldReinvoke() && !again.IsReinvoke():
		return nil
	case a.GetOperation() == admission.Update:
		return p.update(ctx, a)
	case a.GetOperation() == admission.Create && a.GetSubresource() == "":
		return p.create(ctx, a, o)
	default:
		return nil
	}
}

// Validate implements admission.ValidationInterface: it says what still waits
// for a configuration that is deleted.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Delete || a.GetResource().GroupResource() != configurations.GroupResource() || p.cfg.Waiting == nil {
		return nil
	}
	deleted, ok := a.GetOldObject().(*v1alpha1.InitializerConfiguration)
	if !ok {
		return nil
	}
	count := 0
	for r, err := range p.cfg.Waiting.All(ctx) {
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if slices.ContainsFunc(deleted.Initializers, func(i v1alpha1.Initializer) bool { return slices.Contains(r.Pending, i.Name) }) {
			count++
		}
	}
	if count > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("%d objects wait for initializers of %q; they are let go in %s unless a configuration names these initializers again", count, deleted.Name, orphanAfter))
	}
	return nil
}

// of is what an object waits for; what has no metadata waits for nothing.
func of(a admission.Attributes) (*initializers.Initializers, error) {
	have, err := initializers.Of(a.GetObject())
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return have, nil
}
