package bootstraptoken

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"setpoint.dev/setpoint/controller/plantest"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// tokenOf is a token that signs, changed by "key=value" fields.
func tokenOf(name string, changes ...string) *corev1.Secret {
	data := map[string][]byte{
		bootstrapapi.BootstrapTokenIDKey: []byte("abcdef"), bootstrapapi.BootstrapTokenSecretKey: []byte("secret"), bootstrapapi.BootstrapTokenUsageSigningKey: []byte("true"),
	}
	for _, c := range changes {
		key, value, _ := strings.Cut(c, "=")
		data[key] = []byte(value)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
}

func TestSign(t *testing.T) {
	right, err := jws.ComputeDetachedSignature("text", "abcdef", "secret")
	if err != nil {
		t.Fatal(err)
	}
	const name = "bootstrap-token-abcdef"
	told := map[string]string{"kubeconfig": "text"}
	signed := map[string]string{"kubeconfig": "text", "jws-kubeconfig-abcdef": right}
	cases := []struct {
		name   string
		told   map[string]string
		tokens []*corev1.Secret
	}{
		{"nothing to sign", map[string]string{"other": "text"}, []*corev1.Secret{tokenOf(name)}},
		{"no tokens", told, nil},
		{"signed first", told, []*corev1.Secret{tokenOf(name)}},
		{"signed already", signed, []*corev1.Secret{tokenOf(name)}},
		{"a text that has changed", map[string]string{"kubeconfig": "text", "jws-kubeconfig-abcdef": "of another"}, []*corev1.Secret{tokenOf(name)}},
		{"a token that has gone", signed, nil},
		{"a token that ends in an hour", signed, []*corev1.Secret{tokenOf(name, "expiration=2030-01-01T13:00:00Z")}},
		{"a token that has ended", signed, []*corev1.Secret{tokenOf(name, "expiration=2030-01-01T11:00:00Z")}},
		{"a token that ends nobody knows when", signed, []*corev1.Secret{tokenOf(name, "expiration=soon")}},
		{"a token that may not sign", signed, []*corev1.Secret{tokenOf(name, "usage-bootstrap-signing=false")}},
		{"a token of another name", signed, []*corev1.Secret{tokenOf("bootstrap-token-fedcba")}},
		{"a token of no name", signed, []*corev1.Secret{tokenOf("mine")}},
		{"a token without a secret", signed, []*corev1.Secret{tokenOf(name, "token-secret=")}},
	}
	var b strings.Builder
	for _, c := range cases {
		made, again, err := sign(&corev1.ConfigMap{Data: c.told}, c.tokens, noon)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "# %s\n", c.name)
		if made != nil {
			for _, key := range slices.Sorted(maps.Keys(made.Data)) {
				fmt.Fprintf(&b, "%s: %s\n", key, strings.Replace(made.Data[key], right, "the right signature", 1))
			}
		}
		if again > 0 {
			fmt.Fprintf(&b, "again in %v\n", again)
		}
		b.WriteByte('\n')
	}
	plantest.Golden(t, "sign.txt", b.String())
}
