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
		var all turns.Turns[string]
		first, err := all.Take(t.Context(), "a")
		if err != nil || !first.Has() {
			t.Fatalf("the first to take: %v, %v", first.Has(), err)
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
				if err != nil || !turn.Has() {
					t.Errorf("%d: %v, %v", i, turn.Has(), err)
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				turn.Done()
			})
			synctest.Wait()
		}
		if other, err := all.Take(t.Context(), "b"); err != nil || !other.Has() {
			t.Errorf("another key waits: %v, %v", other.Has(), err)
		}
		first.Done()
		wait.Wait()
		if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Errorf("order %v", order)
		}
	})
}

func TestNobodyWaitsWhereNobodyTakes(t *testing.T) {
	var all turns.Turns[string]
	for range 2 {
		turn, err := all.Join(t.Context(), "a")
		if err != nil || turn.Has() {
			t.Fatalf("%v, %v", turn.Has(), err)
		}
		turn.Done() // of no turn: nothing
	}
	turn, err := all.Take(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	turn.Done()
	if again, err := all.Join(t.Context(), "a"); err != nil || again.Has() {
		t.Errorf("a key is kept after its last turn: %v, %v", again.Has(), err)
	}
}

func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string]
		held, err := all.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		turn, err := all.Take(t.Context(), "a")
		if waited := time.Since(begun); err != nil || turn.Has() || waited != turns.Patience {
			t.Errorf("waited %v: %v, %v", waited, turn.Has(), err)
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
		if turn, err := all.Join(t.Context(), "a"); err != nil || turn.Has() || time.Since(begun) != 0 {
			t.Errorf("one too many waited %v: %v, %v", time.Since(begun), turn.Has(), err)
		}
		held.Done()
		wait.Wait()
	})
}

func TestWhoIsGoneHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all turns.Turns[string]
		held, err := all.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			if turn, err := all.Take(ctx, "a"); !errors.Is(err, context.Canceled) || turn.Has() {
				t.Errorf("cancelled: %v, %v", turn.Has(), err)
			}
		})
		synctest.Wait()
		wait.Go(func() {
			turn, err := all.Take(t.Context(), "a")
			if err != nil || !turn.Has() {
				t.Errorf("the next: %v, %v", turn.Has(), err)
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
		var all turns.Turns[int]
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
			if turn, err := all.Join(t.Context(), key); err != nil || turn.Has() {
				t.Errorf("key %d is still taken: %v", key, err)
			}
		}
	})
}
