package route_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"

	"setpoint.dev/setpoint/server/route"
	"setpoint.dev/setpoint/store"
)

func TestResolve(t *testing.T) {
	for _, test := range []struct {
		request string
		want    request.RequestInfo // without what repeats the path
	}{
		{"GET /version", request.RequestInfo{Verb: "get"}},
		{"GET /planes", request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: "setpoint.dev", APIVersion: "v1alpha1", Resource: "planes"}},
		{"POST /planes/a?from=b", request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "setpoint.dev", APIVersion: "v1alpha1", Resource: "planes", Name: "a"}},
		{"DELETE /planes/a", request.RequestInfo{IsResourceRequest: true, Verb: "delete", APIGroup: "setpoint.dev", APIVersion: "v1alpha1", Resource: "planes", Name: "a"}},
		{"DELETE /planes/a/api/v1/pods", request.RequestInfo{IsResourceRequest: true, Verb: "get", APIGroup: "setpoint.dev", APIVersion: "v1alpha1", Resource: "planes", Name: "a"}},
		{"GET /planesx", request.RequestInfo{Verb: "get"}},
		{"GET /apis/apps/v1", request.RequestInfo{Verb: "get"}},
		{"GET /api/v1/namespaces/ns/pods", request.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Namespace: "ns", Resource: "pods"}},
		{"GET /api/v1/namespaces/ns/pods?watch=1", request.RequestInfo{IsResourceRequest: true, Verb: "watch", APIVersion: "v1", Namespace: "ns", Resource: "pods"}},
		{"GET /api/v1/namespaces/ns/pods/p/log", request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Namespace: "ns", Resource: "pods", Name: "p", Subresource: "log"}},
		{"POST /apis/apps/v1/namespaces/ns/deployments", request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "apps", APIVersion: "v1", Namespace: "ns", Resource: "deployments"}},
		{"DELETE /apis/apps/v1/namespaces/ns/deployments", request.RequestInfo{IsResourceRequest: true, Verb: "deletecollection", APIGroup: "apps", APIVersion: "v1", Namespace: "ns", Resource: "deployments"}},
		{"DELETE /api/v1/nodes/n", request.RequestInfo{IsResourceRequest: true, Verb: "delete", APIVersion: "v1", Resource: "nodes", Name: "n"}},
		{"PATCH /api/v1/namespaces/ns", request.RequestInfo{IsResourceRequest: true, Verb: "patch", APIVersion: "v1", Namespace: "ns", Resource: "namespaces", Name: "ns"}},
		{"PUT /api/v1/namespaces/ns/finalize", request.RequestInfo{IsResourceRequest: true, Verb: "update", APIVersion: "v1", Namespace: "ns", Resource: "namespaces", Name: "ns", Subresource: "finalize"}},
		{"GET /api/v1/pods?fieldSelector=metadata.name%3Dp", request.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "pods", Name: "p", FieldSelector: "metadata.name=p"}},
		{"GET /api/v1/watch/pods", request.RequestInfo{IsResourceRequest: true, Verb: "watch", APIVersion: "v1", Resource: "pods"}},
	} {
		t.Run(test.request, func(t *testing.T) {
			method, path, _ := strings.Cut(test.request, " ")
			got, err := route.Resolve(httptest.NewRequest(method, path, http.NoBody))
			if err != nil {
				t.Fatal(err)
			}
			if got.Plane != store.Main {
				t.Errorf("plane %q", got.Plane)
			}
			info := *got.RequestInfo
			info.Path, info.Parts, info.APIPrefix = "", nil, ""
			if !info.IsResourceRequest {
				info.APIVersion = ""
			}
			if diff := cmp.Diff(test.want, info); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAContextHasTheRequest(t *testing.T) {
	if route.From(context.Background()) != nil {
		t.Error("a request from nowhere")
	}
	what, err := route.Resolve(httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/ns/pods/p", http.NoBody))
	if err != nil {
		t.Fatal(err)
	}
	ctx := route.With(context.Background(), what)
	if route.From(ctx) != what {
		t.Error("another request")
	}
	if info, ok := request.RequestInfoFrom(ctx); !ok || info != what.RequestInfo {
		t.Error("strategies do not see the request")
	}
	if request.NamespaceValue(ctx) != "ns" {
		t.Errorf("namespace %q", request.NamespaceValue(ctx))
	}
}

// FuzzResolve reads request lines as they come in from the network.
func FuzzResolve(f *testing.F) {
	for _, line := range []string{
		"GET / HTTP/1.1", "GET /api HTTP/1.1", "GET /apis/apps/v1/deployments HTTP/1.1", "GET /api/v1/namespaces/a/pods/b/exec?command=x HTTP/1.1",
		"POST /api/v1/namespaces/a/pods HTTP/1.1", "DELETE /apis/apps/v1/namespaces/a/deployments?labelSelector=x HTTP/1.1",
		"GET /api/v1/watch/namespaces/a/pods/b HTTP/1.1", "GET /api/v1/proxy/namespaces/a/pods/b:80/x HTTP/1.1", "GET /api/v1/watch HTTP/1.1", "GET /api/v1/watch/ HTTP/1.1",
		"GET /api/v1/pods?watch=true&fieldSelector=metadata.name%3Dx HTTP/1.1", "GET /api/v1/pods?watch=&limit=x HTTP/1.1", "GET /api/v1/pods?labelSelector=%zz HTTP/1.1",
		"GET /api/v1/namespaces HTTP/1.1", "GET /api/v1/namespaces/ HTTP/1.1", "PUT /api/v1/namespaces/x/status HTTP/1.1", "GET /api//v1///pods HTTP/1.1",
		"GET /api/v1/namespaces/..%2f..%2fx/pods HTTP/1.1", "GET /api/v1/namespaces/%00/pods HTTP/1.1", "GET /apis/a/b/c/d/e/f/g/h HTTP/1.1", "OPTIONS * HTTP/1.1", "GET http://h/api/v1/pods HTTP/1.1",
		"PATCH /apis/a.b/v1/namespaces/c/things/d/status HTTP/1.1", "FROB /api/v1/pods HTTP/1.1", "GET /planes/x/api/v1/pods HTTP/1.1", "GET /api/v1/pods?fieldSelector=a%5C HTTP/1.1",
	} {
		f.Add(line)
	}
	upstream := request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	f.Fuzz(func(t *testing.T, line string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + "\r\nHost: x\r\n\r\n")))
		if err != nil {
			t.Skip("no request")
		}
		want, refused := upstream.NewRequestInfo(r.Clone(t.Context()))
		got, err := route.Resolve(r)
		if err != nil || refused != nil {
			if (err == nil) != (refused == nil) {
				t.Errorf("got %v, upstream %v", err, refused)
			}
			return
		}
		if got.OfPlanes() && want.Path == got.Path && !want.IsResourceRequest {
			return // upstream has none
		}
		if diff := cmp.Diff(want, got.RequestInfo); diff != "" {
			t.Error(diff)
		}
		ctx := route.With(r.Context(), got)
		if route.From(ctx) != got || got.IsResourceRequest && request.NamespaceValue(ctx) != got.Namespace {
			t.Errorf("%+v is not what the context has", got)
		}
		// What is asked for lies in the path, or in a selector of one name.
		for _, part := range []string{got.Namespace, got.Resource, got.Subresource} {
			if unescaped, err := url.PathUnescape(r.URL.EscapedPath()); err == nil && !strings.Contains(unescaped, part) {
				t.Errorf("%q is not in %s", part, unescaped)
			}
		}
	})
}
