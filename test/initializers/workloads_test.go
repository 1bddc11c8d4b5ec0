package initializers_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"setpoint.dev/setpoint/app"
)

// Controllers that make pods, and initializers of these.
func TestWorkloads(t *testing.T) {
	of := func(name string, holds func(*world)) row {
		return row{name: name, holds: holds, long: true, not: map[string]string{custom: "the control plane's controllers make pods"}}
	}
	rows := []row{
		// A replica set has done what it can when one pod at a time finds out whether
		// the initializer is back.
		of("13.10 and T5, Fail", func(w *world) {
			w.multiplies(replicaSet, "Fail", replicas, func() bool { return w.condition(w.namespace, w.own("dead"), "Stalled") == "True" })
		}),
		of("13.10 and T5, Ignore", func(w *world) {
			w.multiplies(replicaSet, "Ignore", replicas, func() bool { return len(w.list("")) == replicas })
		}),
	}
	for name, m := range map[string]struct {
		maker
		pods int
	}{
		"a replica set": {replicaSet, replicas}, "a deployment": {deployment, replicas}, "a job": {job, replicas},
		"a stateful set, whose next pod waits for the first to be ready": {statefulSet, 1},
	} {
		rows = append(rows,
			of("13.10 and T5, Wait, "+name, func(w *world) {
				w.multiplies(m.maker, "Wait", m.pods, func() bool { return len(w.list(all)) == m.pods })
			}),
			of("T2, the template of "+name, func(w *world) { w.inherits(m.maker, m.pods) }),
		)
	}
	rows = append(rows, of("T2, who names an owner inherits nothing", notInherited))
	inEach(t, app.Config{Controllers: []string{"deployment", "replicaset", "job", "statefulset"}}, rows...)
}

const replicas = 3

// maker is a kind that makes pods, and what its objects have beside a template.
type maker struct {
	speech
	fields object
}

var (
	replicaSet  = maker{speech{group: "apps", resource: "replicasets", kind: "ReplicaSet", version: "apps/v1"}, object{"replicas": replicas}}
	deployment  = maker{speech{group: "apps", resource: "deployments", kind: "Deployment", version: "apps/v1"}, object{"replicas": replicas}}
	statefulSet = maker{speech{group: "apps", resource: "statefulsets", kind: "StatefulSet", version: "apps/v1"}, object{"replicas": replicas, "serviceName": "x"}}
	job         = maker{speech{group: "batch", resource: "jobs", kind: "Job", version: "batch/v1"}, object{"parallelism": replicas, "completions": replicas}}
)

// starts creates a workload. initializers are those of its template; nil where it
// has no such field.
func (w *world) starts(m maker, name string, initializers any) {
	w.t.Helper()
	makers := w.of(m.speech)
	metadata, labels := object{}, object{"of": name}
	if initializers != nil {
		metadata["initializers"] = initializers
	}
	pod := object{"containers": podSpec["containers"]}
	spec := object{"template": object{"metadata": metadata, "spec": pod}}
	maps.Copy(spec, m.fields)
	if m.resource == "jobs" {
		pod["restartPolicy"] = "Never"
	} else {
		metadata["labels"], spec["selector"] = labels, object{"matchLabels": labels}
	}
	obj := makers.thing(name, nil)
	obj["spec"] = spec
	if got := makers.write("POST", makers.path(), obj); got.code != http.StatusCreated {
		w.t.Fatal(got)
	}
	w.atEnd(makers.path() + "/" + name)
}

// multiplies says that there are never more pods than somebody asked for, while
// nobody acts on them.
func (w *world) multiplies(m maker, policy string, pods int, settled func() bool) {
	w.t.Helper()
	w.configure(w.namespace, w.here(w.own("dead"), "failurePolicy", policy, "timeoutSeconds", 1))
	w.starts(m, "x", nil)
	most := 0
	look := func() { most = max(most, len(w.list(all))) }
	eventually(w.t, "the controller has done what it can", func() bool { look(); return settled() })
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		look()
	}
	w.t.Logf("at most %d pods at a time, %d now", most, len(w.list(all)))
	if most > pods {
		w.t.Errorf("%d pods, and not %d", most, pods)
	}
}

// inherits says that pods wait for whom their template names, or for nobody where
// it says so, whatever configurations want; and that controllers, which do not know
// the field, leave it where it is.
func (w *world) inherits(m maker, pods int) {
	w.t.Helper()
	w.configure(w.namespace, w.here(w.own("configured")))
	w.starts(m, "bare", pending())
	eventually(w.t, "pods that wait for nobody", func() bool { return len(w.list("")) == pods })
	w.starts(m, "named", pending("mine.k8s.io"))
	eventually(w.t, "pods that wait", func() bool { return len(w.list(all)) == 2*pods })
	for _, name := range w.list(all) {
		want := []string{"mine.k8s.io"}
		if slices.Contains(w.list(""), name) {
			want = nil
		}
		if diff := cmp.Diff(want, pendingOf(w.get(name).body)); diff != "" {
			w.t.Errorf("%s waits for:\n%s", name, diff)
		}
	}
	// Controllers have written the workloads since.
	for name, want := range map[string][]string{"bare": {}, "named": {"mine.k8s.io"}} {
		spec, _ := w.do("GET", w.of(m.speech).path()+"/"+name, "").body["spec"].(object)
		if diff := cmp.Diff(want, pendingOf(spec["template"].(object))); diff != "" {
			w.t.Errorf("the template of %s has:\n%s", name, diff)
		}
	}
}

// notInherited: whoever is no controller of the control plane makes pods that wait
// for those of the configuration, whomever they say to belong to.
func notInherited(w *world) {
	w.configure(w.namespace, w.here(w.own("configured")))
	w.starts(replicaSet, "set", pending())
	eventually(w.t, "the pods of the set", func() bool { return len(w.list("")) == replicas })
	set := w.do("GET", w.of(replicaSet.speech).path()+"/set", "").metadata()
	pod := w.thing("pretender", nil)
	pod["metadata"].(object)["labels"] = object{"of": "nobody"}
	pod["metadata"].(object)["ownerReferences"] = []any{object{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": set["uid"], "controller": true}}
	got := w.write("POST", w.path()+all, pod)
	if diff := cmp.Diff([]string{w.own("configured")}, pendingOf(got.body)); diff != "" {
		w.t.Errorf("%v\n%s", got, diff)
	}
}
