package fair_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/server/fair"
)

// turns takes all turns that there are, and returns how to end them.
func turns(t *testing.T, b *fair.Bulk) []func() {
	t.Helper()
	var ends []func()
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		end, has := b.Begin(t.Context())
		if !has {
			t.Fatal("somebody asks for little, and there is no turn")
		}
		ends = append(ends, end)
	}
	return ends
}

func TestNobodyTakesTurnsWhenNobodyAsksForLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBulk()
		if _, has := b.Begin(t.Context()); has {
			t.Error("a turn at the beginning")
		}
		b.AsksForLittle()
		if _, has := b.Begin(t.Context()); !has {
			t.Error("no turn when somebody asks for little")
		}
		time.Sleep(2 * time.Second)
		if _, has := b.Begin(t.Context()); has {
			t.Error("a turn two seconds later")
		}
	})
}

// TestPause has somebody wait for a turn: it begins when one has ended, after a
// pause while others ask for little all the time.
func TestPause(t *testing.T) {
	for name, c := range map[string]struct {
		ago, took, want time.Duration
	}{
		"as long as two turns":                {0, 800 * time.Microsecond, 2400 * time.Microsecond},
		"at least so long":                    {0, time.Microsecond, time.Millisecond + time.Microsecond},
		"after one that has ended by itself":  {0, time.Minute, 3 * time.Millisecond},
		"none while there is time between":    {100 * time.Millisecond, 800 * time.Microsecond, 800 * time.Microsecond},
		"none after one that ended by itself": {100 * time.Millisecond, time.Minute, time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := fair.NewBulk()
				b.AsksForLittle()
				time.Sleep(c.ago)
				begun := time.Now()
				ends := turns(t, b)
				go func() {
					time.Sleep(c.took)
					ends[0]()
				}()
				end, has := b.Begin(t.Context())
				if took := time.Since(begun); !has || took != c.want {
					t.Errorf("the next turn came after %v, %v", took, has)
				}
				end()
				time.Sleep(2 * time.Minute) // until all has ended
			})
		})
	}
}

// TestNobodyWaits has one take turns with nobody: there is no pause.
func TestNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBulk()
		b.AsksForLittle()
		begun := time.Now()
		for range 10 {
			ends := turns(t, b)
			time.Sleep(500 * time.Microsecond)
			for _, end := range ends {
				end()
			}
		}
		if took := time.Since(begun); took != 5*time.Millisecond {
			t.Errorf("ten turns of 0.5 ms took %v", took)
		}
	})
}

// TestConnectionsComeFirst has somebody make an answer, somebody else wait to do so,
// and a connection wait to write: it does before, whoever has come first.
func TestConnectionsComeFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBulk()
		b.AsksForLittle()
		turns(t, b)
		came := make(chan string, 2)
		wait := func(who string, begin func(context.Context) (func(), bool)) {
			go func() {
				_, has := begin(t.Context())
				came <- fmt.Sprint(who, has)
			}()
			synctest.Wait()
		}
		wait("maker ", b.Begin)
		wait("connection ", b.BeginWriting)
		if first, second := <-came, <-came; first != "connection true" || second != "maker true" {
			t.Errorf("%s before %s", first, second)
		}
		time.Sleep(time.Minute) // until all has ended
	})
}

func TestWhoGoesIsNotGivenATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := fair.NewBulk()
		b.AsksForLittle()
		ends := turns(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan bool)
		go func() {
			_, has := b.Begin(ctx)
			gone <- has
		}()
		synctest.Wait()
		cancel()
		if <-gone {
			t.Error("a turn for somebody who has gone")
		}
		for _, end := range ends {
			end()
		}
		turns(t, b) // all of them are there again
	})
}

// TestPace has connections take turns at writing, which end when they rest or have
// gone on for long; a watch that follows what others do needs none.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		paces, follow := fair.NewPaces(max(1, runtime.GOMAXPROCS(0)/2) + 1)
		last := paces[len(paces)-1]
		works := func(p *fair.Pace) <-chan time.Time {
			at := make(chan time.Time, 1)
			go func() {
				p.Work()
				at <- time.Now()
			}()
			synctest.Wait()
			return at
		}
		for _, p := range paces[:len(paces)-1] {
			<-works(p)
			<-works(p) // as long as the turn lasts
		}
		begun := time.Now()
		waits := works(last)
		time.Sleep(800 * time.Microsecond)
		paces[0].Rest()
		if took := (<-waits).Sub(begun); took != 2400*time.Microsecond {
			t.Errorf("the next turn came after %v", took)
		}
		follow()
		begun = time.Now()
		if took := (<-works(paces[0])).Sub(begun); took != 0 {
			t.Errorf("a watch that follows waited for %v", took)
		}
		last.Rest()
		last.Rest() // there may have been no turn
		time.Sleep(time.Minute)
	})
}
