package initializers_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/app"
)

// T1, T4, T10: nobody is home, and what is left of it.
func TestDeadInitializers(t *testing.T) {
	rows := []row{
		{name: "T1 and T4, one that fails", holds: deadFails, long: true},
		{name: "T1 and T4, one that is ignored", holds: deadIgnored, long: true},
		{name: "T1, one that is waited for", holds: deadWaitedFor, long: true},
		{name: "T1, a lease speaks for an initializer", holds: leased, long: true},
	}
	if testing.Short() {
		t.Log("left out: it takes half a minute until an orphan is let go")
	} else {
		rows = append(rows, row{name: "T10, a configuration that goes leaves nobody waiting", holds: orphaned, long: true})
	}
	inEach(t, app.Config{}, rows...)
}

func deadFails(w *world) {
	c, dead := w.namespace, w.own("dead")
	w.configure(c, w.here(dead, "failurePolicy", "Fail", "timeoutSeconds", 1))
	first := w.create("x", nil, "")
	if first.code != http.StatusGatewayTimeout || first.body["reason"] != "Timeout" || first.message() != `Timeout: initializer "`+dead+`" did not act within 1s` {
		w.t.Errorf("the creator reads %v", first)
	}
	if got := w.get("x"); got.code != http.StatusNotFound {
		w.t.Errorf("left behind: %v", got)
	}
	eventually(w.t, "the initializer is stalled", func() bool { return w.condition(c, dead, "Stalled") == "True" })
	if got := w.condition(c, dead, "Ready"); got != "False" {
		w.t.Errorf("Ready is %s", got)
	}
	eventually(w.t, "there is an event about the configuration", func() bool { return len(w.events("default", "InitializerStalled", c)) == 1 })
	// One object at a time finds out whether it is back.
	probe := w.creating("probe", nil, "")
	w.waits("probe")
	refused := w.create("y", nil, "")
	if refused.code != http.StatusServiceUnavailable || refused.header.Get("Retry-After") == "" || !strings.Contains(refused.message(), `initializer "`+dead+`" of configuration "`+c+`" is not available`) {
		w.t.Errorf("while it is stalled: %v", refused)
	}
	w.done("probe")
	if got := within(w.t, probe); got.code != http.StatusCreated {
		w.t.Errorf("the one that found out: %v", got)
	}
	back := w.creating("back", nil, "")
	w.waits("back")
	w.done("back")
	if got := within(w.t, back); got.code != http.StatusCreated {
		w.t.Errorf("once it is back: %v", got)
	}
	eventually(w.t, "the initializer is ready", func() bool { return w.condition(c, dead, "Ready") == "True" })
	w.reported("InitializerTimeout", "x")
}

// reported waits for an event about an object.
func (w *world) reported(reason, name string) {
	w.t.Helper()
	eventually(w.t, reason+" of "+name, func() bool { return len(w.events(w.namespace, reason, name)) == 1 })
}

// events are the messages of events about an object.
func (w *world) events(namespace, reason, name string) []string {
	w.t.Helper()
	got := w.do("GET", "/api/v1/namespaces/"+namespace+"/events?fieldSelector=reason="+reason+",involvedObject.name="+name, "")
	var messages []string
	items, _ := got.body["items"].([]any)
	for _, i := range items {
		messages = append(messages, i.(object)["message"].(string))
	}
	return messages
}

// condition is the status of a condition of an initializer.
func (w *world) condition(configuration, name, kind string) string {
	w.t.Helper()
	status, _ := w.statusOf(configuration, name)["conditions"].([]any)
	for _, c := range status {
		if c.(object)["type"] == kind {
			return c.(object)["status"].(string)
		}
	}
	return ""
}

func (w *world) statusOf(configuration, name string) object {
	w.t.Helper()
	status, _ := w.do("GET", configurations+"/"+configuration, "").body["status"].(object)
	all, _ := status["initializers"].([]any)
	for _, i := range all {
		if i.(object)["name"] == name {
			return i.(object)
		}
	}
	return nil
}

func deadIgnored(w *world) {
	dead, alive := w.own("dead"), w.own("alive")
	w.configure(w.namespace, w.here(dead, "failurePolicy", "Ignore", "timeoutSeconds", 1), w.here(alive))
	created := w.creating("x", nil, "")
	w.waits("x")
	eventually(w.t, "the dead one is skipped", func() bool { return slices.Equal(pendingOf(w.get("x").body), []string{alive}) })
	w.done("x")
	got := within(w.t, created)
	annotations, _ := got.metadata()["annotations"].(object)
	if got.code != http.StatusCreated || annotations["initializers.setpoint.dev/skipped"] != dead {
		w.t.Errorf("%v", got)
	}
	w.reported("InitializerSkipped", "x")
	// It is stalled: after one that finds out, objects do without it.
	probe := w.creating("probe", nil, "")
	w.waits("probe")
	next := w.create("y", nil, all)
	if !slices.Equal(pendingOf(next.body), []string{alive}) || !slices.ContainsFunc(next.warnings, func(s string) bool { return strings.Contains(s, "was skipped") }) {
		w.t.Errorf("while it is stalled: %v", next)
	}
	w.done("probe")
	within(w.t, probe)
}

func deadWaitedFor(w *world) {
	dead := w.own("dead")
	w.configure(w.namespace, w.here(dead, "failurePolicy", "Wait", "timeoutSeconds", 1))
	if got := w.create("x", nil, "?timeout=2s"); got.code != http.StatusGatewayTimeout || !strings.Contains(got.message(), "requested timeout 2s") {
		w.t.Errorf("%v", got)
	}
	if diff := cmp.Diff([]string{dead}, w.waits("x")); diff != "" {
		w.t.Error(diff)
	}
	eventually(w.t, "the status tells of it", func() bool { return fmt.Sprint(w.statusOf(w.namespace, dead)["pending"]) == "1" })
}

func leased(w *world) {
	lease := object{"lease": object{"namespace": w.namespace, "name": "init"}}
	w.configure(w.namespace, w.here(w.own("fail"), "controller", lease), w.here(w.own("ignore"), "controller", lease, "failurePolicy", "Ignore"))
	missing := w.create("x", nil, "")
	if missing.code != http.StatusServiceUnavailable || missing.header.Get("Retry-After") == "" || !strings.Contains(missing.message(), "there is no lease "+w.namespace+"/init") {
		w.t.Errorf("%v", missing)
	}
	leases := "/apis/coordination.k8s.io/v1/namespaces/" + w.namespace + "/leases"
	held := func(at time.Time) object {
		return object{"metadata": object{"name": "init"}, "spec": object{"holderIdentity": "me", "leaseDurationSeconds": 30, "renewTime": at.UTC().Format("2006-01-02T15:04:05.000000Z07:00")}}
	}
	w.make(leases, held(time.Now().Add(-time.Minute)))
	expired := w.create("x", nil, "")
	if expired.code != http.StatusServiceUnavailable || !strings.Contains(expired.message(), "its lease "+w.namespace+"/init has expired") {
		w.t.Errorf("%v", expired)
	}
	if got := w.get("x"); got.code != http.StatusNotFound {
		w.t.Errorf("stored: %v", got)
	}
	if got := w.do("PATCH", leases+"/init", string(encode(w.t, held(time.Now()))), "Content-Type", mergeType); got.code != http.StatusOK {
		w.t.Fatal(got)
	}
	got := w.create("x", nil, all)
	if diff := cmp.Diff([]string{w.own("fail"), w.own("ignore")}, pendingOf(got.body)); diff != "" {
		w.t.Error(diff)
	}
}

func orphaned(w *world) {
	gone := w.own("gone")
	w.configure(w.namespace, w.here(gone, "failurePolicy", "Wait"))
	created := w.creating("x", nil, "?timeout=50s")
	w.waits("x")
	w.create("mine", pending(gone), all)
	deleted := w.do("DELETE", configurations+"/"+w.namespace, "")
	if deleted.code != http.StatusOK || len(deleted.warnings) != 1 || !strings.HasPrefix(deleted.warnings[0], `2 objects wait for initializers of \"`+w.namespace+`\"`) {
		w.t.Errorf("%v", deleted)
	}
	select {
	case got := <-created:
		if got.code != http.StatusCreated || pendingOf(got.body) != nil {
			w.t.Errorf("%v", got)
		}
	case <-time.After(45 * time.Second):
		w.t.Error("it waits still")
	}
	w.reported("InitializerGone", "x")
	if diff := cmp.Diff([]string{gone}, pendingOf(w.get("mine").body)); diff != "" {
		w.t.Errorf("one that its creator gave the name: %s", diff)
	}
}

// Deadlines and creators are kept through a restart. That of a kill is in
// test/crash.
func TestARestartForgetsNoDeadline(t *testing.T) {
	dir := t.TempDir()
	w := begin(t, app.Config{Data: dir})
	for i, s := range speeches {
		w.speech = s
		dead := fmt.Sprintf("dead-%d.k8s.io", i)
		w.add(configurations, configuration(dead, w.forAll(dead, "timeoutSeconds", 2, "objectSelector", object{"matchLabels": object{"waits": "yes"}})))
		obj := w.thing(fmt.Sprintf("x-%d", i), nil)
		obj["metadata"].(object)["labels"] = object{"waits": "yes"}
		if got := w.write("POST", w.path()+all, obj); got.code != http.StatusAccepted {
			t.Fatal(got)
		}
	}
	w.plane.Stop()
	w = begin(t, app.Config{Data: dir})
	for i, s := range speeches {
		w.speech = s
		eventually(t, s.name+" go", func() bool { return w.get(fmt.Sprintf("x-%d", i)).code == http.StatusNotFound })
	}
}
