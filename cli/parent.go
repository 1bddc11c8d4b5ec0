package cli

import (
	"context"
	"os"
	"time"
)

// askParentEvery is how often it is asked whether a parent lives, where the
// system does not tell.
const askParentEvery = 200 * time.Millisecond

// withParent returns a context that ends when a process that started this one
// does; 0 is nobody.
func withParent(ctx context.Context, parent int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if parent != 0 {
		go func() {
			awaitEnd(ctx, parent)
			cancel()
		}()
	}
	return ctx, cancel
}

// poll returns when this process has another parent, or when ctx ends.
func poll(ctx context.Context, parent int) {
	tick := time.NewTicker(askParentEvery)
	defer tick.Stop()
	for os.Getppid() == parent {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
