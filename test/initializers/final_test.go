package initializers_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
)

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

// A mutating webhook that wants to be asked again is, as by the creator, when
// initializers have changed the object; what it refuses then the creator reads.
func TestMutatingWebhooksAreAskedAgain(t *testing.T) {
	inEach(t, func(w *world) {
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
				if diff := cmp.Diff(c.labels, got.body["metadata"].(object)["labels"]); diff != "" {
					w.t.Errorf("%s has labels:\n%s", name, diff)
				}
			}
			if diff := cmp.Diff(c.told, told.of(name)); diff != "" {
				w.t.Errorf("%s: the webhook was asked:\n%s", name, diff)
			}
		}
	})
}

// A quota is charged for what initializers add in the commit of their write; what
// does not fit fails the object, and its creator reads why.
func TestQuotasAreChargedForWhatInitializersAdd(t *testing.T) {
	w := begin(t, app.Config{}, speeches[0])
	const quotas = "/api/v1/namespaces/default/resourcequotas"
	w.make(quotas, object{"metadata": object{"name": "q"}, "spec": object{"hard": object{"requests.cpu": "500m", "pods": "5"}}})
	if got := w.do("PATCH", quotas+"/q/status", `{"status":{"hard":{"requests.cpu":"500m","pods":"5"},"used":{"requests.cpu":"0","pods":"0"}}}`, "Content-Type", "application/merge-patch+json"); got.code != http.StatusOK {
		t.Fatal(got)
	}
	used := func() object {
		t.Helper()
		status, _ := w.do("GET", quotas+"/q", "").body["status"].(object)
		return status["used"].(object)
	}
	w.spec = object{"containers": []any{object{"name": "app", "image": "app:1", "resources": object{"requests": object{"cpu": "100m"}}}}}
	add := func(name, initializers, container, cpu string) {
		t.Helper()
		patch := `{"metadata":{"initializers":` + initializers + `},"spec":{"containers":[{"name":"` + container + `","image":"side:1","resources":{"requests":{"cpu":"` + cpu + `"}}}]}}`
		if got := w.do("PATCH", w.path+"/"+name, patch, "Content-Type", "application/strategic-merge-patch+json"); got.code != http.StatusOK {
			t.Fatal(got)
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
			t.Errorf("used:\n%s", diff)
		}
	}
	if got := within(t, fits); got.code != http.StatusCreated {
		t.Errorf("what fits: %v", got)
	}
	for name, initializers := range map[string]string{"first-too-much": notFirst, "last-too-much": "null"} {
		created := w.creating(name, pending("a.k8s.io", "b.k8s.io"), "")
		w.waits(name)
		add(name, initializers, "side", "1")
		got := within(t, created)
		if got.code != http.StatusForbidden || !strings.Contains(got.message(), "exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=") {
			t.Errorf("%s: %v", name, got)
		}
		if left := w.get(name); left.code != http.StatusNotFound {
			t.Errorf("%s is left: %v", name, left)
		}
	}
}
