package initializers_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/admission"
	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/app"
)

// T9: what initializers made of an object is admitted as its creator's request.
func TestFinalAdmission(t *testing.T) {
	onlyPods := func(why string) map[string]string { return map[string]string{custom: why} }
	inEach(
		t, app.Config{Admission: admission.Options{Enable: []string{"ServiceAccount"}}},
		row{name: "T9, what initializers made is checked as of its creator", holds: func(w *world) { w.finally(http.StatusForbidden) }},
		row{name: "T9, mutating webhooks are asked again", holds: askedAgain},
		row{name: "T9, mutating webhooks are asked again when the server lets go", holds: askedAgainByServer, long: true},
		row{name: "T9, quotas count what waits", holds: counted},
		row{name: "T9, quotas are charged for what initializers add", holds: charged, not: onlyPods("quotas count objects of a custom kind, and nothing that is in them")},
		row{name: "T9, what initializers add is filled in", holds: filledIn, not: onlyPods("no plugin fills in a custom kind; its schema's defaults are those of every write")},
	)
}

func TestWithoutFinalAdmission(t *testing.T) {
	inEach(
		t, app.Config{Initializers: initializer.Settings{SkipFinalAdmission: true}},
		row{name: "what initializers made is not checked again", holds: func(w *world) { w.finally(http.StatusCreated) }},
	)
}

// finally has something added to an object of jane, who may not have that much.
func (w *world) finally(code int) {
	w.t.Helper()
	w.account()
	w.hook("validating", []any{"CREATE"}, nil, func(review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
		var obj object
		allowed := json.Unmarshal(review.Request.Object.Raw, &obj) == nil && (review.Request.UserInfo.Username != "jane" || w.size(obj) < 2)
		return &admissionv1.AdmissionResponse{Allowed: allowed, Result: &metav1.Status{Code: http.StatusForbidden, Message: "jane may not have two"}}
	})
	w.allow("jane", "create")
	w.configure("c", w.forAll("a.k8s.io"))
	hers := w.as("jane").creating("hers", nil, "")
	w.waits("hers")
	w.inject("hers")
	got := within(w.t, hers)
	if got.code != code || code == http.StatusForbidden && !strings.Contains(got.message(), "jane may not have two") {
		w.t.Errorf("what its creator reads: %v", got)
	}
	if left := w.get("hers"); (left.code == http.StatusOK) != (code == http.StatusCreated) {
		w.t.Errorf("what is left: %v", left)
	}
	mine := w.creating("mine", nil, "")
	w.waits("mine")
	w.inject("mine")
	if got := within(w.t, mine); got.code != http.StatusCreated || w.size(got.body) != 2 {
		w.t.Errorf("somebody else's: %v", got)
	}
}

// account makes the account that pods of the namespace run as.
func (w *world) account() {
	w.t.Helper()
	w.make("/api/v1/namespaces/"+w.namespace+"/serviceaccounts", object{"metadata": object{"name": "default"}})
}

// asked tells who asked a webhook for what, and whether the object had been
// changed by then. The webhook labels what it sees, and refuses what it is told to.
func (r *reviews) asked(review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
	var obj object
	if err := json.Unmarshal(review.Request.Object.Raw, &obj); err != nil {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error()}}
	}
	labels, _ := obj["metadata"].(object)["labels"].(object)
	words := []string{string(review.Request.Operation), review.Request.UserInfo.Username, strings.Join(pendingOf(obj), "+")}
	if labels["added"] != nil {
		words = append(words, "changed")
	}
	r.add(review.Request.Name, strings.Join(words, " "))
	if labels["added"] == "refused" {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: http.StatusTeapot, Message: "not that"}}
	}
	path, value := "/metadata/labels", `{"seen":"yes"}`
	if labels != nil {
		path, value = "/metadata/labels/again", `"yes"`
	}
	return patched(`[{"op":"add","path":"` + path + `","value":` + value + `}]`)
}

// askedAgain: a mutating webhook that wants to be asked again is, as by the
// creator, when initializers have changed the object; what it refuses then the
// creator reads.
func askedAgain(w *world) {
	w.account()
	var told reviews
	w.hook("mutating", []any{"CREATE"}, object{"reinvocationPolicy": "IfNeeded"}, told.asked)
	w.configure("c", w.forAll("a.k8s.io"), w.forAll("b.k8s.io"))
	w.allow("jane", "create")
	for name, c := range map[string]struct {
		patches []string
		code    int
		labels  object
		told    []string
	}{
		"same":    {[]string{`{"initializers":null}`}, http.StatusCreated, object{"seen": "yes"}, []string{"CREATE jane "}},
		"changed": {[]string{`{"initializers":null,"labels":{"added":"yes"}}`}, http.StatusCreated, object{"seen": "yes", "added": "yes", "again": "yes"}, []string{"CREATE jane ", "CREATE jane  changed"}},
		"changed-before": {
			[]string{`{"initializers":{"pending":[{"name":"b.k8s.io"}]},"labels":{"added":"yes"}}`, `{"initializers":null}`},
			http.StatusCreated,
			object{"seen": "yes", "added": "yes", "again": "yes"},
			[]string{"CREATE jane ", "CREATE jane  changed"},
		},
		"refused": {[]string{`{"initializers":null,"labels":{"added":"refused"}}`}, http.StatusTeapot, nil, []string{"CREATE jane ", "CREATE jane  changed"}},
	} {
		created := w.as("jane").creating(name, nil, "")
		w.waits(name)
		for _, patch := range c.patches {
			if got := w.merge(name, `{"metadata":`+patch+`}`); got.code != http.StatusOK {
				w.t.Fatalf("%s: %v", patch, got)
			}
		}
		got := within(w.t, created)
		if got.code != c.code {
			w.t.Errorf("%s: %v", name, got)
		}
		if c.labels != nil {
			if diff := cmp.Diff(c.labels, got.metadata()["labels"]); diff != "" {
				w.t.Errorf("%s has labels:\n%s", name, diff)
			}
		}
		if diff := cmp.Diff(c.told, told.of(name)); diff != "" {
			w.t.Errorf("%s: the webhook was asked:\n%s", name, diff)
		}
	}
}

// askedAgainByServer: the same holds when it is the server that takes the last
// name off, because its time is over.
func askedAgainByServer(w *world) {
	w.account()
	acts, dead := w.own("acts"), w.own("dead")
	jane := "jane-of-" + w.namespace
	var told reviews
	w.hook("mutating", []any{"CREATE"}, object{"reinvocationPolicy": "IfNeeded"}, told.asked)
	w.configure(w.namespace, w.here(acts), w.here(dead, "failurePolicy", "Ignore", "timeoutSeconds", 1))
	w.allow(jane, "create")
	for _, c := range []struct {
		name, patch string
		code        int
		labels      object
		told        []string
	}{
		{"refused", `"labels":{"added":"refused"}`, http.StatusTeapot, nil, []string{"CREATE " + jane + " ", "CREATE " + jane + "  changed"}},
		{"changed", `"labels":{"added":"yes"}`, http.StatusCreated, object{"seen": "yes", "added": "yes", "again": "yes"}, []string{"CREATE " + jane + " ", "CREATE " + jane + "  changed"}},
		{"same", `"annotations":{}`, http.StatusCreated, object{"seen": "yes"}, []string{"CREATE " + jane + " "}},
	} {
		created := w.as(jane).creating(c.name, nil, "")
		w.waits(c.name)
		if got := w.merge(c.name, `{"metadata":{"initializers":{"pending":[{"name":"`+dead+`"}]},`+c.patch+`}}`); got.code != http.StatusOK {
			w.t.Fatal(got)
		}
		got := within(w.t, created)
		if got.code != c.code {
			w.t.Errorf("%s: %v", c.name, got)
		}
		if c.labels != nil {
			if diff := cmp.Diff(c.labels, got.metadata()["labels"]); diff != "" {
				w.t.Errorf("%s has labels:\n%s", c.name, diff)
			}
			if annotations, _ := got.metadata()["annotations"].(object); annotations["initializers.setpoint.dev/skipped"] != dead {
				w.t.Errorf("%s does not say whom it does without: %v", c.name, got)
			}
		}
		if diff := cmp.Diff(c.told, told.of(c.name)); diff != "" {
			w.t.Errorf("%s: the webhook was asked:\n%s", c.name, diff)
		}
		if left := w.get(c.name); (left.code == http.StatusOK) != (c.code == http.StatusCreated) {
			w.t.Errorf("%s: what is left: %v", c.name, left)
		}
	}
}

// quota sets limits, and returns what tells how much of them is used. Nobody but
// admission counts.
func (w *world) quota(hard, none object) (used func() any) {
	w.t.Helper()
	quotas := "/api/v1/namespaces/" + w.namespace + "/resourcequotas"
	w.make(quotas, object{"metadata": object{"name": "q"}, "spec": object{"hard": hard}})
	status := object{"status": object{"hard": hard, "used": none}}
	if got := w.do("PATCH", quotas+"/q/status", string(encode(w.t, status)), "Content-Type", mergeType); got.code != http.StatusOK {
		w.t.Fatal(got)
	}
	return func() any {
		status, _ := w.do("GET", quotas+"/q", "").body["status"].(object)
		return status["used"]
	}
}

// counted: what waits takes up the place of one object from its create on.
func counted(w *world) {
	w.account()
	what := "count/" + w.groupResource()
	used := w.quota(object{what: "1"}, object{what: "0"})
	created := w.creating("x", pending("a.k8s.io"), "")
	w.waits("x")
	if diff := cmp.Diff(object{what: "1"}, used()); diff != "" {
		w.t.Errorf("while it waits:\n%s", diff)
	}
	if got := w.create("y", nil, ""); got.code != http.StatusForbidden || !strings.Contains(got.message(), "exceeded quota: q, requested: "+what+"=1, used: "+what+"=1, limited: "+what+"=1") {
		w.t.Errorf("another: %v", got)
	}
	w.inject("x")
	if got := within(w.t, created); got.code != http.StatusCreated {
		w.t.Errorf("%v", got)
	}
	if diff := cmp.Diff(object{what: "1"}, used()); diff != "" {
		w.t.Errorf("in the end:\n%s", diff)
	}
}

// charged: a quota is charged for what initializers add in the commit of their
// write; what does not fit fails the object, and its creator reads why.
func charged(w *world) {
	w.account()
	used := w.quota(object{"requests.cpu": "500m", "pods": "5"}, object{"requests.cpu": "0", "pods": "0"})
	w.spec = object{"containers": []any{object{"name": "app", "image": "app:1", "resources": object{"requests": object{"cpu": "100m"}}}}}
	add := func(name, initializers, container, cpu string) {
		w.t.Helper()
		patch := `{"metadata":{"initializers":` + initializers + `},"spec":{"containers":[{"name":"` + container + `","image":"side:1","resources":{"requests":{"cpu":"` + cpu + `"}}}]}}`
		if got := w.patch(name, strategicType, patch); got.code != http.StatusOK {
			w.t.Fatal(got)
		}
	}
	const notFirst = `{"pending":[{"$patch":"delete","name":"a.k8s.io"}]}`
	fits := w.creating("fits", pending("a.k8s.io", "b.k8s.io"), "")
	w.waits("fits")
	for _, step := range []struct {
		add  func()
		want object
	}{
		{func() {}, object{"requests.cpu": "100m", "pods": "1"}},
		{func() { add("fits", notFirst, "first", "50m") }, object{"requests.cpu": "150m", "pods": "1"}},
		{func() { add("fits", "null", "last", "150m") }, object{"requests.cpu": "300m", "pods": "1"}},
	} {
		step.add()
		if diff := cmp.Diff(step.want, used()); diff != "" {
			w.t.Errorf("used:\n%s", diff)
		}
	}
	if got := within(w.t, fits); got.code != http.StatusCreated {
		w.t.Errorf("what fits: %v", got)
	}
	for name, initializers := range map[string]string{"first-too-much": notFirst, "last-too-much": "null"} {
		created := w.creating(name, pending("a.k8s.io", "b.k8s.io"), "")
		w.waits(name)
		add(name, initializers, "side", "1")
		got := within(w.t, created)
		if got.code != http.StatusForbidden || !strings.Contains(got.message(), "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=") {
			w.t.Errorf("%s: %v", name, got)
		}
		if left := w.get(name); left.code != http.StatusNotFound {
			w.t.Errorf("%s is left: %v", name, left)
		}
	}
}

// filledIn: a pod that waits is new to the plugins that fill in new pods: what
// initializers add gets limits and a token like the rest.
func filledIn(w *world) {
	w.account()
	w.make("/api/v1/namespaces/"+w.namespace+"/limitranges", object{"metadata": object{"name": "small"}, "spec": object{
		"limits": []any{object{"type": "Container", "default": object{"cpu": "200m"}, "defaultRequest": object{"cpu": "100m"}, "max": object{"cpu": "300m"}}},
	}})
	created := w.creating("x", pending("a.k8s.io", "b.k8s.io"), "")
	w.waits("x")
	for _, patch := range []string{
		`{"metadata":{"initializers":{"pending":[{"$patch":"delete","name":"a.k8s.io"}]}},"spec":{"containers":[{"name":"first","image":"side:1"}]}}`,
		`{"metadata":{"initializers":null},"spec":{"containers":[{"name":"last","image":"side:1"}]}}`,
	} {
		if got := w.patch("x", strategicType, patch); got.code != http.StatusOK {
			w.t.Fatal(got)
		}
	}
	got := within(w.t, created)
	if got.code != http.StatusCreated || len(containers(got.body)) != 3 {
		w.t.Fatal(got)
	}
	spec := got.body["spec"].(object)
	if volumes, _ := spec["volumes"].([]any); len(volumes) != 1 {
		w.t.Errorf("volumes %v", volumes)
	}
	for _, c := range spec["containers"].([]any) {
		c := c.(object)
		if mounts, _ := c["volumeMounts"].([]any); len(mounts) != 1 {
			w.t.Errorf("%v has no token: %v", c["name"], mounts)
		}
		if diff := cmp.Diff(object{"limits": object{"cpu": "200m"}, "requests": object{"cpu": "100m"}}, c["resources"]); diff != "" {
			w.t.Errorf("resources of %v:\n%s", c["name"], diff)
		}
	}
}
