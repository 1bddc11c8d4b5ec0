package initializers_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"setpoint.dev/setpoint/app"
)

// Two initializers that guard each other, and are not running yet: neither starts
// before the other has acted.
func TestDeadlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes ten seconds until initializers that wait for each other are called deadlocked")
	}
	of := func(name string, holds func(*world)) row {
		return row{name: name, holds: holds, long: true, not: map[string]string{custom: "initializers run as pods"}}
	}
	inEach(
		t, app.Config{},
		of("the older one goes on without the other", unlockedBySkipping),
		of("the older one fails", unlockedByFailing),
		of("both are waited for", lockedForGood),
		of("one that is made to wait for itself", lockedByItself),
	)
}

// guards are two initializers, a and b, each of which wants all pods but its own.
func (w *world) guards(more ...any) (a, b string) {
	w.t.Helper()
	a, b = w.own("a"), w.own("b")
	w.configure(w.namespace,
		w.here(a, append(slices.Clone(more), "controller", w.run("a"))...),
		w.here(b, append(slices.Clone(more), "controller", w.run("b"))...),
	)
	return a, b
}

// starting creates the pod of an account, and returns once it waits for one
// initializer.
func (w *world) starting(account string, initializers any, head string) <-chan answer {
	w.t.Helper()
	pod := w.thing("pod-of-"+account, initializers)
	pod["spec"] = object{"serviceAccountName": account, "containers": podSpec["containers"]}
	created := soon(func() answer { return w.write("POST", w.path(), pod) })
	if got := w.waits("pod-of-" + account); !slices.Equal(got, []string{head}) {
		w.t.Fatalf("the pod of %s waits for %v", account, got)
	}
	return created
}

// locked waits until an initializer is said to be deadlocked, by its condition and
// by an event about its configuration.
func (w *world) locked(name string) {
	w.t.Helper()
	eventually(w.t, name+" is deadlocked", func() bool { return w.condition(w.namespace, name, "Deadlocked") == "True" })
	if got := w.condition(w.namespace, name, "Ready"); got != "False" {
		w.t.Errorf("Ready of %s is %s", name, got)
	}
	eventually(w.t, "there is an event about "+name, func() bool {
		events := w.events("default", "InitializerDeadlocked", w.namespace)
		return slices.Contains(events, `initializer "`+name+`": its pods wait for an initializer whose pods wait for it`)
	})
}

func unlockedBySkipping(w *world) {
	a, b := w.guards("failurePolicy", "Ignore", "timeoutSeconds", 600)
	first := w.starting("a", nil, b)
	second := w.starting("b", nil, a)
	w.locked(a)
	w.locked(b)
	got := within(w.t, first)
	annotations, _ := got.metadata()["annotations"].(object)
	if got.code != http.StatusCreated || annotations["initializers.setpoint.dev/skipped"] != b {
		w.t.Errorf("the older one: %v", got)
	}
	w.reported("InitializerDeadlocked", "pod-of-a")
	still(w.t, second)
	// The older one runs, and acts.
	w.done("pod-of-b")
	if got := within(w.t, second); got.code != http.StatusCreated || got.metadata()["annotations"] != nil {
		w.t.Errorf("the younger one: %v", got)
	}
	eventually(w.t, "the older one is deadlocked no more", func() bool { return w.condition(w.namespace, a, "Deadlocked") == "False" })
}

func unlockedByFailing(w *world) {
	a, b := w.guards("failurePolicy", "Fail", "timeoutSeconds", 600)
	first := w.starting("a", nil, b)
	w.starting("b", nil, a)
	w.locked(a)
	w.locked(b)
	got := within(w.t, first)
	if got.code != http.StatusGatewayTimeout || !strings.Contains(got.message(), `initializer "`+b+`" cannot act: its own pods wait for this one`) {
		w.t.Errorf("the older one: %v", got)
	}
	w.reported("InitializerDeadlocked", "pod-of-a")
	if left := w.get("pod-of-a"); left.code != http.StatusNotFound {
		w.t.Errorf("left behind: %v", left)
	}
	if left := w.get("pod-of-b"); left.code != http.StatusOK {
		w.t.Errorf("the younger one: %v", left)
	}
}

func lockedForGood(w *world) {
	a, b := w.guards("failurePolicy", "Wait")
	first := w.starting("a", nil, b)
	second := w.starting("b", nil, a)
	w.locked(a)
	w.locked(b)
	still(w.t, first)
	still(w.t, second)
}

func lockedByItself(w *world) {
	a, _ := w.guards("failurePolicy", "Ignore", "timeoutSeconds", 600)
	created := w.starting("a", pending(a), a)
	w.locked(a)
	if got := within(w.t, created); got.code != http.StatusCreated {
		w.t.Errorf("%v", got)
	}
	w.reported("InitializerDeadlocked", "pod-of-a")
}
