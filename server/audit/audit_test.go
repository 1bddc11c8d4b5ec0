package audit_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/server/audit"
)

// log is an audit log that is being written.
type log struct {
	*audit.Log
	t    *testing.T
	path string
	end  func() error
}

// open begins a log under a policy; "" is none.
func open(t *testing.T, policy string) *log {
	t.Helper()
	l := &log{t: t, path: filepath.Join(t.TempDir(), "audit.log")}
	cfg := audit.Config{Path: l.path, Logger: slog.New(slog.DiscardHandler)}
	if policy != "" {
		cfg.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(cfg.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n"+policy), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if l.Log, err = audit.Open(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	l.end = func() error {
		cancel()
		return <-ended
	}
	return l
}

// events ends the log and reads it.
func (l *log) events() []auditv1.Event {
	l.t.Helper()
	if err := l.end(); err != nil {
		l.t.Fatal(err)
	}
	raw, err := os.ReadFile(l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	var all []auditv1.Event
	for line := range bytes.Lines(raw) {
		var e auditv1.Event
		if err := json.Unmarshal(line, &e); err != nil {
			l.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, e)
	}
	return all
}

// exchange is a request and its answer.
type exchange struct {
	attributes authorizer.AttributesRecord
	media      string
	asked      string
	code       int
	header     http.Header
	answered   string
	long       bool
	panicked   any
}

// tell lets a log hear of an exchange.
func (l *log) tell(x exchange) {
	l.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/asked", strings.NewReader(x.asked))
	r.Header.Set("Content-Type", x.media)
	r = r.WithContext(upstream.WithAuditContext(r.Context()))
	upstream.WithAuditID(r.Context(), "id")
	x.attributes.User = &user.DefaultInfo{Name: "alice"}
	e := l.Begin(r, &x.attributes, time.Now(), x.long)
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		l.t.Fatal(err)
	}
	if x.header == nil {
		x.header = http.Header{"Content-Type": {"application/json"}}
	}
	if x.code != 0 {
		e.Started(x.code, x.header)
		e.Wrote([]byte(x.answered))
	}
	e.End(x.panicked)
}

func creation(resource, subresource string) authorizer.AttributesRecord {
	group := ""
	if resource == "tokenreviews" {
		group = "authentication.k8s.io"
	}
	return authorizer.AttributesRecord{Verb: "create", Namespace: "ns", APIGroup: group, APIVersion: "v1", Resource: resource, Subresource: subresource, ResourceRequest: true}
}

// told is what can be seen of an exchange in its last event.
func told(e auditv1.Event) (asked, answered string) {
	text := func(v interface{ MarshalJSON() ([]byte, error) }) string {
		b, _ := v.MarshalJSON() // it was read from JSON
		return string(b)
	}
	if e.RequestObject != nil {
		asked = text(e.RequestObject)
	}
	if e.ResponseObject != nil {
		answered = text(e.ResponseObject)
	}
	return asked, answered
}

func TestHowMuchIsTold(t *testing.T) {
	const (
		all     = "- level: RequestResponse\n"
		named   = "- level: RequestResponse\n  resources: [{group: \"\", resources: [secrets, configmaps, serviceaccounts/token]}, {group: authentication.k8s.io, resources: [tokenreviews]}]\n"
		request = "- level: Request\n"
	)
	for _, test := range []struct {
		name, policy    string
		exchange        exchange
		asked, answered string // what is found in either body; "" for no body
		hidden          string
	}{
		{"without a policy nothing of bodies", "", exchange{attributes: creation("pods", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "", "", ""},
		{"everything", all, exchange{attributes: creation("pods", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "in", "out", ""},
		{"requests only", request, exchange{attributes: creation("pods", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "in", "", ""},
		{"YAML", all, exchange{attributes: creation("pods", ""), media: "application/yaml", asked: "x: in", code: 201, answered: `{"x":"out"}`}, `"x":"in"`, "out", ""},
		{"a secret under a rule for all", all, exchange{attributes: creation("secrets", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "", "", ""},
		{"a config map under a rule for all", all, exchange{attributes: creation("configmaps", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "", "", ""},
		{"a secret under a rule that names it", named, exchange{attributes: creation("secrets", ""), asked: `{"x":"in"}`, code: 201, answered: `{"x":"out"}`}, "in", "out", ""},
		{"a token request", named, exchange{attributes: creation("serviceaccounts", "token"), asked: `{"spec":{"x":"in"}}`, code: 201, answered: `{"status":{"token":"s3cret","x":"out"}}`}, "in", "out", "s3cret"},
		{"a token review", named, exchange{attributes: creation("tokenreviews", ""), asked: `{"spec":{"token":"s3cret","x":"in"}}`, code: 201, answered: `{"spec":{"token":"s3cret"},"status":{"x":"out"}}`}, "in", "out", "s3cret"},
		{"a body that is no object", all, exchange{attributes: creation("pods", ""), asked: `]`, code: 400, answered: `text`}, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := open(t, test.policy)
			l.tell(test.exchange)
			events := l.events()
			if len(events) != 2 || events[0].Stage != auditv1.StageRequestReceived || events[1].Stage != auditv1.StageResponseComplete {
				t.Fatalf("%+v", events)
			}
			last := events[1]
			if last.User.Username != "alice" || last.AuditID != "id" || int(last.ResponseStatus.Code) != test.exchange.code {
				t.Errorf("%+v", last)
			}
			asked, answered := told(last)
			for _, body := range []struct{ got, want string }{{asked, test.asked}, {answered, test.answered}} {
				if (body.got == "") != (body.want == "") || !strings.Contains(body.got, body.want) {
					t.Errorf("got %s, want %q in it", body.got, body.want)
				}
				if test.hidden != "" && strings.Contains(body.got, test.hidden) {
					t.Errorf("%s is told in %s", test.hidden, body.got)
				}
			}
		})
	}
}

func TestStages(t *testing.T) {
	for _, test := range []struct {
		name     string
		exchange exchange
		want     []auditv1.Stage
		message  string
	}{
		{"a request", exchange{attributes: creation("pods", ""), code: 201}, []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StageResponseComplete}, ""},
		{"one that lasts", exchange{attributes: creation("pods", ""), code: 200, long: true}, []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StageResponseStarted, auditv1.StageResponseComplete}, ""},
		{"one that panics", exchange{attributes: creation("pods", ""), panicked: "oh"}, []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StagePanic}, "oh"},
		{"one whose client goes", exchange{attributes: creation("pods", "")}, []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StageResponseComplete}, "closed early"},
		{"one that is refused says why", exchange{attributes: creation("pods", ""), code: 403, answered: `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no way","code":403}`}, []auditv1.Stage{auditv1.StageRequestReceived, auditv1.StageResponseComplete}, "no way"},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := open(t, "")
			l.tell(test.exchange)
			var got []auditv1.Stage
			message := ""
			for _, e := range l.events() {
				got = append(got, e.Stage)
				if e.ResponseStatus != nil {
					message = e.ResponseStatus.Message
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if !strings.Contains(message, test.message) {
				t.Errorf("message %q", message)
			}
		})
	}
}

func TestNothingIsToldUnderLevelNone(t *testing.T) {
	l := open(t, "- level: None\n  users: [alice]\n- level: Metadata\n")
	l.tell(exchange{attributes: creation("pods", ""), code: 201})
	if events := l.events(); len(events) > 0 {
		t.Errorf("%+v", events)
	}
}

func TestLongAndCompressedBodies(t *testing.T) {
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	if _, err := io.WriteString(z, `{"x":"out"}`); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	l := open(t, "- level: RequestResponse\n")
	zipped := http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}
	l.tell(exchange{attributes: creation("pods", ""), code: 200, header: zipped, answered: compressed.String()})
	l.tell(exchange{attributes: creation("pods", ""), code: 200, header: zipped, answered: compressed.String()[:10]})
	long := `{"x":"` + strings.Repeat("a", 9<<20) + `"}`
	l.tell(exchange{attributes: creation("pods", ""), asked: long, code: 200, answered: long})
	events := l.events()
	if _, answered := told(events[1]); !strings.Contains(answered, "out") {
		t.Errorf("compressed: %s", answered)
	}
	if _, answered := told(events[3]); answered != "" {
		t.Errorf("cut off: %s", answered)
	}
	if asked, answered := told(events[5]); asked != "" || answered != "" || events[5].Annotations["audit.k8s.io/truncated"] != "true" {
		t.Errorf("long: %d and %d bytes, %v", len(asked), len(answered), events[5].Annotations)
	}
}

func TestAFullQueueLosesEventsAndNotRequests(t *testing.T) {
	var lost atomic.Int64
	l, err := audit.Open(audit.Config{
		Path: filepath.Join(t.TempDir(), "audit.log"), Logger: slog.New(slog.DiscardHandler), Dropped: func() { lost.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	// Nobody writes; some events are kept and the rest is lost.
	waiting := &log{Log: l, t: t}
	for i := 0; lost.Load() == 0; i++ {
		if i > 20_000 {
			t.Fatal("the queue has no bound")
		}
		waiting.tell(exchange{attributes: creation("pods", ""), code: 201})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil { // writes what waits
		t.Fatal(err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules: [{level: Loud}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]audit.Config{
		"no path":               {},
		"an absent folder":      {Path: filepath.Join(dir, "absent", "log")},
		"a folder":              {Path: dir},
		"an absent policy":      {Path: filepath.Join(dir, "log"), PolicyFile: filepath.Join(dir, "absent")},
		"a policy that is none": {Path: filepath.Join(dir, "log"), PolicyFile: bad},
	} {
		if l, err := audit.Open(cfg); err == nil || l != nil {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	if _, err := audit.Open(audit.Config{Path: filepath.Join(dir, "absent", "log")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
