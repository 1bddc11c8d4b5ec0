package admission

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
)

// Lazy is a chain that is made when something is first written: who only reads
// does not wait for it.
type Lazy struct {
	made func() (*Chain, error)
}

// NewLazy returns a chain of what cfg asks for. Of what is wrong with cfg those
// hear who write.
func NewLazy(cfg Config) *Lazy {
	return &Lazy{made: sync.OnceValues(func() (*Chain, error) { return New(cfg) })}
}

// Handles implements admission.Interface.
func (l *Lazy) Handles(operation admission.Operation) bool {
	c, err := l.made()
	return err != nil || c.Handles(operation)
}

// Admit implements admission.MutationInterface.
func (l *Lazy) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	c, err := l.made()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return c.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (l *Lazy) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	c, err := l.made()
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return c.Validate(ctx, a, o)
}
