// Package lent lets upstream's own plugins decide, on a view of the plane.
//
// Upstream's plugins read through listers and look once more through a client
// where a lister may be behind. Here both are lent to a plugin for one request
// and read the plane that the request is for, as of now: nothing is watched,
// nothing is cached, nothing runs in the background. A plugin that reads
// nothing is made once.
package lent

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"setpoint.dev/setpoint/admission/view"
)

// Config says which plugin it is, and what it works with.
type Config struct {
	Name     string // upstream's
	Register func(*admission.Plugins)
	// File is the plugin's configuration; nil means none.
	File       []byte
	Objects    view.Objects
	Authorizer authorizer.Authorizer
	// Mapper knows which resources have a kind; nil for plugins that do not ask.
	Mapper meta.RESTMapper
	// Namespaces makes a namespace where a plugin wants one to be; nil for plugins
	// that do not.
	Namespaces Provisioner
}

// Plugin is a plugin of upstream's.
type Plugin struct {
	cfg      Config
	registry *admission.Plugins
	// made is the plugin without anything to read: it says which operations are
	// its, and decides where it needs nothing else.
	made  admission.Interface
	reads bool
}

// New returns the plugin, or says what is wrong with its configuration.
func New(cfg Config) (admission.Interface, error) {
	p := &Plugin{cfg: cfg, registry: admission.NewPlugins()}
	cfg.Register(p.registry)
	var err error
	if p.made, err = p.lend(context.Background()); err != nil {
		return nil, err
	}
	_, lists := p.made.(initializer.WantsExternalKubeInformerFactory)
	_, asks := p.made.(initializer.WantsExternalKubeClientSet)
	p.reads = lists || asks
	return p, nil
}

// lend makes the plugin, with listers and a client for the request of ctx.
func (p *Plugin) lend(ctx context.Context) (admission.Interface, error) {
	var file io.Reader
	if p.cfg.File != nil {
		file = bytes.NewReader(p.cfg.File)
	}
	window := window{ctx: ctx, objects: p.cfg.Objects, provisioner: p.cfg.Namespaces}
	made, err := p.registry.InitPlugin(p.cfg.Name, file, initializer.New(
		client{window: window}, nil, factory{window: window}, p.cfg.Authorizer, utilfeature.DefaultFeatureGate, nil, nil, p.cfg.Mapper))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.cfg.Name, err)
	}
	return made, nil
}

// of is the plugin for a request.
func (p *Plugin) of(ctx context.Context) (admission.Interface, error) {
	if !p.reads {
		return p.made, nil
	}
	return p.lend(ctx)
}

// Handles implements admission.Interface.
func (p *Plugin) Handles(operation admission.Operation) bool { return p.made.Handles(operation) }

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if _, mutates := p.made.(admission.MutationInterface); !mutates {
		return nil
	}
	made, err := p.of(ctx)
	if err != nil {
		return err
	}
	return made.(admission.MutationInterface).Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if _, validates := p.made.(admission.ValidationInterface); !validates {
		return nil
	}
	made, err := p.of(ctx)
	if err != nil {
		return err
	}
	return made.(admission.ValidationInterface).Validate(ctx, a, o)
}
