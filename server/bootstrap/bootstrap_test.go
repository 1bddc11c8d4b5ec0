package bootstrap_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"

	"setpoint.dev/setpoint/server/bootstrap"
)

var rewrite = flag.Bool("rewrite", false, "with -kube-apiserver: write what it has to testdata")

// golden holds one line per object that kube-apiserver v1.36.3 made on an empty
// store: its resource, its name, and its normal form.
const golden = "testdata/kube-apiserver.txt"

// config is what the recorded kube-apiserver was started with.
var config = bootstrap.Config{
	AdvertiseAddress:               netip.MustParseAddr("192.0.2.10"),
	AdvertisePort:                  16443,
	ClientCA:                       []byte("-----BEGIN CERTIFICATE-----\n"),
	RequestHeaderCA:                []byte("-----BEGIN CERTIFICATE-----\n"),
	RequestHeaderAllowedNames:      []string{"front-proxy-client"},
	RequestHeaderUsernameHeaders:   []string{"X-Remote-User"},
	RequestHeaderGroupHeaders:      []string{"X-Remote-Group"},
	RequestHeaderExtraHeadersStart: []string{"X-Remote-Extra-"},
}

func objects(t testing.TB, cfg bootstrap.Config) []runtime.Object {
	t.Helper()
	objs, err := bootstrap.Objects(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return objs
}

// normal returns an object without what only a server can know, what differs
// from run to run, and what another actor adds. Owners are part of it.
func normal(resource string, data []byte) (name string, line []byte, err error) {
	var obj map[string]any
	if err := json.Unmarshal(data, &obj); err != nil {
		return "", nil, err
	}
	delete(obj, "kind")
	delete(obj, "apiVersion")
	m := obj["metadata"].(map[string]any)
	for _, key := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
		delete(m, key)
	}
	m["managedFields"] = slices.DeleteFunc(m["managedFields"].([]any), func(entry any) bool {
		e := entry.(map[string]any)
		delete(e, "time")
		fields, _ := json.Marshal(e["fieldsV1"])
		e["fieldsV1"] = string(fields) // not to be pruned
		return slices.Contains([]any{"api-priority-and-fairness-config-consumer-v1", "clusterrole-aggregation-controller"}, e["manager"])
	})
	switch resource {
	case "flowschemas", "prioritylevelconfigurations":
		delete(obj, "status") // written by whoever applies them
	case "servicecidrs":
		for _, c := range obj["status"].(map[string]any)["conditions"].([]any) {
			delete(c.(map[string]any), "lastTransitionTime")
		}
	case "clusterroles":
		if obj["aggregationRule"] != nil {
			delete(obj, "rules") // gathered by a controller
		}
	case "configmaps":
		for key, value := range obj["data"].(map[string]any) {
			if strings.HasPrefix(value.(string), "-----BEGIN CERTIFICATE") {
				obj["data"].(map[string]any)[key] = "CERTIFICATE"
			}
			if key == "since" {
				obj["data"].(map[string]any)[key] = "DATE"
			}
		}
	}
	name = m["name"].(string)
	if namespace, ok := m["namespace"].(string); ok {
		name = namespace + "/" + name
	}
	prune(obj)
	line, err = json.Marshal(obj)
	return name, line, err
}

// prune removes what is empty, which encoders treat differently.
func prune(v any) (empty bool) {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for key, field := range v {
			if prune(field) {
				delete(v, key)
			}
		}
		return len(v) == 0
	case []any:
		for _, item := range v {
			prune(item)
		}
		return len(v) == 0
	}
	return v == ""
}

func resourceOf(t *testing.T, obj runtime.Object) string {
	t.Helper()
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return gvr.Resource
}

func TestSameAsKubeAPIServer(t *testing.T) {
	var got []string
	for _, obj := range objects(t, config) {
		legacyscheme.Scheme.Default(obj) // as every write does
		data, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		resource := resourceOf(t, obj)
		name, line, err := normal(resource, data)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", resource, name, line))
	}
	slices.Sort(got)
	want := recorded(t)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kube-apiserver (-) and here (+) differ:\n%s", diff)
	}
}

func recorded(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.FromSlash(golden))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines
}

func TestCounts(t *testing.T) {
	got := map[string]int{}
	for _, obj := range objects(t, config) {
		got[resourceOf(t, obj)]++
	}
	want := map[string]int{
		"namespaces": 4, "priorityclasses": 2, "clusterroles": 70, "clusterrolebindings": 51, "roles": 7, "rolebindings": 7,
		"flowschemas": 11, "prioritylevelconfigurations": 8, "servicecidrs": 1, "services": 1, "endpoints": 1,
		"endpointslices": 1, "configmaps": 2, "ipaddresses": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestOrder: what an object refers to comes before it.
func TestOrder(t *testing.T) {
	made := sets.New[string]()
	for _, obj := range objects(t, config) {
		m, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		if ns := m.GetNamespace(); ns != "" && !made.Has("namespaces "+ns) {
			t.Errorf("%T %s before its namespace", obj, m.GetName())
		}
		var role rbacv1.RoleRef
		switch b := obj.(type) {
		case *rbacv1.ClusterRoleBinding:
			role = b.RoleRef
		case *rbacv1.RoleBinding:
			role = b.RoleRef
		}
		switch {
		case role.Kind == "ClusterRole" && !made.Has("clusterroles "+role.Name),
			role.Kind == "Role" && !made.Has("roles "+role.Name):
			t.Errorf("%s binds %s, which comes later or never", m.GetName(), role.Name)
		}
		made.Insert(resourceOf(t, obj) + " " + m.GetName())
	}
}

func TestAggregatedRoles(t *testing.T) {
	roles := map[string][]rbacv1.PolicyRule{}
	for _, obj := range objects(t, config) {
		if role, ok := obj.(*rbacv1.ClusterRole); ok {
			roles[role.Name] = role.Rules
		}
	}
	for name, from := range map[string][]string{
		"view":  {"system:aggregate-to-view"},
		"edit":  {"system:aggregate-to-edit", "view"},
		"admin": {"system:aggregate-to-admin", "edit"},
	} {
		for _, other := range from {
			if len(roles[other]) == 0 {
				t.Errorf("%s has no rules", other)
			}
			for _, rule := range roles[other] {
				if !slices.ContainsFunc(roles[name], func(r rbacv1.PolicyRule) bool { return cmp.Equal(r, rule) }) {
					t.Errorf("%s lacks %v of %s", name, rule, other)
				}
			}
		}
	}
}

func TestServiceRanges(t *testing.T) {
	tests := []struct {
		name   string
		ranges []string
		want   string // address of the kubernetes service
		fails  bool
	}{
		{"default", nil, "10.0.0.1", false},
		{"host bits", []string{"10.96.3.4/12"}, "10.96.0.1", false},
		{"IPv6", []string{"fd00::/108"}, "fd00::1", false},
		{"both", []string{"10.1.0.0/16", "fd00::/108"}, "10.1.0.1", false},
		{"one address", []string{"10.1.0.0/32"}, "", true},
		{"three", []string{"10.1.0.0/16", "fd00::/108", "10.2.0.0/16"}, "", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := config
			for _, r := range test.ranges {
				cfg.ServiceRanges = append(cfg.ServiceRanges, netip.MustParsePrefix(r))
			}
			objs, err := bootstrap.Objects(cfg)
			if test.fails != (err != nil) {
				t.Fatalf("error %v", err)
			}
			for _, obj := range objs {
				if s, ok := obj.(*corev1.Service); ok && s.Spec.ClusterIP != test.want {
					t.Errorf("the service has %s", s.Spec.ClusterIP)
				}
			}
		})
	}
}

func TestCurrent(t *testing.T) {
	for addr, want := range map[string]int{"192.0.2.1": 3, "2001:db8::1": 3, "127.0.0.1": 1, "::": 1} {
		objs, err := bootstrap.Current(bootstrap.Config{AdvertiseAddress: netip.MustParseAddr(addr), AdvertisePort: 6443})
		if err != nil || len(objs) != want {
			t.Errorf("%s: %d objects, error %v", addr, len(objs), err)
		}
	}
	if objs, err := bootstrap.Current(bootstrap.Config{}); err != nil || len(objs) != 1 {
		t.Errorf("nowhere: %d objects, error %v", len(objs), err)
	}
}

// TestObjectsAreTheCallers: changing what one call returned changes no other.
func TestObjectsAreTheCallers(t *testing.T) {
	for _, obj := range objects(t, config) {
		m, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		if m.GetLabels() != nil {
			m.GetLabels()["spoiled"] = "yes"
		}
		if m.GetAnnotations() != nil {
			m.GetAnnotations()["spoiled"] = "yes"
		}
		m.SetName("spoiled")
	}
	for _, obj := range objects(t, config) {
		m, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		if m.GetName() == "spoiled" || m.GetLabels()["spoiled"] != "" || m.GetAnnotations()["spoiled"] != "" {
			t.Errorf("%T %s is shared between calls", obj, m.GetName())
		}
	}
}

func BenchmarkObjects(b *testing.B) {
	for b.Loop() {
		objects(b, config)
	}
}
