package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write the plans down as they are")

const name = "envoy.initializer.kubernetes.io"

const sidecar = `
containers:
- name: envoy
  image: lyft/envoy:x
  volumeMounts:
  - {name: envoy-conf, mountPath: /etc/envoy}
volumes:
- name: envoy-conf
  configMap: {name: envoy}
`

func read(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &obj); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: obj}
}

func config(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{Data: map[string]string{ConfigKey: text}}
}

func TestPlans(t *testing.T) {
	s, err := ParseSidecar(config(sidecar))
	if err != nil {
		t.Fatal(err)
	}
	const plain = `
metadata: {name: myapp-pod, namespace: default, uid: u, resourceVersion: "7", initializers: {pending: [{name: envoy.initializer.kubernetes.io}, {name: b.example.org}]}}
spec:
  containers:
  - {name: myapp-container, image: busybox}
  volumes:
  - name: v0
    emptyDir: {}
`
	const hasOne = `
metadata: {name: own, namespace: default, uid: u, resourceVersion: "8", initializers: {pending: [{name: envoy.initializer.kubernetes.io}]}}
spec:
  containers:
  - {name: envoy, image: mine}
`
	for file, plan := range map[string]func() (Plan, error){
		"adds":                   func() (Plan, error) { return inject(read(t, plain), s, name) },
		"only-signs":             func() (Plan, error) { return inject(read(t, plain), nil, name) },
		"keeps-what-the-pod-has": func() (Plan, error) { return inject(read(t, hasOne), s, name) },
		"rejects":                func() (Plan, error) { return reject(read(t, plain), errors.New("bad config")) },
	} {
		t.Run(file, func(t *testing.T) {
			p, err := plan()
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			got.WriteString(string(p.Type) + "\n")
			if err := json.Indent(&got, p.Data, "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			path := filepath.Join("testdata", file+".txt")
			if *rewrite {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestBadConfigurationsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"containers: [":             "yaml",
		"containers: []":            "no containers",
		"container: [{name: x}]":    `unknown field "container"`,
		"containers: [{name: [1]}]": "cannot unmarshal",
	} {
		if _, err := ParseSidecar(config(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := ParseSidecar(&corev1.ConfigMap{}); err == nil || !strings.Contains(err.Error(), `no key "config"`) {
		t.Errorf("no data: %v", err)
	}
}
