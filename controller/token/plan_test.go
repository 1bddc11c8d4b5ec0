package token

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"setpoint.dev/setpoint/controller/plantest"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type edit = func(*corev1.Secret)

// secretOf is a token of the account builder that is complete.
func secretOf(edits ...edit) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "t", Namespace: "ns", Annotations: map[string]string{corev1.ServiceAccountNameKey: "builder", corev1.ServiceAccountUIDKey: "u1"},
			Labels: map[string]string{}, CreationTimestamp: metav1.NewTime(noon.Add(-3 * year)),
		},
		Data: map[string][]byte{"token": []byte("made"), "namespace": []byte("ns"), "ca.crt": []byte("root")},
	}
	for _, e := range edits {
		e(s)
	}
	return s
}

func lacks(key string) edit { return func(s *corev1.Secret) { delete(s.Data, key) } }

func has(key, value string) edit { return func(s *corev1.Secret) { s.Data[key] = []byte(value) } }

func label(key, value string) edit { return func(s *corev1.Secret) { s.Labels[key] = value } }

func deleted(s *corev1.Secret) { s.DeletionTimestamp = new(metav1.NewTime(noon)) }

func accountOf(secrets ...string) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "builder", Namespace: "ns", UID: "u1"}}
	for _, name := range secrets {
		a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: name})
	}
	return a
}

func TestPlan(t *testing.T) {
	account := accountOf()
	fresh := func(s *corev1.Secret) {
		s.Data = nil
		delete(s.Annotations, corev1.ServiceAccountUIDKey)
	}
	cases := []struct {
		name    string
		secret  *corev1.Secret
		account *corev1.ServiceAccount
	}{
		{"complete", secretOf(), account},
		{"just made", secretOf(fresh), account},
		{"without a token", secretOf(lacks("token")), account},
		{"without a namespace", secretOf(lacks("namespace")), account},
		{"without a root", secretOf(lacks("ca.crt")), account},
		{"with another root", secretOf(has("ca.crt", "old")), account},
		{"with a namespace of its own", secretOf(has("namespace", "mine")), account},
		{"of nobody", secretOf(), nil},
		{"of nobody, on its way out", secretOf(deleted), nil},
		{"incomplete, on its way out", secretOf(fresh, deleted), account},
	}
	var b strings.Builder
	for _, c := range cases {
		v := plan(c.secret, c.account, []byte("root"))
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, v)
		if v == fill {
			f := filled(c.secret, c.account, []byte("root"))
			fmt.Fprintf(&b, "token=%s namespace=%s ca.crt=%s %v\n", f.Data["token"], f.Data["namespace"], f.Data["ca.crt"], f.Annotations)
		}
		b.WriteByte('\n')
	}
	plantest.Golden(t, "plan.txt", b.String())
}

func TestClean(t *testing.T) {
	young := func(s *corev1.Secret) { s.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour)) }
	used := func(day string) edit { return label(serviceaccount.LastUsedLabelKey, day) }
	invalid := func(day string) edit { return label(serviceaccount.InvalidSinceLabelKey, day) }
	mine := accountOf("t")
	for _, c := range []struct {
		name    string
		secret  *corev1.Secret
		account *corev1.ServiceAccount
		inPods  bool
		want    verdict
	}{
		{name: "never used", secret: secretOf(), account: mine, want: mark},
		{name: "used long ago", secret: secretOf(used("2028-12-01")), account: mine, want: mark},
		{name: "used a year ago", secret: secretOf(used("2029-01-01")), account: mine, want: leave},
		{name: "used at some time", secret: secretOf(used("lately")), account: mine, want: leave},
		{name: "young", secret: secretOf(young), account: mine, want: leave},
		{name: "made by hand", secret: secretOf(), account: accountOf("other"), want: leave},
		{name: "of nobody", secret: secretOf(), want: leave},
		{name: "in a pod", secret: secretOf(), account: mine, inPods: true, want: leave},
		{name: "on its way out", secret: secretOf(deleted), account: mine, want: leave},
		{name: "marked", secret: secretOf(invalid("2029-06-01")), account: mine, want: leave},
		{name: "marked unreadably", secret: secretOf(invalid("lately")), account: mine, want: mark},
		{name: "marked long ago", secret: secretOf(invalid("2028-06-01")), account: mine, want: remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v := clean(c.secret, c.account, func() bool { return c.inPods }, noon, year); v != c.want {
				t.Errorf("%s, not %s", v, c.want)
			}
		})
	}
}

func TestMounted(t *testing.T) {
	pods := []*corev1.Pod{
		{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "a"}}}}}},
		{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "b"}}}},
	}
	for name, want := range map[string]bool{"a": true, "b": true, "c": false} {
		if got := mounted(pods, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
