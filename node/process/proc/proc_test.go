//go:build linux

package proc

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	// A program may be called anything.
	got, err := parse([]byte("42 (a) R (b) S 7 42 41 0 -1 4194304 90 0 3 0 150 50 25 25 20 0 1 0 123456 1000 10 18446744073709551615 0 0"))
	if err != nil {
		t.Fatal(err)
	}
	want := Stat{PID: 42, Parent: 7, Session: 41, State: 'S', Began: 123456, CPU: 2500 * time.Millisecond, Resident: 10 * uint64(os.Getpagesize()), Faults: 90, MajorFaults: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, broken := range []string{"", "42", "42 (a", "x (a) S 1", "42 (a) S 1 2"} {
		if _, err := parse([]byte(broken)); err == nil {
			t.Errorf("%q was read", broken)
		}
	}
}

func TestBelow(t *testing.T) {
	all := []Stat{{PID: 1}, {PID: 2, Parent: 1}, {PID: 3, Parent: 2}, {PID: 4, Parent: 1}, {PID: 5, Parent: 3}, {PID: 6, Parent: 6}}
	var got []int
	for _, s := range Below(all, 2) {
		got = append(got, s.PID)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]int{3, 5}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSelf(t *testing.T) {
	s, err := Read(os.Getpid())
	if err != nil || s.PID != os.Getpid() || s.Parent != os.Getppid() || s.Began == 0 {
		t.Errorf("%+v %v", s, err)
	}
	all, err := All()
	if err != nil || !slices.ContainsFunc(all, func(o Stat) bool { return o.PID == s.PID && o.Began == s.Began }) {
		t.Errorf("this process is not among all: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("42 (a) S 7 42 41 0 -1 4194304 90 0 3 0 150 50 25 25 20 0 1 0 123456 1000 10"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parse(b) })
}
