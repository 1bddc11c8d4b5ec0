package fair_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/server/fair"
)

// Random schemas among those of a new control plane judge random requests as
// upstream does.
func TestSchemasMatchAsUpstream(t *testing.T) {
	k, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(8, 15))
	for i := range 30 {
		if _, err := k.FlowcontrolV1().FlowSchemas().Create(t.Context(), anySchema(random, i), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	g := fair.New(k, 600, func(string) (int64, int64, bool) { return 0, 0, false }, slog.New(slog.DiscardHandler))
	ended := make(chan error)
	go func() { ended <- g.Run(t.Context()) }()
	t.Cleanup(func() { <-ended })
	admin := &user.DefaultInfo{Name: "a", Groups: []string{"system:masters"}}
	apptest.Eventually(t, func(context.Context) string {
		if here, upstream := g.Judge(admin, &request.RequestInfo{Verb: "get", Path: "/x"}); here != "exempt" || upstream != "exempt" {
			return "the gate does not know its schemas"
		}
		return ""
	})
	judges := map[string]int{}
	for range 5000 {
		who, what := anyUser(random), anyRequest(random)
		here, upstream := g.Judge(who, what)
		if here != upstream {
			t.Fatalf("%+v asks for %+v: judged by %q, by %q upstream", who, what, here, upstream)
		}
		judges[here]++
	}
	if len(judges) < 15 {
		t.Errorf("only %d schemas have judged anything: %v", len(judges), judges)
	}
}

var (
	users    = []string{"jane", "paul", "system:node:n", "system:serviceaccount:kube-system:a", "system:serviceaccount:kube:a", "system:kube-scheduler"}
	groups   = []string{"system:nodes", "devs", "system:serviceaccounts"}
	verbs    = []string{"get", "list", "watch", "create", "update"}
	apis     = []string{"", "apps", "coordination.k8s.io"}
	things   = []string{"pods", "leases", "pods/status", "nodes", "deployments"}
	spaces   = []string{"default", "kube-system"}
	paths    = []string{"/healthz", "/healthz/*", "/api", "/x/y/*", "/x"}
	wildcard = []string{"*"}
)

// some picks one or two of the words, or all by a star.
func some(random *rand.Rand, words []string) []string {
	switch i := random.IntN(len(words)); random.IntN(3) {
	case 0:
		return wildcard
	case 1:
		return []string{words[i]}
	default:
		return []string{words[i], words[(i+1)%len(words)]}
	}
}

func one(random *rand.Rand, words []string) string { return words[random.IntN(len(words))] }

func anySubject(random *rand.Rand) flowcontrolv1.Subject {
	switch random.IntN(4) {
	case 0:
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: one(random, users)}}
	case 1:
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: one(random, groups)}}
	case 2:
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "kube", Name: "*"}}
	default:
		return flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindServiceAccount, ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: "kube-system", Name: "a"}}
	}
}

func anySchema(random *rand.Rand, i int) *flowcontrolv1.FlowSchema {
	s := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("any-%d", i)},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"}, MatchingPrecedence: int32(2 + random.IntN(50)),
		},
	}
	for range 1 + random.IntN(2) {
		s.Spec.Rules = append(s.Spec.Rules, flowcontrolv1.PolicyRulesWithSubjects{
			Subjects: []flowcontrolv1.Subject{anySubject(random)},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
				Verbs: some(random, verbs), APIGroups: some(random, apis), Resources: some(random, things), Namespaces: some(random, spaces), ClusterScope: random.IntN(2) == 0,
			}},
			NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: some(random, verbs), NonResourceURLs: some(random, paths)}},
		})
	}
	return s
}

func anyUser(random *rand.Rand) user.Info {
	return &user.DefaultInfo{Name: one(random, users), Groups: []string{one(random, groups), user.AllAuthenticated}}
}

func anyRequest(random *rand.Rand) *request.RequestInfo {
	if random.IntN(4) == 0 {
		return &request.RequestInfo{Verb: one(random, verbs), Path: one(random, []string{"/healthz", "/healthz/a", "/healthzz", "/x", "/x/y", "/x/y/", "/x/y/z", "/"})}
	}
	what := &request.RequestInfo{
		IsResourceRequest: true, Verb: one(random, verbs), APIGroup: one(random, apis), Resource: one(random, []string{"pods", "leases", "nodes"}),
	}
	what.Subresource = one(random, []string{"", "", "status"})
	what.Namespace = one(random, append([]string{""}, spaces...))
	return what
}
