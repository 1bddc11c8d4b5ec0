package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// waits are what objects wait for, by the label that selects it: nobody but the
// test's own initializer ever acts.
var waits = map[string]string{
	"fails": `"failurePolicy":"Fail","timeoutSeconds":2`, "ignored": `"failurePolicy":"Ignore","timeoutSeconds":2`,
	"waited-for": `"failurePolicy":"Wait"`, "acts": `"failurePolicy":"Fail","timeoutSeconds":60`,
}

const (
	waitingMaps    = "/api/v1/namespaces/default/configmaps"
	configurations = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations"
)

// waiting is the world of objects that wait.
type waiting struct {
	*testing.T
	client *kubernetes.Clientset

	mu       sync.Mutex // guards answered
	answered map[string]int
}

// waitingMap is a config map as far as this test looks at it.
type waitingMap struct {
	Metadata struct {
		Name         string            `json:"name"`
		Labels       map[string]string `json:"labels"`
		Initializers *struct {
			Pending []struct {
				Name string `json:"name"`
			} `json:"pending"`
		} `json:"initializers"`
	} `json:"metadata"`
}

// configure has config maps wait for the initializer that their label names.
func (w *waiting) configure() {
	w.Helper()
	var all []string
	for _, label := range slices.Sorted(maps.Keys(waits)) {
		all = append(all, fmt.Sprintf(`{"name":"%s.example.org","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}],"objectSelector":{"matchLabels":{"waits":%q}},%s}`, label, label, waits[label]))
	}
	body := fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1alpha1","kind":"InitializerConfiguration","metadata":{"name":"c"},"initializers":[%s]}`, strings.Join(all, ","))
	if err := w.client.CoreV1().RESTClient().Post().AbsPath(configurations).Body([]byte(body)).SetHeader("Content-Type", "application/json").Do(w.Context()).Error(); err != nil {
		w.Fatal(err)
	}
}

// create creates objects, one after the other, until ctx ends. Each create is
// held until its object waits no more.
func (w *waiting) create(ctx context.Context, label string, round, creator int) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%d-%d-%d", label, round, creator, i)
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"waits":%q}}}`, name, label)
		code := 0
		w.client.CoreV1().RESTClient().Post().AbsPath(waitingMaps).Body([]byte(body)).SetHeader("Content-Type", "application/json").MaxRetries(0).Do(ctx).StatusCode(&code)
		w.mu.Lock()
		w.answered[name] = code
		w.mu.Unlock()
		if code == http.StatusServiceUnavailable {
			time.Sleep(100 * time.Millisecond) // nobody acts, and one finds out at a time
		}
	}
}

// act is the initializer that acts, until ctx ends.
func (w *waiting) act(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		for _, m := range w.list(ctx, "?includeUninitialized=true") {
			if i := m.Metadata.Initializers; i != nil && len(i.Pending) > 0 && i.Pending[0].Name == "acts.example.org" {
				w.complete(ctx, m.Metadata.Name)
			}
		}
	}
}

func (w *waiting) complete(ctx context.Context, name string) bool {
	return w.client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(waitingMaps, name).Body([]byte(`{"metadata":{"initializers":null}}`)).Do(ctx).Error() == nil
}

// list is what there is; nothing while the server is down.
func (w *waiting) list(ctx context.Context, query string) []waitingMap {
	raw, err := w.client.CoreV1().RESTClient().Get().RequestURI(waitingMaps + query).DoRaw(ctx)
	var list struct {
		Items []waitingMap `json:"items"`
	}
	if err != nil || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return slices.DeleteFunc(list.Items, func(m waitingMap) bool { return m.Metadata.Labels["waits"] == "" })
}

// told is how many objects the configuration's status says wait, by label.
func (w *waiting) told() map[string]int {
	raw, err := w.client.CoreV1().RESTClient().Get().AbsPath(configurations, "c").DoRaw(w.Context())
	var c struct {
		Status struct {
			Initializers []struct {
				Name    string `json:"name"`
				Pending int    `json:"pending"`
			} `json:"initializers"`
		} `json:"status"`
	}
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return nil
	}
	told := map[string]int{}
	for _, i := range c.Status.Initializers {
		if i.Pending > 0 {
			told[strings.TrimSuffix(i.Name, ".example.org")] = i.Pending
		}
	}
	return told
}

// TestKillServerWhileObjectsWait kills the server while creates are held and
// deadlines run: every object ends as its initializer's policy says, what was
// acknowledged is there, and nothing is remembered of what is gone.
func TestKillServerWhileObjectsWait(t *testing.T) {
	rounds := max(2, *serverKills/6)
	s := buildServer(t)
	s.start()
	w := &waiting{T: t, client: s.client(), answered: map[string]int{}}
	w.configure()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var acting sync.WaitGroup
	acting.Go(func() { w.act(ctx) })
	for round := range rounds {
		storm, end := context.WithCancel(t.Context())
		var creating sync.WaitGroup
		for label := range waits {
			for creator := range 4 {
				creating.Go(func() { w.create(storm, label, round, creator) })
			}
		}
		time.Sleep(time.Duration(500+rand.IntN(2500)) * time.Millisecond)
		s.kill()
		end()
		creating.Wait()
		s.start()
	}
	w.settle()
	w.judge()
	stop()
	acting.Wait()
	s.kill()
}

// settle waits until nothing waits but what waits for ever.
func (w *waiting) settle() {
	w.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left := map[string]int{}
		for _, m := range w.list(w.Context(), "?includeUninitialized=true") {
			if m.Metadata.Initializers != nil {
				left[m.Metadata.Labels["waits"]]++
			}
		}
		if told := w.told(); maps.Equal(left, told) && len(left) == 1 && left["waited-for"] > 0 {
			return
		} else if time.Now().After(end) {
			w.Fatalf("%v wait, the status says %v", left, told)
		}
	}
}

// judge compares what is there with what creators were answered, and completes
// what waits for ever.
func (w *waiting) judge() {
	w.Helper()
	there := map[string]waitingMap{}
	for _, m := range w.list(w.Context(), "?includeUninitialized=true") {
		there[m.Metadata.Name] = m
	}
	made, unsure := 0, 0
	for name, code := range w.answered {
		_, is := there[name]
		switch code {
		case http.StatusCreated:
			made++
		case 0:
			unsure++
		}
		switch {
		case code == http.StatusCreated && !is:
			w.Errorf("%s was acknowledged and is lost", name)
		case code == http.StatusCreated && (strings.HasPrefix(name, "fails") || strings.HasPrefix(name, "waited-for")):
			w.Errorf("%s was answered as if somebody had acted", name)
		case code >= http.StatusBadRequest && is:
			w.Errorf("%s was refused with %d and is there", name, code)
		}
	}
	for name, m := range there {
		label := m.Metadata.Labels["waits"]
		if label == "fails" {
			w.Errorf("%s is there although nobody has acted", name)
		}
		if label == "waited-for" && !w.complete(w.Context(), name) {
			w.Errorf("%s cannot be completed", name)
		}
	}
	if left := len(w.list(w.Context(), "?includeUninitialized=true")) - len(w.list(w.Context(), "")); left != 0 {
		w.Errorf("%d objects wait in the end", left)
	}
	w.Logf("%d creates: %d acknowledged, %d without an answer, %d objects in the end", len(w.answered), made, unsure, len(there))
}
