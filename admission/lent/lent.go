// Package lent lets upstream's own plugins decide, on a view of the plane.
//
// Upstream's plugins read through listers and look once more through a client
// where a lister may be behind. Here both are lent to a plugin for one request
// at a time and read the plane that the request is for, as of now: nothing is
// watched, nothing is cached, nothing runs in the background. A plugin that reads
// nothing is made once; of others there are as many as requests have been under
// way at a time, and the collector takes those that are left over.
package lent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

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
	spare sync.Pool // of *loan
}

// loan is a plugin with the window that it looks through.
type loan struct {
	admission.Interface
	window *window
}

// New returns the plugin, or says what is wrong with its configuration.
func New(cfg Config) (admission.Interface, error) {
	p := &Plugin{cfg: cfg, registry: admission.NewPlugins()}
	cfg.Register(p.registry)
	first, err := p.lend()
	if err != nil {
		return nil, err
	}
	p.made = first.Interface
	_, lists := p.made.(initializer.WantsExternalKubeInformerFactory)
	_, asks := p.made.(initializer.WantsExternalKubeClientSet)
	p.reads = lists || asks
	return p, nil
}

// lend makes the plugin, with listers and a client that nobody has yet.
func (p *Plugin) lend() (*loan, error) {
	var file io.Reader
	if p.cfg.File != nil {
		file = bytes.NewReader(p.cfg.File)
	}
	window := &window{ctx: context.Background(), objects: p.cfg.Objects, provisioner: p.cfg.Namespaces}
	made, err := p.registry.InitPlugin(p.cfg.Name, file, initializer.New(
		client{window: window}, nil, factory{window: window}, p.cfg.Authorizer, utilfeature.DefaultFeatureGate, nil, nil, p.cfg.Mapper))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.cfg.Name, err)
	}
	return &loan{made, window}, nil
}

// with has the plugin decide for the request of ctx.
func (p *Plugin) with(ctx context.Context, decide func(admission.Interface) error) error {
	if !p.reads {
		return decide(p.made)
	}
	l, _ := p.spare.Get().(*loan)
	if l == nil {
		var err error
		if l, err = p.lend(); err != nil {
			return err
		}
	}
	l.window.ctx = ctx
	err := decide(l.Interface)
	l.window.ctx = nil
	p.spare.Put(l)
	return err
}

// Handles implements admission.Interface.
func (p *Plugin) Handles(operation admission.Operation) bool { return p.made.Handles(operation) }

// Admit implements admission.MutationInterface.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if _, mutates := p.made.(admission.MutationInterface); !mutates {
		return nil
	}
	return p.with(ctx, func(made admission.Interface) error { return made.(admission.MutationInterface).Admit(ctx, a, o) })
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if _, validates := p.made.(admission.ValidationInterface); !validates {
		return nil
	}
	return p.with(ctx, func(made admission.Interface) error { return made.(admission.ValidationInterface).Validate(ctx, a, o) })
}
