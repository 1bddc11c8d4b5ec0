// Package initclient gives today's clients what they lack to be initializers:
// sight of objects that wait, and the list of what they wait for.
//
// The typed clients of Kubernetes 1.16 and later have neither the parameter
// includeUninitialized nor the field metadata.initializers. IncludeUninitialized
// adds the parameter to what a client lists and watches; the rest reads and
// edits the field on objects without a Go type, as the dynamic client has them.
package initclient

import (
	"net/http"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// Parameter asks for objects that still wait.
const Parameter = "includeUninitialized"

// IncludeUninitialized returns a copy of a client's configuration with which
// lists and watches have the objects in them that still wait.
func IncludeUninitialized(of *rest.Config) *rest.Config {
	with := rest.CopyConfig(of)
	with.WrapTransport = transport.Wrappers(of.WrapTransport, func(next http.RoundTripper) http.RoundTripper { return include{next} })
	return with
}

// include adds the parameter to reads. One object is read with its waiting
// anyway.
type include struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (i include) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return i.next.RoundTrip(r)
	}
	r = r.Clone(r.Context()) // a round tripper does not change its request
	query := r.URL.Query()
	query.Set(Parameter, "true")
	r.URL.RawQuery = query.Encode()
	return i.next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go look beneath.
func (i include) WrappedRoundTripper() http.RoundTripper { return i.next }

// Pending are the names of the initializers that obj waits for, the next one
// first.
func Pending(obj *unstructured.Unstructured) []string {
	entries, _, err := unstructured.NestedSlice(obj.Object, "metadata", "initializers", "pending")
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if fields, ok := entry.(map[string]any); ok {
			if name, ok := fields["name"].(string); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// Failed says that an initializer has failed obj already.
func Failed(obj *unstructured.Unstructured) bool {
	result, there, err := unstructured.NestedFieldNoCopy(obj.Object, "metadata", "initializers", "result")
	return err == nil && there && result != nil
}

// Done takes a name off obj's list; with the last one the whole field goes,
// and obj is ready to be seen. It says whether the name was there.
func Done(obj *unstructured.Unstructured, name string) bool {
	entries, _, err := unstructured.NestedSlice(obj.Object, "metadata", "initializers", "pending")
	if err != nil {
		return false
	}
	var kept []any
	for _, entry := range entries {
		if fields, ok := entry.(map[string]any); ok && fields["name"] == name {
			continue
		}
		kept = append(kept, entry)
	}
	if len(kept) == len(entries) {
		return false
	}
	if len(kept) == 0 && !Failed(obj) {
		unstructured.RemoveNestedField(obj.Object, "metadata", "initializers")
		return true
	}
	return unstructured.SetNestedSlice(obj.Object, kept, "metadata", "initializers", "pending") == nil
}

// Fail makes obj fail when it is next written: its creator gets the code,
// reason and message as the answer, and obj goes.
func Fail(obj *unstructured.Unstructured, code int64, reason, message string) error {
	return unstructured.SetNestedMap(obj.Object, map[string]any{
		"apiVersion": "v1", "kind": "Status", "metadata": map[string]any{},
		"status": "Failure", "code": code, "reason": reason, "message": message,
	}, "metadata", "initializers", "result")
}
