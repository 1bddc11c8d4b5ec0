//go:build !linux

package process

import (
	"context"
	"errors"
)

// Runtime is a container runtime; there is none on this system.
type Runtime struct{}

// Main does nothing here.
func Main() {}

// Open says that there is no such runtime here.
func Open(context.Context, Config) (*Runtime, error) {
	return nil, errors.New("the process runtime needs Linux")
}

// Run does nothing here.
func (*Runtime) Run(context.Context) error { return nil }

// Endpoint is empty here.
func (*Runtime) Endpoint() string { return "" }
