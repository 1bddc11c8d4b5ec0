package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"setpoint.dev/setpoint/store"
)

// An object is written once in each form, however many ask at the same time.
func TestDerivedFormsAreKeptBesideEachOther(t *testing.T) {
	o := store.Finish(store.Op{Key: "k", Value: []byte("v"), RevAt: -1}, 1)
	if _, err := o.Derived("a", func(*store.Object) ([]byte, error) { return nil, errors.New("not now") }); err == nil {
		t.Error("an error was kept to itself")
	}
	var asking sync.WaitGroup
	first := make([][2][]byte, 8)
	for i := range first {
		asking.Go(func() {
			for n, form := range []string{"a", "b"} {
				b, err := o.Derived(form, func(o *store.Object) ([]byte, error) { return fmt.Appendf(nil, "%s of %s", form, o.Value()), nil })
				if err != nil {
					t.Error(err)
				}
				first[i][n] = b
			}
		})
	}
	asking.Wait()
	for i, got := range first {
		if string(got[0]) != "a of v" || string(got[1]) != "b of v" {
			t.Errorf("got %q", got)
		}
		if &got[0][0] != &first[0][0][0] || &got[1][0] != &first[0][1][0] {
			t.Errorf("asker %d has bytes of its own", i)
		}
	}
	again, err := o.Derived("a", func(*store.Object) ([]byte, error) { return nil, errors.New("asked again") })
	if err != nil || &again[0] != &first[0][0][0] {
		t.Errorf("later: %q, %v", again, err)
	}
}
