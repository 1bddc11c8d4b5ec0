package env_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/node/env"
)

// objects are sources of a test, by name.
type objects struct {
	maps    map[string]map[string]string
	secrets map[string]map[string][]byte
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := o.maps[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := o.secrets[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	return &corev1.Secret{Data: data}, nil
}

func service(namespace, name, address string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address, Ports: ports}}
}

func input(t *testing.T) env.Input {
	dir := t.TempDir()
	file := "# settings\nA='one'\n\nB='two\nlines' # both\nC= 'lost'\n"
	if err := os.WriteFile(filepath.Join(dir, "vars"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	services := []*corev1.Service{
		service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("default", "other", "10.0.0.2", corev1.ServicePort{Port: 80}),
		service("shop", "cart-db", "10.0.0.3", corev1.ServicePort{Name: "sql", Port: 5432, Protocol: corev1.ProtocolUDP}),
		service("shop", "headless", corev1.ClusterIPNone, corev1.ServicePort{Port: 1}),
	}
	return env.Input{
		PodIPs: []string{"10.1.0.5", "fd00::5"}, HostIPs: []string{"192.0.2.1", "2001:db8::1"}, NodeName: "n1",
		Sources: objects{
			maps:    map[string]map[string]string{"settings": {"color": "red", "not-a-name!": "kept"}},
			secrets: map[string]map[string][]byte{"keys": {"token": []byte("s3cret")}},
		},
		Services: func(namespace string) (found []*corev1.Service) {
			for _, s := range services {
				if s.Namespace == namespace {
					found = append(found, s)
				}
			}
			return found
		},
		VolumePath: func(volume string) (string, error) {
			if volume != "vars" {
				return "", os.ErrNotExist
			}
			return dir, nil
		},
	}
}

func TestOf(t *testing.T) {
	const links = "KUBERNETES_PORT=tcp://10.0.0.1:443 KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443 KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1 " +
		"KUBERNETES_PORT_443_TCP_PORT=443 KUBERNETES_PORT_443_TCP_PROTO=tcp KUBERNETES_SERVICE_HOST=10.0.0.1 " +
		"KUBERNETES_SERVICE_PORT=443 KUBERNETES_SERVICE_PORT_HTTPS=443"
	for _, test := range []struct {
		name, container string
		links           bool
		want, err       string
	}{
		{name: "nothing", container: "{}", want: links},
		{
			name: "services of the namespace", container: "{}", links: true,
			want: "CART_DB_PORT=udp://10.0.0.3:5432 CART_DB_PORT_5432_UDP=udp://10.0.0.3:5432 CART_DB_PORT_5432_UDP_ADDR=10.0.0.3 " +
				"CART_DB_PORT_5432_UDP_PORT=5432 CART_DB_PORT_5432_UDP_PROTO=udp CART_DB_SERVICE_HOST=10.0.0.3 CART_DB_SERVICE_PORT=5432 CART_DB_SERVICE_PORT_SQL=5432 " + links,
		},
		{
			name: "one after the other", container: `{env: [{name: A, value: x}, {name: B, value: "$(A)$(C)"}, {name: C, value: "$$(A)"}, {name: D, value: "$(KUBERNETES_SERVICE_PORT)"}]}`,
			want: "A=x B=x$(C) C=$(A) D=443 " + links,
		},
		{name: "instead of a service", container: `{env: [{name: KUBERNETES_SERVICE_HOST, value: api}]}`, want: strings.Replace(links, "HOST=10.0.0.1", "HOST=api", 1)},
		{
			name:      "all of a map and of a secret",
			container: `{envFrom: [{configMapRef: {name: settings}}, {prefix: S_, secretRef: {name: keys}}, {configMapRef: {name: none, optional: true}}], env: [{name: color, value: "dark $(color)"}]}`,
			want:      links + " S_token=s3cret color=dark red not-a-name!=kept",
		},
		{name: "map is missing", container: `{envFrom: [{configMapRef: {name: none}}]}`, err: `configmap "none" not found`},
		{name: "secret is missing", container: `{envFrom: [{secretRef: {name: none}}]}`, err: `secret "none" not found`},
		{
			name:      "keys",
			container: `{env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: color}}}, {name: B, valueFrom: {secretKeyRef: {name: keys, key: token}}}, {name: C, valueFrom: {secretKeyRef: {name: keys, key: none, optional: true}}}, {name: D, valueFrom: {configMapKeyRef: {name: none, key: x, optional: true}}}]}`,
			want:      "A=red B=s3cret " + links,
		},
		{name: "no such key of a map", container: `{env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: size}}}]}`, err: "couldn't find key size in ConfigMap shop/settings"},
		{name: "no such key of a secret", container: `{env: [{name: A, valueFrom: {secretKeyRef: {name: keys, key: size}}}]}`, err: "couldn't find key size in Secret shop/keys"},
		{
			name:      "fields",
			container: `{env: [{name: A, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: status.podIP}}}, {name: B, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}, {name: C, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: D, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: E, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}, {name: F, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}, {name: G, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]}`,
			want:      "A=10.1.0.5 B=192.0.2.1,2001:db8::1 C=n1 D=web E=10.1.0.5,fd00::5 F=clerk G=192.0.2.1 " + links,
		},
		{name: "resources", container: `{resources: {requests: {cpu: 100m}}, env: [{name: A, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: 1m}}}]}`, want: "A=100 " + links},
		{
			name:      "files",
			container: `{env: [{name: A, valueFrom: {fileKeyRef: {volumeName: vars, path: vars, key: A}}}, {name: B, valueFrom: {fileKeyRef: {volumeName: vars, path: vars, key: C, optional: true}}}]}`,
			want:      "A=one " + links,
		},
		{name: "a file elsewhere", container: `{env: [{name: A, valueFrom: {fileKeyRef: {volumeName: vars, path: ../vars, key: A}}}]}`, err: "couldn't parse env file"},
		{name: "no such volume", container: `{env: [{name: A, valueFrom: {fileKeyRef: {volumeName: none, path: vars, key: A}}}]}`, err: `cannot find the volume "none" referenced by FileKeyRef`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c corev1.Container
			if err := yaml.UnmarshalStrict([]byte(test.container), &c); err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: corev1.PodSpec{ServiceAccountName: "clerk", EnableServiceLinks: &test.links}}
			variables, err := env.Of(t.Context(), pod, &c, input(t))
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Fatalf("error is %v, want %s", err, test.err)
				}
				return
			}
			var got []string
			for _, v := range variables {
				got = append(got, v.Key+"="+string(v.Value))
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B": "$(A)", "": "empty"}
	for text, want := range map[string]string{
		"$(A)-$(B)": "1-$(A)", "$$(A)": "$(A)", "$$$(A)": "$1", "$(C)": "$(C)", "$(A": "$(A", "$": "$", "a$": "a$",
		"$A": "$A", "$()": "empty", "$é$(A)": "$é1", "$$$$": "$$", "(A)": "(A)",
	} {
		get := func(name string) (string, bool) { v, ok := values[name]; return v, ok }
		if got := env.Expand(text, get); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, test := range []struct{ name, text, want, err string }{
		{"a value", "A='x'", "x", ""},
		{"after others", "Z='1'\n  # A='no'\n\tA='a b' # c\n", "a b", ""},
		{"lines", "A='x\n\n y'\n", "x\n\n y", ""},
		{"the first counts", "A='1'\nA='2'", "1", ""},
		{"none", "Z='1'", "", ""},
		{"empty by a space", "A= 'x'", "", ""},
		{"no sign", "Z='1'\nA", "", "invalid environment variable format at line 2: missing '='"},
		{"no name", "='x'", "", "invalid environment variable format at line 1: empty variable name"},
		{"a space", "A ='x'", "", "invalid environment variable format at line 1: whitespace before '=' is not allowed"},
		{"no quotes", "A=x", "", "invalid environment variable format at line 1: value must be enclosed in single quotes"},
		{"not closed", "Z='1\n2'\nA='x", "", "invalid environment variable format starting at line 3: unclosed single quote"},
		{"more behind", "A='x' y", "", "invalid environment variable format at line 1: unexpected content after closing quote"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := env.Parse(test.text, "A")
			if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("got %q, %v; want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}
