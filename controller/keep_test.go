package controller

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/controller/loop"
)

// mortal dies at once, one way or the other, until it has done so often enough.
type mortal struct {
	lives *[]time.Time
	dies  int
}

// Run implements loop.Runner.
func (m mortal) Run(ctx context.Context) error {
	*m.lives = append(*m.lives, time.Now())
	switch n := len(*m.lives); {
	case n > m.dies:
		<-ctx.Done()
		return nil
	case n%3 == 0:
		panic("it panics")
	case n%3 == 1:
		return errors.New("it fails")
	default:
		return nil
	}
}

func TestAControllerThatDiesIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Handler: http.NotFoundHandler(), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		var lives []time.Time
		s.entries = []entry{{name: "mortal", account: "mortal", start: func(*loop.Actor, Config) loop.Runner { return mortal{&lives, 9} }}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(lives) != 10 {
			t.Errorf("it has lived %d times", len(lives))
		}
		for i := 2; i < len(lives); i++ {
			if pause, before := lives[i].Sub(lives[i-1]), lives[i-1].Sub(lives[i-2]); pause < before || pause > lastPause {
				t.Errorf("it stayed dead for %v, then for %v", before, pause)
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWhichRun(t *testing.T) {
	for _, c := range []struct {
		name  string
		names []string
		runs  map[string]bool
	}{
		{"all", []string{"*"}, map[string]bool{"deployment-controller": true, "bootstrap-signer-controller": false, "token-cleaner-controller": false}},
		{"none said", nil, map[string]bool{"deployment-controller": true, "bootstrap-signer-controller": false}},
		{"all and one to be named", []string{"*", "bootstrapsigner"}, map[string]bool{"deployment-controller": true, "bootstrap-signer-controller": true}},
		{"all but one", []string{"*", "-deployment"}, map[string]bool{"deployment-controller": false, "job-controller": true}},
		{"one", []string{"job"}, map[string]bool{"deployment-controller": false, "job-controller": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			entries, err := chosen(c.names)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.runs {
				got := false
				for _, e := range entries {
					got = got || e.name == name
				}
				if got != want {
					t.Errorf("%s runs: %v", name, got)
				}
			}
		})
	}
	if _, err := chosen([]string{"nobody"}); err == nil {
		t.Error("one that nobody knows was found")
	}
}
