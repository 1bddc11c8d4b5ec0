package initializers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

// What a server's settings say, and what it tells about itself.
func TestSettings(t *testing.T) {
	inEach(
		t, app.Config{Initializers: initializer.Settings{ExemptNamespaces: []string{"exempt"}, DefaultTimeout: -1}},
		row{name: "namespaces that are exempt are those that are named", holds: exempted},
		row{name: "what waits is counted, and what became of it", holds: measured},
	)
}

func exempted(w *world) {
	if got := w.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"exempt"}}`); got.code != http.StatusCreated && got.code != http.StatusConflict {
		w.t.Fatal(got)
	}
	w.configure("c", w.forAll(w.own("a")))
	for namespace, want := range map[string][]string{"exempt": nil, "kube-system": {w.own("a")}} {
		w.atEnd(w.pathIn(namespace) + "/x")
		got := w.write("POST", w.pathIn(namespace)+all, w.thing("x", nil))
		if diff := cmp.Diff(want, pendingOf(got.body)); diff != "" || got.code >= http.StatusMultipleChoices {
			w.t.Errorf("%s: %v\n%s", namespace, got, diff)
		}
	}
}

func measured(w *world) {
	name := w.own("a")
	w.configure(w.namespace, w.here(name))
	created := w.creating("x", nil, "")
	w.waits("x")
	for _, line := range []string{
		fmt.Sprintf("setpoint_initializer_pending{name=%q} 1", name), fmt.Sprintf("setpoint_initializer_oldest_pending_seconds{name=%q} ", name),
		"setpoint_initializer_waiting_creates 1",
	} {
		eventually(w.t, line, func() bool { return w.measures(line) })
	}
	w.done("x")
	within(w.t, created)
	outcome := fmt.Sprintf("setpoint_initializer_outcomes_total{name=%q,outcome=\"complete\"} 1", name)
	eventually(w.t, outcome, func() bool { return w.measures(outcome) })
	none := fmt.Sprintf("setpoint_initializer_pending{name=%q} 0", name)
	eventually(w.t, none, func() bool { return w.measures(none) })
}

// measures says that a line of the server's metrics begins so.
func (w *world) measures(begins string) bool {
	w.t.Helper()
	return strings.Contains("\n"+w.do("GET", "/metrics", "").message(), "\n"+begins)
}

// Rules that name another version of the same objects hold for them, unless they
// are to be taken to the letter.
func TestOtherVersions(t *testing.T) {
	w := begin(t, app.Config{})
	w.configure("c",
		object{"name": "any.k8s.io", "rules": []any{rule("autoscaling", "v1", "horizontalpodautoscalers")}, "matchPolicy": "Equivalent"},
		object{"name": "exact.k8s.io", "rules": []any{rule("autoscaling", "v1", "horizontalpodautoscalers")}, "matchPolicy": "Exact"},
	)
	for version, want := range map[string][]string{"v1": {"any.k8s.io", "exact.k8s.io"}, "v2": {"any.k8s.io"}} {
		got := w.do("POST", "/apis/autoscaling/"+version+"/namespaces/default/horizontalpodautoscalers"+all,
			`{"metadata":{"name":"`+version+`"},"spec":{"maxReplicas":2,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`)
		if diff := cmp.Diff(want, pendingOf(got.body)); diff != "" {
			t.Errorf("%s: %v\n%s", version, got, diff)
		}
	}
}
