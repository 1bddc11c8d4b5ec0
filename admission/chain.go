// Package admission is what an object passes between being decoded and being
// stored: things that must happen to it before anyone sees it, and things that
// must hold.
//
// A plugin is upstream's admission.Interface: it may change the object while
// it is admitted (admission.MutationInterface), and may refuse it once it is
// complete and valid (admission.ValidationInterface). Each has a folder of its
// own and a line in plugins, in the order in which they act. What a plugin reads
// it reads through a view, so that it never decides by what was true before.
package admission

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/namespace"
	"setpoint.dev/setpoint/admission/policy"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/admission/webhook"
	"setpoint.dev/setpoint/kinds"
)

// Config says what the plugins work with, and which of them run.
type Config struct {
	Objects view.Objects
	// Kinds are those that are served.
	Kinds func() *kinds.List
	// Services finds where webhooks that are services are reached.
	Services webhookutil.ServiceResolver
	// Authorizer answers what conditions and policies ask about users.
	Authorizer authorizer.Authorizer
	// Initializers says how objects wait for initializers, Waiting which do, and
	// Health what has been seen of those that they wait for.
	Initializers initializer.Settings
	Waiting      initializer.Waiting
	Health       *initializer.Health
	// Enable and Disable name plugins that run, or do not, against the default.
	Enable, Disable []string
}

// plugin is a line of the list.
type plugin struct {
	name string // upstream's
	off  bool   // unless it is asked for
	make func(shared) (admission.Interface, error)
}

// shared is what plugins are made from: the configuration, and what more than
// one of them uses.
type shared struct {
	Config
	webhooks *webhook.Callers
}

func (s shared) policies() policy.Config {
	return policy.Config{Objects: s.Objects, Kinds: s.Kinds, Authorizer: s.Authorizer}
}

// plugins are all there are, in the order in which they act. The whole list
// mutates first; the whole list validates after the object's own validation.
var plugins = []plugin{
	{name: "NamespaceLifecycle", make: func(cfg shared) (admission.Interface, error) { return namespace.New(cfg.Objects), nil }},
	{name: policy.MutatingName, make: func(cfg shared) (admission.Interface, error) { return policy.NewMutating(cfg.policies()), nil }},
	{name: webhook.MutatingName, make: func(cfg shared) (admission.Interface, error) { return webhook.NewMutating(cfg.webhooks), nil }},
	{name: initializer.PluginName, make: func(cfg shared) (admission.Interface, error) {
		return initializer.New(initializer.Config{Settings: cfg.Initializers, Objects: cfg.Objects, Authorizer: cfg.Authorizer, Waiting: cfg.Waiting, Health: cfg.Health}), nil
	}},
	{name: policy.ValidatingName, make: func(cfg shared) (admission.Interface, error) { return policy.NewValidating(cfg.policies()), nil }},
	{name: webhook.ValidatingName, make: func(cfg shared) (admission.Interface, error) { return webhook.NewValidating(cfg.webhooks), nil }},
}

// Chain is the plugins that run.
type Chain struct {
	plugins []admission.Interface
}

// New makes the plugins that cfg asks for.
func New(cfg Config) (*Chain, error) {
	for _, name := range slices.Concat(cfg.Enable, cfg.Disable) {
		if !slices.ContainsFunc(plugins, func(p plugin) bool { return p.name == name }) {
			return nil, fmt.Errorf("admission-control plugin %q is unknown", name)
		}
	}
	for _, name := range cfg.Enable {
		if slices.Contains(cfg.Disable, name) {
			return nil, fmt.Errorf("%s in enable-admission-plugins and disable-admission-plugins overlapped", name)
		}
	}
	webhooks, err := webhook.New(webhook.Config{Objects: cfg.Objects, Services: cfg.Services, Authorizer: cfg.Authorizer})
	if err != nil {
		return nil, err
	}
	c := &Chain{}
	for _, p := range plugins {
		if slices.Contains(cfg.Disable, p.name) || p.off && !slices.Contains(cfg.Enable, p.name) {
			continue
		}
		made, err := p.make(shared{cfg, webhooks})
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", p.name, err)
		}
		c.plugins = append(c.plugins, made)
	}
	return c, nil
}

// Handles implements admission.Interface.
func (c *Chain) Handles(operation admission.Operation) bool {
	return slices.ContainsFunc(c.plugins, func(p admission.Interface) bool { return p.Handles(operation) })
}

// Admit implements admission.MutationInterface: every plugin may change the
// object; the first error is the answer. When somebody from outside has changed
// it, all go over it once more, so that what they ensure holds of what it has
// become.
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if err := c.mutate(ctx, a, o); err != nil {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return c.mutate(ctx, a, o)
}

func (c *Chain) mutate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	for _, p := range c.plugins {
		if m, ok := p.(admission.MutationInterface); ok && p.Handles(a.GetOperation()) {
			if err := m.Admit(ctx, a, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// Validate implements admission.ValidationInterface: every plugin may refuse
// the object; the first error is the answer.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	for _, p := range c.plugins {
		if v, ok := p.(admission.ValidationInterface); ok && p.Handles(a.GetOperation()) {
			if err := v.Validate(ctx, a, o); err != nil {
				return err
			}
		}
	}
	return nil
}
