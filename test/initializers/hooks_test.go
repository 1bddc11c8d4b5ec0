package initializers_test

import (
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

// decider is what a webhook makes of a review.
type decider func(*admissionv1.AdmissionReview) *admissionv1.AdmissionResponse

// hook has a webhook asked about operations on objects of the world's kind: one
// that is "mutating" or "validating". more are fields of its configuration.
func (w *world) hook(kind string, operations []any, more object, decide decider) {
	w.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(in.Body).Decode(review); err != nil {
			w.t.Error(err)
			return
		}
		review.Response = decide(review)
		review.Response.UID = review.Request.UID
		if err := json.NewEncoder(out).Encode(review); err != nil {
			w.t.Error(err)
		}
	}))
	w.t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	rule := w.rule()
	rule["operations"] = operations
	webhook := object{
		"name": kind + ".example.org", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
		"clientConfig": object{"url": server.URL, "caBundle": ca}, "rules": []any{rule}, "namespaceSelector": w.itsNamespace(),
	}
	maps.Copy(webhook, more)
	w.make("/apis/admissionregistration.k8s.io/v1/"+kind+"webhookconfigurations", object{"metadata": object{"name": w.namespace}, "webhooks": []any{webhook}})
}

// patched is a webhook's answer with a patch.
func patched(patch string) *admissionv1.AdmissionResponse {
	kind := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &kind}
}

// reviews are what a webhook was asked about objects, by name.
type reviews struct {
	mu   sync.Mutex // guards seen
	seen map[string][]string
}

// note remembers what a review says of initializers, and answers with the patch
// for the object, if there is one.
func (r *reviews) note(t *testing.T, patchFor func(name string) string) decider {
	return func(review *admissionv1.AdmissionReview) *admissionv1.AdmissionResponse {
		text, err := json.Marshal(review)
		if err != nil || strings.Contains(string(text), "setpoint.dev") {
			t.Errorf("a review has %s, %v", text, err)
		}
		told := string(review.Request.Operation)
		for _, raw := range [][]byte{review.Request.OldObject.Raw, review.Request.Object.Raw} {
			var obj object
			if len(raw) > 0 && json.Unmarshal(raw, &obj) == nil {
				told += " " + strings.Join(pendingOf(obj), "+")
			}
		}
		r.add(review.Request.Name, told)
		if patch := patchFor(review.Request.Name); patch != "" {
			return patched(patch)
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
}

func (r *reviews) add(name, told string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[string][]string{}
	}
	r.seen[name] = append(r.seen[name], told)
}

func (r *reviews) of(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen[name])
}

func nothing(string) string { return "" }

func label(string) string {
	return `[{"op":"add","path":"/metadata/labels","value":{"patched":"yes"}}]`
}
