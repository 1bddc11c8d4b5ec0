package initializers_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

// T8: who may take what off, and what is not taken off by accident.
func TestOwnership(t *testing.T) {
	inEach(
		t, app.Config{},
		row{name: "T8, an update that does not know the list", holds: unknowing},
		row{name: "T8, only the owner completes by leaving out", holds: leftOutByOwner},
		row{name: "T8, who may write what waits", holds: finerRight},
	)
}

// Where only owners take names off.
func TestStrictOwnership(t *testing.T) {
	inEach(
		t, app.Config{Initializers: initializer.Settings{StrictOwnership: true}},
		row{name: "T8, nobody but the owner takes a name off or moves it", holds: strictlyOwned},
	)
}

func unknowing(w *world) {
	w.create("x", pending("a.k8s.io", "b.k8s.io"), all)
	got := w.put(func(o object) {
		withoutField(o)
		o["metadata"].(object)["labels"] = object{"a": "b"}
	})
	if got.code != http.StatusOK || !slices.Equal(pendingOf(got.body), []string{"a.k8s.io", "b.k8s.io"}) || !slices.Contains(got.warnings, "metadata.initializers absent from update: pending initializers kept") {
		w.t.Errorf("%v", got)
	}
	empty := w.put(func(o object) { o["metadata"].(object)["initializers"] = pending() })
	if empty.code != http.StatusOK || pendingOf(empty.body) != nil {
		w.t.Errorf("an empty list: %v", empty)
	}
}

func leftOutByOwner(w *world) {
	owner := w.user("init")
	w.configure("c", w.forAll("a.k8s.io", "controller", w.run("init")))
	w.create("x", nil, all)
	for _, user := range []string{"tool", owner} {
		w.allow(user, "get", "update", "initialize")
	}
	if got := w.as("tool").put(withoutField); got.code != http.StatusOK || pendingOf(got.body) == nil || len(got.warnings) == 0 {
		w.t.Errorf("a tool: %v", got)
	}
	if got := w.as(owner).put(withoutField); got.code != http.StatusOK || pendingOf(got.body) != nil {
		w.t.Errorf("the owner: %v", got)
	}
}

func finerRight(w *world) {
	w.allow("jane", "get", "patch")
	w.create("x", pending("a.k8s.io", "b.k8s.io"), all)
	denied := w.as("jane").merge("x", `{"metadata":{"labels":{"a":"b"}}}`)
	if denied.code != http.StatusForbidden || !strings.Contains(denied.message(), "update to uninitialized resource denied:") {
		w.t.Errorf("without the right: %v", denied)
	}
	// The right to be one of the initializers is enough to take that off.
	w.grant("a",
		object{"apiGroups": []any{w.group}, "resources": []any{w.resource}, "verbs": []any{"get", "patch"}},
		object{"apiGroups": []any{"admissionregistration.k8s.io"}, "resources": []any{"initializers"}, "resourceNames": []any{"a.k8s.io"}, "verbs": []any{"initialize"}},
	)
	other := w.as("a").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"a.k8s.io"}]}}}`)
	if other.code != http.StatusForbidden {
		w.t.Errorf("another's name: %v", other)
	}
	own := w.as("a").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"}]}}}`)
	if own.code != http.StatusOK || len(own.warnings) > 0 {
		w.t.Errorf("its own name: %v", own)
	}
	more := w.merge("x", `{"metadata":{"initializers":{"pending":[{"name":"c.k8s.io"},{"name":"b.k8s.io"}]}}}`)
	if more.code != http.StatusOK || !slices.Contains(more.warnings, `metadata.initializers: \"c.k8s.io\" was added`) {
		w.t.Errorf("another name: %v", more)
	}
	if bad := w.merge("x", `{"metadata":{"initializers":{"pending":[{"name":"short"}]}}}`); bad.code != http.StatusUnprocessableEntity {
		w.t.Errorf("a name that is none: %v", bad)
	}
}

func strictlyOwned(w *world) {
	w.configure("c", w.forAll("a.k8s.io", "controller", w.run("init")), w.forAll("b.k8s.io"))
	w.create("x", nil, all)
	owner := w.user("init")
	for _, user := range []string{"tool", owner} {
		w.allow(user, "get", "patch", "initialize")
	}
	one := `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"}]}}}`
	if got := w.as("tool").merge("x", one); got.code != http.StatusForbidden || !strings.Contains(got.message(), `removing or moving initializer "a.k8s.io" denied`) {
		w.t.Errorf("not the owner: %v", got)
	}
	if got := w.as("tool").merge("x", `{"metadata":{"initializers":{"pending":[{"name":"b.k8s.io"},{"name":"a.k8s.io"}]}}}`); got.code != http.StatusForbidden {
		w.t.Errorf("another order: %v", got)
	}
	if got := w.as("tool").merge("x", `{"metadata":{"labels":{"a":"b"}}}`); got.code != http.StatusOK {
		w.t.Errorf("what is not the list: %v", got)
	}
	if got := w.as(owner).merge("x", one); got.code != http.StatusOK {
		w.t.Errorf("the owner: %v", got)
	}
	if got := w.as(owner).merge("x", `{"metadata":{"initializers":null}}`); got.code != http.StatusForbidden {
		w.t.Errorf("what is another's: %v", got)
	}
}
