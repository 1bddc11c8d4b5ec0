package bench_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
)

var objects = flag.Int("objects", 3000, "objects of a built-in kind to create in each of three rounds")

// BenchmarkBuiltin measures what is done with built-in kinds, beside
// kube-apiserver and etcd when these are given: pods of 5.4 KiB as they are
// stored, and ConfigMaps of 1 KiB.
func BenchmarkBuiltin(b *testing.B) {
	for _, k := range []builtin{pods, configMaps} {
		b.Run(k.resource, func(b *testing.B) {
			all := newSides(b)
			all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
			// What a controller would make: pods cannot be without.
			all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces/bench/serviceaccounts", "application/json", []byte(`{"metadata":{"name":"default"}}`))
			all.measure(b, k.loads())
		})
	}
}

// builtin is a kind of the core group.
type builtin struct {
	resource, kind string
	body           func() map[string]any // all but its name
	field          string                // what lists select by, of the fields that the kind has
}

var (
	pods       = builtin{"pods", "Pod", podBody, "spec.nodeName=none"}
	configMaps = builtin{"configmaps", "ConfigMap", configMapBody, "metadata.name=object-0-00001"}
)

type object = map[string]any

func podBody() object {
	var containers []object
	for _, name := range []string{"web", "proxy", "log"} {
		var env []object
		for i := range 12 {
			env = append(env, object{"name": fmt.Sprintf("SETTING_%02d", i), "value": strings.Repeat("v", 24)})
		}
		containers = append(containers, object{
			"name": name, "image": "registry.example.org/" + name + ":1.2.3", "args": []string{"--listen=:8080", "--verbose"}, "env": env,
			"ports":          []object{{"name": "http", "containerPort": 8080}},
			"resources":      object{"requests": object{"cpu": "100m", "memory": "128Mi"}, "limits": object{"memory": "256Mi"}},
			"volumeMounts":   []object{{"name": "config", "mountPath": "/etc/config"}, {"name": "scratch", "mountPath": "/tmp"}},
			"readinessProbe": object{"httpGet": object{"path": "/ready", "port": "http"}, "periodSeconds": 5},
		})
	}
	return object{"spec": object{
		"containers": containers, "automountServiceAccountToken": false, "nodeSelector": object{"disk": "ssd"},
		"tolerations": []object{{"key": "dedicated", "operator": "Equal", "value": "bench", "effect": "NoSchedule"}},
		"volumes":     []object{{"name": "config", "configMap": object{"name": "settings"}}, {"name": "scratch", "emptyDir": object{}}},
	}}
}

func configMapBody() object {
	data := object{}
	for i := range 16 {
		data[fmt.Sprintf("key-%02d", i)] = strings.Repeat("x", 40)
	}
	return object{"data": data}
}

func (k builtin) path() string { return "/api/v1/namespaces/bench/" + k.resource }

func (k builtin) of(round, i int) string { return fmt.Sprintf("%s/%s", k.path(), k.name(round, i)) }

func (k builtin) name(round, i int) string { return fmt.Sprintf("object-%d-%05d", round, i) }

// manifest is an object as a client sends it.
func (k builtin) manifest(name, label string) []byte {
	o := k.body()
	o["apiVersion"], o["kind"] = "v1", k.kind
	o["metadata"] = object{"name": name, "labels": object{"app": "bench", "label": label}, "annotations": object{"example.org/about": strings.Repeat("a", 100)}}
	body, _ := json.Marshal(o) // of texts and numbers
	return body
}

func (k builtin) loads() []load {
	label := func(by string) func(round, i int) []byte {
		return func(round, i int) []byte {
			return fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d-%d"}}}`, by, round, i)
		}
	}
	applied := func(s, label string) func(round, i int) []byte {
		return func(round, i int) []byte { return k.manifest(fmt.Sprintf(s, round, i), label) }
	}
	appliedPath := func(round, i int) string {
		return fmt.Sprintf("%s/applied-%d-%05d?fieldManager=bench", k.path(), round, i)
	}
	some := max(1, *objects/6)
	return append([]load{
		{"create", *objects, k.create},
		{"get", some * 4, k.get},
		{"get-put", some, k.put},
		patches("merge", some, "application/merge-patch+json", k.of, label("merged")),
		patches("json", some, "application/json-patch+json", k.of, func(round, i int) []byte {
			return fmt.Appendf(nil, `[{"op":"add","path":"/metadata/labels/json","value":"%d-%d"}]`, round, i)
		}),
		patches("strategic", some, "application/strategic-merge-patch+json", k.of, label("strategic")),
		{"contended", some, k.contend},
		{"apply-new", some, func(b *testing.B, s *server, round, n int) {
			b.Helper()
			together(b, n, func(i int) error {
				return s.expect(b.Context(), http.StatusCreated, http.MethodPatch, appliedPath(round, i), "application/apply-patch+yaml", applied("applied-%d-%05d", "new")(round, i))
			})
		}},
		patches("apply-change", some, "application/apply-patch+yaml", appliedPath, applied("applied-%d-%05d", "changed")),
		patches("apply-noop", some, "application/apply-patch+yaml", appliedPath, applied("applied-%d-%05d", "changed")),
		listing{"list", k.path(), "application/json", ""}.load(),
		listing{"list-protobuf", k.path(), "application/vnd.kubernetes.protobuf", ""}.load(),
		listing{"list-plain", k.path(), "application/json", "identity"}.load(),
		listing{"list-protobuf-plain", k.path(), "application/vnd.kubernetes.protobuf", "identity"}.load(),
		pages("list-pages", k.path()),
		listing{"list-label", k.path() + "?labelSelector=label%3Dchanged", "application/json", ""}.load(),
		listing{"list-field", k.path() + "?fieldSelector=" + url.QueryEscape(k.field), "application/json", ""}.load(),
	}, watching(k.path(), k.of, "application/strategic-merge-patch+json", label("watched"))...)
}

func (k builtin) create(b *testing.B, s *server, round, n int) {
	together(b, n, func(i int) error {
		return s.expect(b.Context(), http.StatusCreated, http.MethodPost, k.path(), "application/json", k.manifest(k.name(round, i), "created"))
	})
}

func (k builtin) get(b *testing.B, s *server, round, n int) {
	together(b, n, func(i int) error {
		return s.expect(b.Context(), http.StatusOK, http.MethodGet, k.of(round, i%max(1, n/8)), "", nil)
	})
}

// put reads an object and writes it back with another label.
func (k builtin) put(b *testing.B, s *server, round, n int) {
	together(b, n, func(i int) error {
		_, body, err := s.do(b.Context(), http.MethodGet, k.of(round, i), "", nil)
		if err != nil {
			return err
		}
		body = bytes.Replace(body, []byte(`"label":"created"`), []byte(`"label":"put"`), 1)
		return s.expect(b.Context(), http.StatusOK, http.MethodPut, k.of(round, i), "application/json", body)
	})
}

// contend has all clients patch one object; those who are told to try again do.
func (k builtin) contend(b *testing.B, s *server, round, n int) {
	var mu sync.Mutex
	refused := 0
	together(b, n, func(i int) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{"contended":"%d-%d"}}}`, round, i)
		for {
			code, answer, err := s.do(b.Context(), http.MethodPatch, k.of(round, 0), "application/strategic-merge-patch+json", patch)
			switch {
			case err != nil:
				return err
			case code == http.StatusConflict:
				mu.Lock()
				refused++
				mu.Unlock()
			case code != http.StatusOK:
				return fmt.Errorf("contended patch: %d: %.500s", code, answer)
			default:
				return nil
			}
		}
	})
	if round > 0 && refused > 0 {
		b.Logf("round %d: %d patches made, %d refused with a conflict", round, n, refused)
	}
}
