package initializers_test

import (
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"

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
		"clientConfig": object{"url": server.URL, "caBundle": ca}, "rules": []any{rule},
	}
	maps.Copy(webhook, more)
	w.make("/apis/admissionregistration.k8s.io/v1/"+kind+"webhookconfigurations", object{"metadata": object{"name": "hook"}, "webhooks": []any{webhook}})
}

// make creates an object that the test needs.
func (w *world) make(path string, obj object) {
	w.t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		w.t.Fatal(err)
	}
	if got := w.do("POST", path, string(text)); got.code != http.StatusCreated {
		w.t.Fatal(got)
	}
}

// patched is a webhook's answer with a patch.
func patched(patch string) *admissionv1.AdmissionResponse {
	kind := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &kind}
}
