package initializer

import "testing"

func TestOneThatLetsObjectsWaitIsStalledUntilItActs(t *testing.T) {
	h := &Health{}
	h.Acted("a", at(5))
	h.Overdue("a", at(0), at(10))
	if !h.Stalled("a").IsZero() {
		t.Error("stalled although it has acted since")
	}
	h.Overdue("a", at(6), at(16))
	if !h.Stalled("a").Equal(at(16)) {
		t.Errorf("stalled since %v", h.Stalled("a"))
	}
	h.Overdue("a", at(7), at(17))
	if !h.Stalled("a").Equal(at(16)) {
		t.Errorf("stalled anew, since %v", h.Stalled("a"))
	}
	if !h.Probe("a", false, at(20)) {
		t.Error("it gets no object to try with")
	}
	if h.Probe("a", false, at(21)) {
		t.Error("it gets a second object while the first is on its way")
	}
	if h.Probe("a", true, at(30)) {
		t.Error("it gets a second object while the first waits")
	}
	if !h.Probe("a", false, at(30)) {
		t.Error("it gets no further object once the first is gone")
	}
	h.Acted("a", at(31))
	if !h.Stalled("a").IsZero() || !h.LastActed("a").Equal(at(31)) {
		t.Error("still stalled although it has acted")
	}
	h.Keep(func(name string) bool { return name != "a" })
	if !h.LastActed("a").IsZero() {
		t.Error("not forgotten")
	}
}

func TestADeadlockIsRememberedUntilSomebodyActs(t *testing.T) {
	h := &Health{}
	if !h.LockedUntil("a", at(0)).IsZero() {
		t.Error("deadlocked from the beginning")
	}
	h.Deadlocked("a", at(0))
	h.Deadlocked("a", at(30))
	if got := h.LockedUntil("a", at(89)); !got.Equal(at(90)) {
		t.Errorf("deadlocked until %v", got)
	}
	if !h.LockedUntil("a", at(90)).IsZero() {
		t.Error("deadlocked for ever")
	}
	h.Deadlocked("a", at(100))
	h.Acted("a", at(101))
	if !h.LockedUntil("a", at(102)).IsZero() {
		t.Error("deadlocked although it has acted")
	}
}
