package bench_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"
	"time"

	"setpoint.dev/setpoint/admission/webhook/webhooktest"
)

// admitted is how many config maps are created in a round of BenchmarkAdmission.
const admitted = 2_000

const (
	admissionPath = "/apis/admissionregistration.k8s.io/v1/"
	probe         = "probe"
	// ready bounds how long a server may take to go by what configures it.
	ready = 30 * time.Second
)

// BenchmarkAdmission measures what a create costs that CEL policies decide about,
// and one that a mutating and a validating webhook on loopback are asked about,
// beside kube-apiserver and etcd when these are given.
func BenchmarkAdmission(b *testing.B) {
	all := newSides(b)
	k := configMaps
	all.each(b, http.StatusCreated, http.MethodPost, "/api/v1/namespaces", "application/json", []byte(`{"metadata":{"name":"bench"}}`))
	measure := func(name string) {
		all.measure(b, []load{{name, admitted, func(b *testing.B, s *server, round, n int) {
			b.Helper()
			together(b, n, func(i int) error {
				return s.expect(b.Context(), http.StatusCreated, http.MethodPost, k.path(), "application/json", k.manifest(fmt.Sprintf("%s-%d-%05d", name, round, i), "created"))
			})
		}}})
	}
	measure("plain")
	made := 0
	for _, n := range []int{1, 5, 20} {
		for ; made < n; made++ {
			all.each(b, http.StatusCreated, http.MethodPost, admissionPath+"validatingadmissionpolicies", "application/json", policy(made))
			all.each(b, http.StatusCreated, http.MethodPost, admissionPath+"validatingadmissionpolicybindings", "application/json",
				fmt.Appendf(nil, `{"metadata":{"name":"p%d"},"spec":{"policyName":"p%d","validationActions":["Deny"]}}`, made, made))
		}
		all.refuse(b, k, fmt.Sprintf("%s-%d", probe, made-1))
		measure(fmt.Sprintf("policies-%d", n))
	}
	for i := range made {
		all.each(b, http.StatusOK, http.MethodDelete, fmt.Sprintf("%svalidatingadmissionpolicybindings/p%d", admissionPath, i), "", nil)
		all.each(b, http.StatusOK, http.MethodDelete, fmt.Sprintf("%svalidatingadmissionpolicies/p%d", admissionPath, i), "", nil)
	}
	hooks := webhooktest.Start(b)
	all.each(b, http.StatusCreated, http.MethodPost, admissionPath+"mutatingwebhookconfigurations", "application/json", webhook(hooks, "/append/annotation=example.org/seen&value=yes", ""))
	all.each(b, http.StatusCreated, http.MethodPost, admissionPath+"validatingwebhookconfigurations", "application/json", webhook(hooks, "/allow", ""))
	all.each(b, http.StatusCreated, http.MethodPost, admissionPath+"mutatingwebhookconfigurations", "application/json", webhook(hooks, "/deny/message=no&code=403", probe))
	all.refuse(b, k, probe)
	measure("webhooks")
}

// policy is one of those that decide about config maps. It refuses the probe of
// its number.
func policy(number int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":"p%[1]d"},"spec":{"failurePolicy":"Fail",
		"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},
		"variables":[{"name":"labels","expression":"has(object.metadata.labels) ? object.metadata.labels : {}"}],
		"validations":[
			{"expression":"object.metadata.name != '%[2]s-%[1]d'","reason":"Forbidden"},
			{"expression":"'app' in variables.labels && variables.labels['app'].startsWith('b')","message":"an app"},
			{"expression":"object.data.all(k, k.startsWith('key-') && size(object.data[k]) < 100)","messageExpression":"'too large: ' + object.metadata.name"}
		]}}`, number, probe)
}

// webhook is a configuration of a webhook about config maps; about those of one
// name, when it is given.
func webhook(s *webhooktest.Server, path, name string) []byte {
	conditions := "[]"
	if name != "" {
		conditions = fmt.Sprintf(`[{"name":"one","expression":"object.metadata.name == '%s'"}]`, name)
	}
	return fmt.Appendf(nil, `{"metadata":{"generateName":"bench-"},"webhooks":[{"name":"bench.example.org","sideEffects":"None","admissionReviewVersions":["v1"],
		"clientConfig":{"url":%q,"caBundle":%q},"matchConditions":%s,
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]}]}`,
		s.URL+path, base64.StdEncoding.EncodeToString(s.CABundle), conditions)
}

// refuse waits until all servers refuse a config map of that name: then they go
// by what was written before it.
func (all sides) refuse(b *testing.B, k builtin, name string) {
	b.Helper()
	for _, s := range all {
		for end := time.Now().Add(ready); ; time.Sleep(50 * time.Millisecond) {
			code, body, err := s.do(b.Context(), http.MethodPost, k.path()+"?dryRun=All", "application/json", k.manifest(name, "probe"))
			if err != nil {
				b.Fatal(err)
			}
			if code == http.StatusForbidden {
				break
			}
			if time.Now().After(end) {
				b.Fatalf("%s is not refused: %d %.500s", name, code, body)
			}
		}
	}
}
