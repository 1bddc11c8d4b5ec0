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

	"setpoint.dev/setpoint/admission/namespace"
	"setpoint.dev/setpoint/admission/view"
)

// Config says what the plugins work with, and which of them run.
type Config struct {
	Objects view.Objects
	// Enable and Disable name plugins that run, or do not, against the default.
	Enable, Disable []string
}

// plugin is a line of the list.
type plugin struct {
	name string // upstream's
	off  bool   // unless it is asked for
	make func(Config) (admission.Interface, error)
}

// plugins are all there are, in the order in which they act. The whole list
// mutates first; the whole list validates after the object's own validation.
var plugins = []plugin{
	{name: "NamespaceLifecycle", make: func(cfg Config) (admission.Interface, error) { return namespace.New(cfg.Objects), nil }},
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
	c := &Chain{}
	for _, p := range plugins {
		if slices.Contains(cfg.Disable, p.name) || p.off && !slices.Contains(cfg.Enable, p.name) {
			continue
		}
		made, err := p.make(cfg)
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
// object; the first error is the answer.
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
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
