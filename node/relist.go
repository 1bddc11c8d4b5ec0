package node

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/observe"
)

// How often the runtime is asked for everything: when it does not tell what happens
// or something has happened a moment ago, and when it tells and nothing does.
const (
	relistEvery = time.Second
	relistCalm  = 15 * time.Second
	// busy is how long a moment is.
	busy = 5 * time.Second
	// settle is how long what happened takes to be seen in lists.
	settle = 20 * time.Millisecond
)

// pace says when the runtime is to be asked for everything.
type pace struct {
	told     bool      // the runtime tells what happens
	happened time.Time // when something last did
}

// next is how long to wait.
func (p *pace) next(now time.Time) time.Duration {
	if p.told && now.Sub(p.happened) > busy {
		return relistCalm
	}
	return relistEvery
}

// relist asks the runtime for everything again and again, wakes who is concerned,
// and finds what nobody knows.
func (a *Agent) relist(ctx context.Context) {
	r := &observe.Relister{Runtime: a.cfg.Runtime, Owner: a.owner()}
	told, happened := make(chan bool), make(chan struct{}, 1)
	if a.cfg.Tells != nil {
		following := make(chan struct{})
		defer func() { <-following }()
		go func() {
			defer close(following)
			a.follow(ctx, told, happened)
		}()
	}
	var p pace
	for first := true; ; {
		changed, all, err := r.Changed(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.cfg.Logger.Warn("the runtime does not say what runs", "error", err)
		case err == nil:
			for _, uid := range changed {
				a.Wake(uid)
				p.happened = time.Now()
			}
			if _, sure := a.Known(); sure {
				a.adoptOrphans(all, first)
				first = false
			}
		}
		if first || err != nil {
			p.happened = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case p.told = <-told:
		case <-happened:
			p.happened = time.Now()
			time.Sleep(settle)
		case <-time.After(p.next(time.Now())):
		}
	}
}

// follow passes on what the runtime tells: to a pod's worker, or to relist where the
// runtime does not name the pod.
func (a *Agent) follow(ctx context.Context, told chan<- bool, happened chan<- struct{}) {
	observe.Follow(ctx, a.cfg.Tells, func(live bool) {
		select {
		case told <- live:
		case <-ctx.Done():
		}
	}, func(uid types.UID) {
		if uid != "" {
			a.Wake(uid)
			return
		}
		select {
		case happened <- struct{}{}:
		default:
		}
	})
}
