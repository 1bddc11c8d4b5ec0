package fair_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/server/fair"
	"setpoint.dev/setpoint/server/route"
)

// level makes a priority level with so many of the seats of a gate that has
// twenty, and a schema that has jane's requests go there.
func level(t testing.TB, k kubernetes.Interface, shares int32, response flowcontrolv1.LimitResponse) (schema string) {
	t.Helper()
	none := int32(0)
	name := strings.ToLower(string(response.Type))
	_, err := k.FlowcontrolV1().PriorityLevelConfigurations().Create(t.Context(), &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type:    flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: &shares, LendablePercent: &none, BorrowingLimitPercent: &none, LimitResponse: response},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"*"}
	made, err := k.FlowcontrolV1().FlowSchemas().Create(t.Context(), &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: name}, MatchingPrecedence: 100,
			DistinguisherMethod: &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects:      []flowcontrolv1.Subject{{Kind: rbacv1.UserKind, User: &flowcontrolv1.UserSubject{Name: "jane"}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: all, APIGroups: all, Resources: all, Namespaces: all, ClusterScope: true}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(made.UID)
}

// visitor is a request that is let in or not, and stays until it is told.
type visitor struct {
	code   chan int
	in     chan struct{}
	leave  chan struct{}
	header http.Header
}

// ask is a request as the gate gets it.
func ask(t testing.TB, who, method, url string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	what, err := route.Resolve(r)
	if err != nil {
		t.Fatal(err)
	}
	groups := []string{user.AllAuthenticated}
	if who == "root" {
		groups = append(groups, user.SystemPrivilegedGroup)
	}
	return r.WithContext(request.WithUser(route.With(r.Context(), what), &user.DefaultInfo{Name: who, Groups: groups}))
}

// send has somebody ask at the gate. give has the request give its seat back as
// soon as it is in.
func send(t testing.TB, g *fair.Gate, who, method, url string, give bool) *visitor {
	t.Helper()
	v := &visitor{code: make(chan int, 1), in: make(chan struct{}), leave: make(chan struct{})}
	r := ask(t, who, method, url)
	w := httptest.NewRecorder()
	v.header = w.Header()
	go func() {
		ctx, cancel := context.WithTimeout(r.Context(), 4*time.Second) // a quarter of it in a queue
		defer cancel()
		place, in := g.Enter(w, r.WithContext(ctx))
		if in {
			if give {
				place.GiveBack()
				place.GiveBack() // twice is once
			}
			close(v.in)
			<-v.leave
			place.Leave()
		}
		v.code <- w.Code
	}()
	return v
}

const (
	get   = "/api/v1/namespaces/default/pods/p"
	pods  = "/api/v1/namespaces/default/pods"
	watch = pods + "?watch=true"
	exec  = pods + "/p/exec"
)

// comes says that the request is let in.
func (v *visitor) comes(t testing.TB) {
	t.Helper()
	select {
	case <-v.in:
	case code := <-v.code:
		t.Fatalf("refused with %d", code)
	case <-time.After(2 * time.Minute):
		t.Fatal("not let in")
	}
}

// goes has the request leave.
func (v *visitor) goes() {
	close(v.leave)
	<-v.code
}

// waits says that the request is neither let in nor refused.
func (v *visitor) waits(t testing.TB) {
	t.Helper()
	select {
	case <-v.in:
		t.Fatal("let in beside the first")
	case <-v.code:
		t.Fatal("refused")
	case <-time.After(100 * time.Millisecond):
	}
}

// refused says that the request is refused, and when it may come again.
func (v *visitor) refused(t testing.TB) {
	t.Helper()
	select {
	case <-v.in:
		t.Fatal("let in")
	case code := <-v.code:
		if code != http.StatusTooManyRequests || v.header.Get("Retry-After") == "" {
			t.Fatalf("%d, %v", code, v.header)
		}
	case <-time.After(2 * time.Minute):
		t.Fatal("neither let in nor refused")
	}
}

// size has many large nodes, and few of all else.
func size(resource string) (objects, average int64, known bool) {
	if resource == "nodes" {
		return 1000, 10_000, true
	}
	return 10, 1000, true
}

// gate is one with twenty seats, of which jane has so many shares of those that a
// new control plane gives out.
func gate(t testing.TB, shares int32, response flowcontrolv1.LimitResponse) *fair.Gate {
	t.Helper()
	k, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	uid := level(t, k, shares, response)
	g := fair.New(k, 20, size, slog.New(slog.DiscardHandler))
	ended := make(chan error)
	go func() { ended <- g.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ended; err != nil {
			t.Errorf("the gate ended with %v", err)
		}
	})
	apptest.Eventually(t, func(context.Context) string {
		v := send(t, g, "jane", http.MethodGet, get, false)
		v.comes(t)
		v.goes()
		if v.header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) != uid {
			return "the schema is not known"
		}
		return ""
	})
	return g
}

// again sends one request through the gate, and says what is wrong if it does not
// get in.
func again(t testing.TB, g *fair.Gate) string {
	t.Helper()
	v := send(t, g, "jane", http.MethodGet, get, false)
	select {
	case <-v.in:
		v.goes()
		return ""
	case code := <-v.code:
		return fmt.Sprintf("refused with %d", code)
	}
}

var (
	reject = flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject}
	queue  = flowcontrolv1.LimitResponse{
		Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1},
	}
)

func TestOneSeatIsForOneRequest(t *testing.T) {
	g := gate(t, 1, reject)
	for _, test := range []struct {
		name               string
		who, method, first string
		give, second       bool // is the second let in
	}{
		{name: "a get", who: "jane", method: http.MethodGet, first: get},
		{name: "a list", who: "jane", method: http.MethodGet, first: pods},
		{name: "a create", who: "jane", method: http.MethodPost, first: pods},
		{name: "a create that waits", who: "jane", method: http.MethodPost, first: pods, give: true, second: true},
		{name: "a watch that begins", who: "jane", method: http.MethodGet, first: watch},
		{name: "a watch that has begun", who: "jane", method: http.MethodGet, first: watch, give: true, second: true},
		{name: "what lasts", who: "jane", method: http.MethodPost, first: exec, second: true},
		{name: "somebody else", who: "paul", method: http.MethodGet, first: get, second: true},
		{name: "who is exempt", who: "root", method: http.MethodGet, first: get, second: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			one := send(t, g, test.who, test.method, test.first, test.give)
			one.comes(t)
			if test.second {
				// Seats that are given back are free a moment later.
				apptest.Eventually(t, func(context.Context) string { return again(t, g) })
			} else {
				send(t, g, "jane", http.MethodGet, get, false).refused(t)
			}
			one.goes()
		})
	}
}

func TestWhoIsQueuedComesNext(t *testing.T) {
	g := gate(t, 1, queue)
	one := send(t, g, "jane", http.MethodGet, get, false)
	one.comes(t)
	two := send(t, g, "jane", http.MethodGet, get, false)
	two.waits(t)
	send(t, g, "jane", http.MethodGet, get, false).refused(t) // the queue is full
	one.goes()
	two.comes(t)
	late := send(t, g, "jane", http.MethodGet, get, false)
	late.refused(t) // after a quarter of its time
	two.goes()
}

// Of twenty seats jane has ten, of which half are given without asking the
// queues. There are never more let in than she has, whichever way they come, and
// all of them again after everybody has left.
func TestTheLaneAndTheQueuesShareSeats(t *testing.T) {
	g := gate(t, 245, reject)
	for round := range 3 {
		var in []*visitor
		for len(in) < 20 {
			v := send(t, g, "jane", http.MethodGet, get, false)
			select {
			case <-v.in:
				in = append(in, v)
				continue
			case <-v.code:
			}
			break
		}
		if len(in) != 10 {
			t.Fatalf("%d let in in round %d, want 10", len(in), round)
		}
		in[0].goes() // from the lane
		next := send(t, g, "jane", http.MethodGet, get, false)
		next.comes(t)
		send(t, g, "jane", http.MethodGet, get, false).refused(t)
		next.goes()
		for _, v := range in[1:] {
			v.goes()
		}
	}
}

// Lists of nodes take two of jane's ten seats each. However many come, one who asks
// for little does not wait for them.
func TestListsDoNotStandInTheLane(t *testing.T) {
	g := gate(t, 245, flowcontrolv1.LimitResponse{
		Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 100},
	})
	const nodes = "/api/v1/nodes"
	in := []*visitor{send(t, g, "jane", http.MethodGet, nodes, false), send(t, g, "jane", http.MethodGet, nodes, false)}
	for _, v := range in {
		v.comes(t)
	}
	third := send(t, g, "jane", http.MethodGet, nodes, false)
	third.waits(t)
	for range 5 {
		v := send(t, g, "jane", http.MethodPost, pods, false)
		v.comes(t)
		in = append(in, v)
	}
	for _, v := range in {
		v.goes()
	}
	third.comes(t)
	third.goes()
}

// Whoever comes is let in or refused, and what is let in at once is never more than
// there are seats for.
func TestManyComeAtOnce(t *testing.T) {
	g := gate(t, 245, flowcontrolv1.LimitResponse{
		Type: flowcontrolv1.LimitResponseTypeQueue, Queuing: &flowcontrolv1.QueuingConfiguration{Queues: 4, HandSize: 1, QueueLengthLimit: 100},
	})
	var mu sync.Mutex
	inside, most, served := 0, 0, 0
	change := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		inside += by
		most = max(most, inside)
		served += max(by, 0)
	}
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				r := ask(t, "jane", http.MethodGet, get)
				if place, in := g.Enter(httptest.NewRecorder(), r); in {
					change(1)
					time.Sleep(time.Millisecond)
					change(-1)
					place.Leave()
				}
			}
		})
	}
	all.Wait()
	if served != 1000 || most > 10 || most < 2 {
		t.Errorf("%d served, %d at once", served, most)
	}
	if wrong := again(t, g); wrong != "" {
		t.Error(wrong)
	}
}

func TestASchemaWithoutALevel(t *testing.T) {
	cp := apptest.Start(t)
	k, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	schema := &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "lost"},
		Spec:       flowcontrolv1.FlowSchemaSpec{PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "nowhere"}, MatchingPrecedence: 7},
	}
	if _, err := k.FlowcontrolV1().FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		s, err := k.FlowcontrolV1().FlowSchemas().Get(ctx, "lost", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range s.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionTrue && c.Reason == "NotFound" {
				return ""
			}
		}
		return fmt.Sprintf("conditions: %v", s.Status.Conditions)
	})
}

// A whole server: what is told of a request, what is counted, and what can be seen
// of levels and queues.
func TestWhatIsToldOfARequest(t *testing.T) {
	cp := apptest.Start(t)
	k, err := kubernetes.NewForConfig(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	exempt, err := k.FlowcontrolV1().FlowSchemas().Get(t.Context(), "exempt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cp.Config)
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(ctx context.Context, path string) (http.Header, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, cp.Config.Host+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header, string(body)
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		header, _ := fetch(ctx, "/api/v1/namespaces")
		if got := header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID); got != string(exempt.UID) {
			return fmt.Sprintf("judged by %q, want %q", got, exempt.UID)
		}
		return ""
	})
	for path, want := range map[string][]string{
		"/metrics": {
			`apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"}`,
			`apiserver_flowcontrol_nominal_limit_seats{priority_level="global-default"} 49`,
			`apiserver_flowcontrol_request_execution_seconds_count{flow_schema="exempt",priority_level="exempt"`,
		},
		"/debug/api_priority_and_fairness/dump_priority_levels": {"PriorityLevelName,", "workload-low,", "exempt,"},
		"/debug/api_priority_and_fairness/dump_queues":          {"NextDispatchR", "global-default,"},
		"/debug/api_priority_and_fairness/dump_requests":        {"FlowSchemaName"},
	} {
		_, body := fetch(t.Context(), path)
		for _, text := range want {
			if !strings.Contains(body, text) {
				t.Errorf("%s has no %s", path, text)
			}
		}
	}
	if err := k.FlowcontrolV1().FlowSchemas().Delete(t.Context(), "catch-all", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if err := k.CoreV1().ConfigMaps("default").Delete(t.Context(), "nothing", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without the catch-all: %v", err)
	}
}
