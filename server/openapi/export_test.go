package openapi

import "setpoint.dev/setpoint/kinds"

// NewPlain is New for documents that say nothing of initializers.
func NewPlain(list func() *kinds.List, version string) *Server {
	s := New(list, version)
	s.plain = true
	return s
}
