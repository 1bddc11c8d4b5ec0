// Package seat is the place that a request takes up among those that are
// under way.
//
// Whoever lets requests in puts the place into the context; whoever lets one
// wait for others gives it back, so that those find room.
package seat

import "context"

// Seat is the place of one request.
type Seat interface {
	// GiveBack says that the request only waits from now on. It may be called
	// more than once, by whoever handles the request.
	GiveBack()
}

type key struct{}

// With returns a context in which the request has a place.
func With(ctx context.Context, s Seat) context.Context { return context.WithValue(ctx, key{}, s) }

// GiveBack gives the place of the context's request back, if it has one.
func GiveBack(ctx context.Context) {
	if s, ok := ctx.Value(key{}).(Seat); ok {
		s.GiveBack()
	}
}
