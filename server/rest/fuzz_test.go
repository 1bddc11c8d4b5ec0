package rest_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/core/pod"
)

// send asks and returns the answer.
func (d *direct) send(method, path, body string) *httptest.ResponseRecorder {
	d.tb.Helper()
	w := httptest.NewRecorder()
	d.ServeHTTP(w, d.request(d.tb.Context(), method, path, "application/json", body))
	return w
}

// names are those of the pods in a list.
func names(t *testing.T, w *httptest.ResponseRecorder) []string {
	t.Helper()
	var l corev1.PodList
	if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil {
		t.Fatalf("%v: %.200s", err, w.Body)
	}
	var all []string
	for _, p := range l.Items {
		all = append(all, p.Namespace+"/"+p.Name)
	}
	return all
}

// FuzzSelectors lists pods by selectors as they come in, and compares the
// answer with what upstream's matching makes of the same pods. One of them is
// made of the fuzzer's labels and fields.
func FuzzSelectors(f *testing.F) {
	d := newDirect(f)
	for i, text := range []string{
		`"labels":{"app":"web","tier":"1"}},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}]}`,
		`"labels":{"app":"db","tier":"20","x.y/z":""}},"spec":{"nodeName":"n2","restartPolicy":"Never","schedulerName":"mine","containers":[{"name":"c","image":"i"}]}`,
		`"labels":{"tier":"x"}},"spec":{"serviceAccountName":"robot","containers":[{"name":"c","image":"i"}]}`,
		`"annotations":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"i"}]}`,
	} {
		for _, ns := range []string{"default", "other"} {
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p%d",%s}`, i, text)
			if w := d.send(http.MethodPost, "/api/v1/namespaces/"+ns+"/pods", body); w.Code != http.StatusCreated {
				f.Fatalf("%d: %s", w.Code, w.Body)
			}
		}
	}
	for _, seed := range [][5]string{
		{"", "", "k", "v", "n"},
		{"app=web", "", "app", "web", ""},
		{"app!=web,tier", "", "tier", "", ""},
		{"app in (web, db)", "spec.nodeName=n1", "a", "b", "n1"},
		{"app notin (web)", "spec.nodeName!=n1", "app", "x", "n1"},
		{"!app", "status.phase=Pending", "b", "", ""},
		{"tier>1", "metadata.name=p1", "tier", "7", ""},
		{"tier<20", "metadata.name!=p1", "tier", "-1", ""},
		{"x.y/z=", "metadata.namespace=other", "x.y/z", "", ""},
		{"x.y/z", "metadata.name=p1,metadata.namespace=default", "x.y/z", "w", ""},
		{"app==web,app==db", "metadata.name=p1,metadata.name=p2", "app", "web", ""},
		{"app===", "a=b", "c", "d", ""},
		{"a b", "metadata.name", "c", "d", ""},
		{"app in ()", "metadata.name=", "app", "", ""},
		{"(", ",", "c", "d", ""},
		{"app,", "metadata.name=a\\,b", "c", "d", ""},
		{"", "spec.restartPolicy=Never,spec.schedulerName=mine", "c", "d", ""},
		{"", "spec.serviceAccountName==robot", "c", "d", ""},
		{"", "spec.hostNetwork=false", "c", "d", ""},
		{"", "status.podIP=", "c", "d", ""},
		{"", "spec.nodeName=", "c", "d", ""},
		{"", "metadata.namespace=", "c", "d", ""},
		{"", "metadata.namespace!=other,metadata.name=p0", "c", "d", ""},
		{"", "metadata.name=p0/x", "c", "d", ""},
		{"", "metadata.namespace=oth,metadata.name=p0", "c", "d", ""},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4])
	}
	f.Fuzz(func(t *testing.T, label, field, key, value, node string) {
		d := &direct{d.Handler, t}
		made := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "fuzzed", Labels: map[string]string{key: value}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		body, err := json.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		d.send(http.MethodPost, "/api/v1/namespaces/default/pods", string(body)) // not every label is one
		defer d.send(http.MethodDelete, "/api/v1/namespaces/default/pods/fuzzed?gracePeriodSeconds=0", "")

		var all corev1.PodList
		if err := json.Unmarshal(d.send(http.MethodGet, "/api/v1/pods", "").Body.Bytes(), &all); err != nil {
			t.Fatal(err)
		}
		query := "?" + url.Values{"labelSelector": {label}, "fieldSelector": {field}}.Encode()
		for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/default/pods"} {
			got := d.send(http.MethodGet, path+query, "")
			matches, err := upstreamMatch(label, field)
			if err != nil {
				if got.Code != http.StatusBadRequest {
					t.Errorf("%s%s: %d, although %v", path, query, got.Code, err)
				}
				continue
			}
			if got.Code != http.StatusOK {
				t.Fatalf("%s%s: %d %s", path, query, got.Code, got.Body)
			}
			var want []string
			for i := range all.Items {
				p := &all.Items[i]
				in := strings.HasSuffix(path, "/v1/pods") || p.Namespace == "default"
				if ok, err := matches(p); err != nil {
					t.Fatal(err)
				} else if ok && in {
					want = append(want, p.Namespace+"/"+p.Name)
				}
			}
			if diff := cmp.Diff(want, names(t, got)); diff != "" {
				t.Errorf("%s%s: %s", path, query, diff)
			}
		}
	})
}

// upstreamMatch is what upstream's libraries make of selectors of pods.
func upstreamMatch(label, field string) (func(*corev1.Pod) (bool, error), error) {
	l, err := labels.Parse(label)
	if err != nil {
		return nil, err
	}
	s, err := fields.ParseSelector(field)
	if err != nil {
		return nil, err
	}
	s, err = s.Transform(func(name, value string) (string, string, error) {
		return legacyscheme.Scheme.ConvertFieldLabel(corev1.SchemeGroupVersion.WithKind("Pod"), name, value)
	})
	if err != nil {
		return nil, err
	}
	p := storage.SelectionPredicate{Label: l, Field: s, GetAttrs: pod.GetAttrs}
	return func(o *corev1.Pod) (bool, error) {
		obj, err := legacyscheme.Scheme.ConvertToVersion(o, runtime.InternalGroupVersioner)
		if err != nil {
			return false, err
		}
		return p.Matches(obj)
	}, nil
}

// FuzzContinue goes on with tokens that nobody has given out. Whatever they
// say, a list stays in its namespace and in order.
func FuzzContinue(f *testing.F) {
	d := newDirect(f)
	for _, ns := range []string{"a", "b", "b-c", "c"} {
		for i := range 4 {
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%d"}}`, i)
			if w := d.send(http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps", body); w.Code != http.StatusCreated {
				f.Fatalf("%d: %s", w.Code, w.Body)
			}
		}
	}
	for _, seed := range []struct {
		rev   int64
		start string
	}{
		{-1, "m0\x00"},
		{-1, "m0"},
		{-1, "/m0\x00"},
		{-1, "/"},
		{-1, "../a/m0\x00"},
		{-1, "b/m0"},
		{-1, "m0/../../a"},
		{-1, "\x00"},
		{-1, "zzz"},
		{-1, "\xff"},
		{-1, ""},
		{0, "m0\x00"},
		{1, "m0\x00"},
		{5, "m1\x00"},
		{1 << 62, "m0\x00"},
		{-1 << 63, "m0\x00"},
		{16, "m2\x00"},
		{17, "m2\x00"},
	} {
		b, err := json.Marshal(map[string]any{"v": "meta.k8s.io/v1", "rv": seed.rev, "start": seed.start})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true, int64(2))
		f.Add(b, true, int64(0))
	}
	for _, raw := range []string{"", "{}", "null", "[]", `{"v":"meta.k8s.io/v2","rv":1,"start":"a"}`, `{"v":"meta.k8s.io/v1","rv":"1","start":"a"}`, "\xff\xfe"} {
		f.Add([]byte(raw), true, int64(1))
		f.Add([]byte(raw), false, int64(1))
	}
	f.Fuzz(func(t *testing.T, content []byte, encoded bool, limit int64) {
		d := &direct{d.Handler, t}
		token := string(content)
		if encoded {
			token = base64.RawURLEncoding.EncodeToString(content)
		}
		query := url.Values{"continue": {token}}
		if limit != 0 {
			query.Set("limit", fmt.Sprint(limit))
		}
		w := d.send(http.MethodGet, "/api/v1/namespaces/b/configmaps?"+query.Encode(), "")
		switch w.Code {
		case http.StatusBadRequest, http.StatusGone, http.StatusUnprocessableEntity:
			return
		case http.StatusGatewayTimeout: // a revision that is still to come
			if !strings.Contains(w.Body.String(), "Too large resource version") {
				t.Errorf("%d: %s", w.Code, w.Body)
			}
			return
		case http.StatusOK:
		default:
			t.Fatalf("%q: %d: %s", token, w.Code, w.Body)
		}
		got := names(t, w)
		for _, name := range got {
			if !strings.HasPrefix(name, "b/") {
				t.Errorf("%q leads to %s", token, name)
			}
		}
		if !slices.IsSorted(got) || limit > 0 && int64(len(got)) > limit {
			t.Errorf("%q with limit %d leads to %v", token, limit, got)
		}
	})
}

// FuzzPages reads a list in pages of any size; together they are the list.
func FuzzPages(f *testing.F) {
	d := newDirect(f)
	for _, name := range []string{"a", "a.b", "a-b", "ab", "b", "b0", "b.0.c", "c"} {
		for _, ns := range []string{"x", "x-y"} {
			body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"l":%q}}}`, name, name[:1])
			if w := d.send(http.MethodPost, "/api/v1/namespaces/"+ns+"/configmaps", body); w.Code != http.StatusCreated {
				f.Fatalf("%d: %s", w.Code, w.Body)
			}
		}
	}
	for limit := range int64(9) {
		f.Add(limit, uint8(0), "")
		f.Add(limit, uint8(1), "l=a")
		f.Add(limit, uint8(2), "l!=a")
	}
	f.Fuzz(func(t *testing.T, limit int64, where uint8, selector string) {
		if limit <= 0 {
			t.Skip("no pages")
		}
		d := &direct{d.Handler, t}
		path := []string{"/api/v1/configmaps", "/api/v1/namespaces/x/configmaps", "/api/v1/namespaces/x-y/configmaps"}[where%3]
		query := url.Values{"labelSelector": {selector}}
		whole := d.send(http.MethodGet, path+"?"+query.Encode(), "")
		if whole.Code != http.StatusOK {
			t.Skip("no list to compare with")
		}
		query.Set("limit", fmt.Sprint(limit))
		var got []string
		for range 20 {
			w := d.send(http.MethodGet, path+"?"+query.Encode(), "")
			var l metav1.PartialObjectMetadataList
			if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != http.StatusOK {
				t.Fatalf("%d %v: %s", w.Code, err, w.Body)
			}
			got = append(got, names(t, w)...)
			if l.Continue == "" {
				break
			}
			query.Set("continue", l.Continue)
		}
		if diff := cmp.Diff(names(t, whole), got); diff != "" {
			t.Errorf("%s in pages of %d: %s", path, limit, diff)
		}
	})
}
