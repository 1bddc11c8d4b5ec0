package observe

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
)

// Tells is a runtime that says which pods something happens to, "" for one it does
// not name. It returns when it ceases to; the error's code is Unimplemented when it
// never can.
type Tells func(ctx context.Context, begun func(), happened func(types.UID)) error

// Pauses before a runtime that has ceased to tell is asked again, and before one
// that cannot is: it may have been replaced meanwhile.
const (
	firstPause   = time.Second
	longestPause = 30 * time.Second
	unablePause  = 10 * time.Minute
)

// Follow has a runtime tell until ctx ends, again and again where it ceases. live
// is called when it begins and when it has ceased.
func Follow(ctx context.Context, tells Tells, live func(bool), happened func(types.UID)) {
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, longestPause) {
		err := tells(ctx, func() { pause = firstPause; live(true) }, happened)
		live(false)
		wait := pause
		if status.Code(err) == codes.Unimplemented {
			wait = unablePause
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}
