package observe_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/observe"
)

// TestFollow has runtimes cease to tell, by the clock, and looks when they are asked
// again.
func TestFollow(t *testing.T) {
	lost := errors.New("connection refused")
	unable := status.Error(codes.Unimplemented, "unknown method")
	for _, test := range []struct {
		name  string
		tells observe.Tells
		// asked is when, in the first minutes; said is what others are told.
		asked []time.Duration
		said  []string
	}{
		{"one that cannot", func(context.Context, func(), func(types.UID)) error { return unable }, []time.Duration{0}, []string{"off"}},
		{
			"one that is not there", func(context.Context, func(), func(types.UID)) error { return lost },
			[]time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second, 31 * time.Second, 61 * time.Second, 91 * time.Second, 121 * time.Second},
			[]string{"off", "off", "off", "off", "off", "off", "off", "off", "off"},
		},
		{
			"one that tells for a minute",
			func(_ context.Context, begun func(), happened func(types.UID)) error {
				begun()
				happened("web")
				time.Sleep(time.Minute)
				return lost
			},
			[]time.Duration{0, 61 * time.Second},
			[]string{"on", "web", "off", "on", "web", "off"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 121*time.Second+time.Millisecond)
				defer cancel()
				begin := time.Now()
				var asked []time.Duration
				var said []string
				observe.Follow(ctx, func(ctx context.Context, begun func(), happened func(types.UID)) error {
					asked = append(asked, time.Since(begin))
					return test.tells(ctx, begun, happened)
				}, func(live bool) {
					said = append(said, map[bool]string{true: "on", false: "off"}[live])
				}, func(uid types.UID) { said = append(said, string(uid)) })
				if diff := cmp.Diff(test.asked, asked); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(test.said, said); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
