package turns_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"setpoint.dev/setpoint/server/rest/turns"
)

func TestTurnsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string, int]
		first, err := all.Take(t.Context(), "a")
		if err != nil || first == nil {
			t.Fatalf("the first to take: %v, %v", first != nil, err)
		}
		var mu sync.Mutex
		var order []int
		var wait sync.WaitGroup
		for i := range 10 {
			join := all.Join
			if i%2 == 0 {
				join = all.Take
			}
			wait.Go(func() {
				turn, err := join(t.Context(), "a")
				if err != nil || turn == nil {
					t.Errorf("%d: %v, %v", i, turn != nil, err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				turn.Done()
			})
			synctest.Wait()
		}
		if other, err := all.Take(t.Context(), "b"); err != nil || other == nil {
			t.Errorf("another key waits: %v, %v", other != nil, err)
		}
		first.Done()
		wait.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Errorf("order %v", order)
		}
	})
}

func TestNobodyWaitsWhereNobodyTakes(t *testing.T) {
	var all turns.Turns[string, int]
	for range 2 {
		turn, err := all.Join(t.Context(), "a")
		if err != nil || turn != nil {
			t.Fatalf("%v, %v", turn != nil, err)
		}
		turn.Done() // of no turn: nothing
	}
	turn, err := all.Take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	turn.Done()
	if again, err := all.Join(t.Context(), "a"); err != nil || again != nil {
		t.Errorf("a key is kept after its last turn: %v, %v", again != nil, err)
	}
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string, int]
		held, err := all.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		turn, err := all.Take(t.Context(), "a")
		if waited := time.Since(begun); err != nil || turn != nil || waited != turns.Patience {
			t.Errorf("waited %v: %v, %v", waited, turn != nil, err)
		}
		var wait sync.WaitGroup
		for range turns.MaxWaiting {
			wait.Go(func() {
				turn, err := all.Take(t.Context(), "a")
				if err != nil {
					t.Error(err)
				}
				turn.Done()
			})
		}
		synctest.Wait()
		begun = time.Now()
		if turn, err := all.Join(t.Context(), "a"); err != nil || turn != nil || time.Since(begun) != 0 {
			t.Errorf("one too many waited %v: %v, %v", time.Since(begun), turn != nil, err)
		}
		held.Done()
		wait.Wait()
	})
}

func TestWhoIsGoneHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string, int]
		held, err := all.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if turn, err := all.Take(ctx, "a"); !errors.Is(err, context.Canceled) || turn != nil {
				t.Errorf("cancelled: %v, %v", turn != nil, err)
			}
		})
		synctest.Wait()
		wait.Go(func() {
			turn, err := all.Take(t.Context(), "a")
			if err != nil || turn == nil {
				t.Errorf("the next: %v, %v", turn != nil, err)
			}
			turn.Done()
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		held.Done()
		wait.Wait()
	})
}

// Turns end however those who wait come and go.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[int, int]
		var wait sync.WaitGroup
		for i := range 400 {
			wait.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*100*time.Millisecond)
				defer cancel()
				turn, err := all.Take(ctx, i%3)
				if err != nil {
					return
				}
				time.Sleep(time.Duration(i%5) * 10 * time.Millisecond)
				turn.Done()
			})
		}
		wait.Wait()
		for key := range 3 {
			if turn, err := all.Join(t.Context(), key); err != nil || turn != nil {
				t.Errorf("key %d is still taken: %v", key, err)
			}
		}
	})
}

// A turn that is passed on goes to who waits, or comes next, with what it is passed
// on with; when it is done before, there is none.
func TestATurnIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string, int]
		take := func() *turns.Turn[string, int] {
			turn, err := all.Take(t.Context(), "a")
			if err != nil || turn == nil {
				t.Fatalf("%v, %v", turn, err)
			}
			return turn
		}
		first := take()
		waits := make(chan *turns.Turn[string, int], 1)
		go func() { waits <- take() }()
		synctest.Wait()
		first.Pass(7)
		first.Pass(8) // it is not his any more
		second := <-waits
		if second.Given != 7 {
			t.Errorf("the next has got %d", second.Given)
		}
		second.Pass(9)
		third, err := all.Join(t.Context(), "a")
		if err != nil || third == nil || third.Given != 9 {
			t.Fatalf("who comes then: %v, %v", third, err)
		}
		second.Done()
		first.Done()
		begun := time.Now()
		go func() {
			time.Sleep(time.Millisecond)
			third.Done()
		}()
		fourth := take()
		if time.Since(begun) != time.Millisecond || fourth.Given != 0 {
			t.Errorf("a turn of somebody else's was done: %v, %d", time.Since(begun), fourth.Given)
		}
		fourth.Pass(10)
		fourth.Done()
		if turn, err := all.Join(t.Context(), "a"); err != nil || turn != nil {
			t.Errorf("a turn that is done is there: %v, %v", turn, err)
		}
	})
}
