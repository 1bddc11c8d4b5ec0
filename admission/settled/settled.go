// Package settled keeps those outside of the server from hearing of an object before
// it is stored: a change may be made to what another is about to store, and admission
// may ask somebody outside about it.
//
// In comes a context that says what has to be waited for; whoever asks outside waits.
package settled

import "context"

type key struct{}

// With returns the context of a request that is made to something which may not be
// stored yet. wait returns when that is known: nil when it is.
func With(ctx context.Context, wait func() error) context.Context {
	return context.WithValue(ctx, key{}, wait)
}

// Await returns when the object that a request is made to is stored, or the reason
// why it is not, after which whatever comes of the request is thrown away.
func Await(ctx context.Context) error {
	if wait, is := ctx.Value(key{}).(func() error); is {
		return wait()
	}
	return nil
}
