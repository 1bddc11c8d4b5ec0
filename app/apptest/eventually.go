package apptest

import (
	"context"
	"testing"
	"time"
)

// patience is how long something that must come about may take on a machine
// that has much to do.
const patience = time.Minute

// Eventually waits until nothing is wrong any more: wrong says what still is, ""
// for nothing.
func Eventually(t testing.TB, wrong func(ctx context.Context) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		what := wrong(ctx)
		if what == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("in the end %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
