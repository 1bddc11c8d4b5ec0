package webhook_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/admission/webhook/webhooktest"
	"setpoint.dev/setpoint/app/apptest"
)

const seen = "example.org/seen"

// hook is a webhook for config maps at a path of the server.
func hook(s *webhooktest.Server, name, path string, change ...func(*admissionregistrationv1.MutatingWebhook)) admissionregistrationv1.MutatingWebhook {
	address, none := s.URL+path, admissionregistrationv1.SideEffectClassNone
	h := admissionregistrationv1.MutatingWebhook{
		Name: name + ".example.org", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: s.CABundle},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
		}},
	}
	for _, c := range change {
		c(&h)
	}
	return h
}

func ignore(h *admissionregistrationv1.MutatingWebhook) {
	policy := admissionregistrationv1.Ignore
	h.FailurePolicy = &policy
}

func again(h *admissionregistrationv1.MutatingWebhook) {
	policy := admissionregistrationv1.IfNeededReinvocationPolicy
	h.ReinvocationPolicy = &policy
}

func second(h *admissionregistrationv1.MutatingWebhook) {
	timeout := int32(1)
	h.TimeoutSeconds = &timeout
}

// unseen keeps a webhook to objects that none has been asked about.
func unseen(h *admissionregistrationv1.MutatingWebhook) {
	h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "unseen", Expression: "!('" + seen + "' in object.metadata.?annotations.orValue({}))"}}
}

func old(h *admissionregistrationv1.MutatingWebhook) { h.AdmissionReviewVersions = []string{"v1beta1"} }

// validating is the same webhook as a validating one.
func validating(h admissionregistrationv1.MutatingWebhook) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{
		Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, FailurePolicy: h.FailurePolicy, SideEffects: h.SideEffects,
		TimeoutSeconds: h.TimeoutSeconds, AdmissionReviewVersions: h.AdmissionReviewVersions, MatchConditions: h.MatchConditions,
	}
}

type fixture struct {
	*testing.T
	hooks  *webhooktest.Server
	client *kubernetes.Clientset
	number int
}

func start(t *testing.T) *fixture {
	t.Helper()
	client, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, webhooktest.Start(t), client, 0}
}

// mutate replaces the mutating webhooks by hooks, validate the validating ones.
func (f *fixture) mutate(hooks ...admissionregistrationv1.MutatingWebhook) {
	f.Helper()
	f.clear()
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Webhooks: hooks}
	if _, err := f.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(f.Context(), c, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) validate(hooks ...admissionregistrationv1.ValidatingWebhook) {
	f.Helper()
	f.clear()
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Webhooks: hooks}
	if _, err := f.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(f.Context(), c, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) clear() {
	f.Helper()
	api, all := f.client.AdmissionregistrationV1(), metav1.ListOptions{}
	if err := api.MutatingWebhookConfigurations().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all); err != nil {
		f.Fatal(err)
	}
	if err := api.ValidatingWebhookConfigurations().DeleteCollection(f.Context(), metav1.DeleteOptions{}, all); err != nil {
		f.Fatal(err)
	}
}

// create creates a config map and tells what was seen of it, or why not.
func (f *fixture) create(options metav1.CreateOptions) string {
	f.Helper()
	f.number++
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%d", f.number)}, Data: map[string]string{"a": "b"}}
	made, err := f.client.CoreV1().ConfigMaps("default").Create(f.Context(), m, options)
	if err != nil {
		return strings.NewReplacer(f.hooks.URL, "HOOK", m.Name, "M").Replace(err.Error())
	}
	return "created " + made.Annotations[seen]
}

func TestMutating(t *testing.T) {
	f := start(t)
	appends := func(value string) string { return "/append/annotation=" + seen + "&value=" + value }
	say := func(body string) string { return "/say/body=" + body }
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	cases := map[string]struct {
		hooks   []admissionregistrationv1.MutatingWebhook
		options metav1.CreateOptions
		want    string
	}{
		"one":                            {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"))}, metav1.CreateOptions{}, "created a"},
		"one after the other":            {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "b", appends("b")), hook(f.hooks, "a", appends("a"))}, metav1.CreateOptions{}, "created ba"},
		"an old review":                  {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"), old)}, metav1.CreateOptions{}, "created a"},
		"asked again":                    {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"), again), hook(f.hooks, "b", appends("b"))}, metav1.CreateOptions{}, "created aba"},
		"not asked again by itself":      {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"), again)}, metav1.CreateOptions{}, "created a"},
		"dry run":                        {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"))}, dryRun, "created a"},
		"refused":                        {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/deny/message=no")}, metav1.CreateOptions{}, `admission webhook "a.example.org" denied the request: no`},
		"refused without a word":         {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/deny")}, metav1.CreateOptions{}, `admission webhook "a.example.org" denied the request without explanation`},
		"hangs":                          {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/hang", second)}, metav1.CreateOptions{}, `Internal error occurred: failed calling webhook "a.example.org": failed to call webhook: Post "HOOK/hang?timeout=1s": context deadline exceeded`},
		"hangs, ignored":                 {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/hang", second, ignore), hook(f.hooks, "b", appends("b"))}, metav1.CreateOptions{}, "created b"},
		"closes":                         {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/close")}, metav1.CreateOptions{}, `Internal error occurred: failed calling webhook "a.example.org": failed to call webhook: Post "HOOK/close?timeout=10s": `},
		"patches itself out":             {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", appends("a"), again, unseen), hook(f.hooks, "b", appends("b"))}, metav1.CreateOptions{}, "created ab"},
		"closes, ignored":                {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/close", ignore)}, metav1.CreateOptions{}, "created "},
		"ends early, ignored":            {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/cut", ignore)}, metav1.CreateOptions{}, "created "},
		"huge answer":                    {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/huge", ignore)}, metav1.CreateOptions{}, "created "},
		"nonsense":                       {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", say("nonsense"))}, metav1.CreateOptions{}, `Internal error occurred: failed calling webhook "a.example.org": failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value`},
		"nothing":                        {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", say(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`))}, metav1.CreateOptions{}, `Internal error occurred: failed calling webhook "a.example.org": received invalid webhook response: webhook response was absent`},
		"another request's answer":       {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", say(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"","allowed":true}}`), ignore)}, metav1.CreateOptions{}, "created "},
		"a patch that cannot be read":    {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op=nonsense")}, metav1.CreateOptions{}, `Internal error occurred: failed calling webhook "a.example.org": received undecodable patch in webhook response: invalid character 'o' in literal null (expecting 'u')`},
		"a patch of what is not there":   {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op="+`[{"op":"remove","path":"/data/x"}]`, ignore)}, metav1.CreateOptions{}, "Internal error occurred: error in remove for path: '/data/x': Unable to remove nonexistent key: x: missing value"},
		"a patch to something invalid":   {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op="+`[{"op":"add","path":"/data/not a key","value":"x"}]`)}, metav1.CreateOptions{}, `ConfigMap "M" is invalid: data[not a key]: Invalid value`},
		"a redirect is followed":         {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/redirect/to=/deny")}, metav1.CreateOptions{}, `admission webhook "a.example.org" denied the request without explanation`},
		"a redirect to itself, ignored":  {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/redirect/to=/redirect", ignore)}, metav1.CreateOptions{}, "created "},
		"a patch of the object's name":   {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op="+`[{"op":"replace","path":"/metadata/name","value":"other"}]`)}, metav1.CreateOptions{}, "created "},
		"a patch out of the namespace":   {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op="+`[{"op":"replace","path":"/metadata/namespace","value":"other"}]`)}, metav1.CreateOptions{}, "the namespace of the provided object does not match the namespace sent on the request"},
		"owners that cannot be are kept": {[]admissionregistrationv1.MutatingWebhook{hook(f.hooks, "a", "/patch/op="+`[{"op":"replace","path":"/metadata/managedFields","value":[{"operation":"Nonsense"}]}]`)}, metav1.CreateOptions{}, "created "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			f.mutate(c.hooks...)
			if got := f.create(c.options); !strings.HasPrefix(got, c.want) {
				t.Error(cmp.Diff(c.want, got))
			}
		})
	}
}

func TestValidating(t *testing.T) {
	f := start(t)
	cases := map[string]struct {
		hooks []admissionregistrationv1.ValidatingWebhook
		want  string
	}{
		"allowed":             {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/allow"))}, "created "},
		"refused":             {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/allow")), validating(hook(f.hooks, "b", "/deny/message=no&code=418"))}, `admission webhook "b.example.org" denied the request: no`},
		"the first to refuse": {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/deny/message=a")), validating(hook(f.hooks, "b", "/deny/message=b"))}, `admission webhook "a.example.org" denied the request: a`},
		"a patch":             {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/patch/op=[]"))}, `Internal error occurred: failed calling webhook "a.example.org": received invalid webhook response: validating webhook may not return response.patch`},
		"an error of theirs":  {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/say/status=500&body=oh"))}, `Internal error occurred: failed calling webhook "a.example.org": failed to call webhook: an error on the server ("unknown") has prevented the request from succeeding`},
		"an error, ignored":   {[]admissionregistrationv1.ValidatingWebhook{validating(hook(f.hooks, "a", "/say/status=500&body=oh", ignore))}, "created "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f.T = t
			f.validate(c.hooks...)
			if diff := cmp.Diff(c.want, f.create(metav1.CreateOptions{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Webhooks that validate are asked at once: a group of slow ones takes as long
// as the slowest.
func TestValidatingWebhooksAreAskedAtOnce(t *testing.T) {
	f := start(t)
	var hooks []admissionregistrationv1.ValidatingWebhook
	for i := range 20 {
		hooks = append(hooks, validating(hook(f.hooks, fmt.Sprintf("h%d", i), "/hang", second, ignore)))
	}
	f.validate(hooks...)
	begun := time.Now()
	if got := f.create(metav1.CreateOptions{}); got != "created " {
		t.Error(got)
	}
	if took := time.Since(begun); took >= 20*time.Second {
		t.Errorf("20 webhooks of one second each took %v, as long as one after the other", took)
	}
}

// A webhook that is a service is reached where the service is, and vouched for
// by the service's name.
func TestService(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	create := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "hooks"}}, metav1.CreateOptions{})
	create(err)
	_, err = f.client.CoreV1().Services("hooks").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	create(err)
	h := hook(f.hooks, "a", "/allow")
	path, port := "/deny", int32(f.hooks.Port()) //nolint:gosec // a port
	h.ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: f.hooks.CABundle, Service: &admissionregistrationv1.ServiceReference{Namespace: "hooks", Name: "hook", Path: &path, Port: &port}}
	f.mutate(h)
	if want, got := `admission webhook "a.example.org" denied the request without explanation`, f.create(metav1.CreateOptions{}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// From the moment that a configuration's write has returned, nothing is created
// that it is for without it, however many write.
func TestAConfigurationHoldsAtOnce(t *testing.T) {
	f := start(t)
	const writers, rounds = 16, 5
	address := hook(f.hooks, "a", "/append/annotation="+seen+"&value=a")
	for range rounds {
		f.clear()
		var holds atomic.Bool
		ctx, stop := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		for w := range writers {
			writing.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					held := holds.Load()
					m, err := f.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("s%d-", w)}}, metav1.CreateOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					if held && m.Annotations[seen] != "a" {
						t.Errorf("%s was created unseen, after the configuration was", m.Name)
						return
					}
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		f.mutate(address)
		holds.Store(true)
		time.Sleep(60 * time.Millisecond)
		stop()
		writing.Wait()
	}
}

// A webhook that cannot be reached, and so keeps away the pods that would serve
// it, is reported where people look: on its configuration, and as an event about
// it. Once it is mended, that is taken back.
func TestAWebhookThatBlocksItself(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	labels := map[string]string{"app": "hook"}
	if _, err := f.client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hook"}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h := hook(f.hooks, "a", "/allow", second)
	h.Rules[0].Resources = []string{"pods"}
	h.ClientConfig = admissionregistrationv1.WebhookClientConfig{CABundle: f.hooks.CABundle, Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "hook"}}
	f.mutate(h)
	create := func(name string, of map[string]string) {
		_, err := f.client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		if err == nil {
			t.Fatalf("pod %s was created although its webhook cannot be reached", name)
		}
	}
	said := func() string {
		c, err := f.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, "test", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Annotations["admission.setpoint.dev/blocks-itself"]
	}
	create("other", nil)
	create("hook", labels)
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(said(), "webhook a.example.org is served by service default/hook, whose pods it keeps from being created"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the configuration says %q", said())
		}
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		events, err := f.client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=MutatingWebhookConfiguration,involvedObject.name=test"})
		if err != nil {
			t.Fatal(err)
		}
		if len(events.Items) == 1 && events.Items[0].Reason == "WebhookBlocksItself" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("events: %v", events.Items)
		}
	}
	if _, err := f.client.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(ctx, "test", types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Ignore"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Minute); said() != ""; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("mended, and yet the configuration says %q", said())
		}
	}
}
