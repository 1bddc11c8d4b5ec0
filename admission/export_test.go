package admission

import "k8s.io/apiserver/pkg/admission"

// ChainOf is a chain of plugins that know nothing of what objects wait for.
func ChainOf(plugins ...admission.Interface) *Chain {
	c := &Chain{}
	for _, p := range plugins {
		c.plugins = append(c.plugins, running{Interface: p})
	}
	return c
}
