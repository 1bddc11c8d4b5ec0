package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/client"
)

// BenchmarkRequest shows what requests cost the server, without the network
// and the disk: a pod of 5 KiB and a custom resource of 2 KiB, asked for by
// one client. With -cpuprofile it shows where the time goes.
func BenchmarkRequest(b *testing.B) {
	a, err := app.Open(b.Context(), app.Config{Data: app.Memory, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = a.Close() })
	c := client.New(client.Config{
		Handler: a.Handler(), User: &user.DefaultInfo{Name: "bench", Groups: []string{user.SystemPrivilegedGroup}}, UserAgent: "bench/1",
	})
	h := handled{c.Config().Transport}
	h.do(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", `{"metadata":{"name":"bench"}}`)
	h.do(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/bench/serviceaccounts", "application/json", `{"metadata":{"name":"default"}}`)
	h.do(b, http.StatusCreated, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/json", benchDefinition(b))
	for _, k := range []benchKind{
		{"pod", "/api/v1/namespaces/bench/pods/", benchPod, "metadata", `"labels":{"n":"%d"}`},
		{"custom", "/apis/bench.example.org/v1/things/", benchThing, "spec", `"part00":{"count":%d}`},
	} {
		b.Run(k.name, func(b *testing.B) { k.run(b, h) })
	}
}

type benchKind struct {
	name, path  string
	manifest    func(name, label string) string
	top, change string
}

type handled struct{ http.RoundTripper }

func (h handled) do(b *testing.B, code int, method, path, media, body string) string {
	b.Helper()
	r := httptest.NewRequestWithContext(b.Context(), method, "http://setpoint"+path, strings.NewReader(body))
	r.RequestURI = ""
	r.Header.Set("Content-Type", media)
	answer, err := h.RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	all, err := io.ReadAll(answer.Body)
	err = errors.Join(err, answer.Body.Close())
	if err != nil || answer.StatusCode != code {
		b.Fatalf("%s %s: %d, %v: %.500s", method, path, answer.StatusCode, err, all)
	}
	return string(all)
}

func (k benchKind) run(b *testing.B, h handled) {
	collection := strings.TrimSuffix(k.path, "/")
	made, changed, body := 0, 0, k.manifest("made", "created")
	h.do(b, http.StatusCreated, http.MethodPost, collection, "application/json", k.manifest("one", "created"))
	patch := func(media, text string) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				changed++
				h.do(b, http.StatusOK, http.MethodPatch, k.path+"one", media, fmt.Sprintf(text, changed))
			}
		}
	}
	b.Run("create", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			made++
			h.do(b, http.StatusCreated, http.MethodPost, collection, "application/json", strings.Replace(body, `"name":"made"`, fmt.Sprintf(`"name":"made-%d"`, made), 1))
		}
	})
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.do(b, http.StatusOK, http.MethodGet, k.path+"one", "", "")
		}
	})
	b.Run("put", func(b *testing.B) {
		b.ReportAllocs()
		have := h.do(b, http.StatusOK, http.MethodGet, k.path+"one", "", "")
		for b.Loop() {
			have = h.do(b, http.StatusOK, http.MethodPut, k.path+"one", "application/json", k.another(have))
		}
	})
	b.Run("merge", patch("application/merge-patch+json", `{"`+k.top+`":{`+k.change+`}}`))
	b.Run("json", func(b *testing.B) {
		patch("application/json-patch+json", `[{"op":"add","path":"/metadata/annotations","value":{"n":"%d"}}]`)(b)
	})
	if k.name == "pod" {
		b.Run("strategic", patch("application/strategic-merge-patch+json", `{"`+k.top+`":{`+k.change+`}}`))
	}
	b.Run("apply", func(b *testing.B) {
		b.ReportAllocs()
		path := k.path + "applied?fieldManager=bench&force=true"
		h.do(b, http.StatusCreated, http.MethodPatch, path, "application/apply-patch+yaml", k.manifest("applied", "new"))
		manifest := k.manifest("applied", "another")
		for b.Loop() {
			changed++
			h.do(b, http.StatusOK, http.MethodPatch, path, "application/apply-patch+yaml", strings.Replace(manifest, "another", fmt.Sprintf("l%d", changed), 1))
		}
	})
	b.Run("apply-noop", func(b *testing.B) {
		b.ReportAllocs()
		path, manifest := k.path+"applied?fieldManager=bench&force=true", k.manifest("applied", "same")
		for b.Loop() {
			h.do(b, http.StatusOK, http.MethodPatch, path, "application/apply-patch+yaml", manifest)
		}
	})
}

// another is an object with another label.
func (k benchKind) another(have string) string {
	if strings.Contains(have, `"label":"put"`) {
		return strings.Replace(have, `"label":"put"`, `"label":"again"`, 1)
	}
	before, after, _ := strings.Cut(have, `"label":"`)
	_, after, _ = strings.Cut(after, `"`)
	return before + `"label":"put"` + after
}

type fields = map[string]any

func benchPod(name, label string) string {
	var containers []fields
	for _, name := range []string{"web", "proxy", "log"} {
		var env []fields
		for i := range 12 {
			env = append(env, fields{"name": fmt.Sprintf("SETTING_%02d", i), "value": strings.Repeat("v", 24)})
		}
		containers = append(containers, fields{
			"name": name, "image": "registry.example.org/" + name + ":1.2.3", "args": []string{"--listen=:8080", "--verbose"}, "env": env,
			"ports":          []fields{{"name": "http", "containerPort": 8080}},
			"resources":      fields{"requests": fields{"cpu": "100m", "memory": "128Mi"}, "limits": fields{"memory": "256Mi"}},
			"volumeMounts":   []fields{{"name": "config", "mountPath": "/etc/config"}, {"name": "scratch", "mountPath": "/tmp"}},
			"readinessProbe": fields{"httpGet": fields{"path": "/ready", "port": "http"}, "periodSeconds": 5},
		})
	}
	return benchJSON(fields{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": fields{"name": name, "labels": fields{"app": "bench", "label": label}, "annotations": fields{"example.org/about": strings.Repeat("a", 100)}},
		"spec": fields{
			"containers": containers, "automountServiceAccountToken": false, "nodeSelector": fields{"disk": "ssd"},
			"tolerations": []fields{{"key": "dedicated", "operator": "Equal", "value": "bench", "effect": "NoSchedule"}},
			"volumes":     []fields{{"name": "config", "configMap": fields{"name": "settings"}}, {"name": "scratch", "emptyDir": fields{}}},
		},
	})
}

func benchThing(name, label string) string {
	spec := fields{}
	for p := range 8 {
		spec[fmt.Sprintf("part%02d", p)] = fields{
			"name": fmt.Sprintf("part-%d", p), "count": p, "ready": true,
			"ports":  []fields{{"port": 80, "protocol": "TCP"}, {"port": 443, "protocol": "TCP"}},
			"labels": fields{"app": strings.Repeat("a", 40), "tier": strings.Repeat("b", 40)},
		}
	}
	return benchJSON(fields{
		"apiVersion": "bench.example.org/v1", "kind": "Thing", "metadata": fields{"name": name, "labels": fields{"app": "bench", "label": label}}, "spec": spec,
	})
}

func benchDefinition(b *testing.B) string {
	b.Helper()
	parts := fields{}
	for p := range 28 {
		parts[fmt.Sprintf("part%02d", p)] = fields{"type": "object", "properties": fields{
			"name": fields{"type": "string", "minLength": 1, "maxLength": 63}, "count": fields{"type": "integer", "minimum": 0},
			"ready": fields{"type": "boolean", "default": false},
			"ports": fields{"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"port"}, "items": fields{
				"type": "object", "required": []string{"port"},
				"properties": fields{"port": fields{"type": "integer"}, "protocol": fields{"type": "string", "enum": []string{"TCP", "UDP"}}},
			}},
			"labels": fields{"type": "object", "additionalProperties": fields{"type": "string"}},
		}}
	}
	return benchJSON(fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": "things.bench.example.org"},
		"spec": fields{
			"group": "bench.example.org", "scope": "Cluster", "names": fields{"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
			"versions": []fields{{"name": "v1", "served": true, "storage": true, "schema": fields{"openAPIV3Schema": fields{"type": "object", "properties": fields{
				"spec": fields{"type": "object", "properties": parts}, "status": fields{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}}, "subresources": fields{"status": fields{}}}},
		},
	})
}

func benchJSON(of fields) string {
	b, _ := json.Marshal(of) // of texts and numbers
	return string(b)
}
