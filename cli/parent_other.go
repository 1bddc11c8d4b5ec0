//go:build !linux

package cli

import "context"

// awaitEnd returns when a process has ended, or when ctx ends.
func awaitEnd(ctx context.Context, parent int) { poll(ctx, parent) }
