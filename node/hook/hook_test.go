package hook_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"setpoint.dev/setpoint/node/hook"
)

type commands struct{ err error }

func (c commands) ExecSync(_ context.Context, id string, command []string, _ time.Duration) (stdout, stderr []byte, err error) {
	return []byte(id + " " + strings.Join(command, " ")), []byte("!"), c.err
}

var pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid"}}

func TestExec(t *testing.T) {
	call := hook.Call{Handler: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"a", "b"}}}, Pod: pod, Container: &corev1.Container{Name: "c"}, ContainerID: "id"}
	if err := hook.New(commands{}).Run(t.Context(), call); err != nil {
		t.Error(err)
	}
	err := hook.New(commands{errors.New("exit 1")}).Run(t.Context(), call)
	if want := `Exec lifecycle hook ([a b]) for Container "c" in Pod "web_default(uid)" failed - error: exit 1, message: "id a b!"`; err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := hook.Call{Handler: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}, Pod: pod, Container: &corev1.Container{Name: "c"}}
		begun := time.Now()
		if err := hook.New(commands{}).Run(t.Context(), call); err != nil || time.Since(begun) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := hook.New(commands{}).Run(ctx, call); err == nil {
			t.Error("a sleep that was cut short ended well")
		}
	})
}

func TestHTTP(t *testing.T) {
	var seen string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = fmt.Sprint(r.URL, " ", r.Host, " ", r.Header.Get("User-Agent"), " ", r.Header["X-Mine"], " ", r.Header["Accept"])
		w.WriteHeader(http.StatusTeapot)
	}))
	defer s.Close()
	at, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	c := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: int32(port)}}}
	for _, test := range []struct {
		name, want, wrong, event string
		action                   corev1.HTTPGetAction
	}{
		{
			name: "a named port, headers", want: "/a?b=c example.org kube-lifecycle/1.36 [1 2] []",
			action: corev1.HTTPGetAction{Path: "/a?b=c", Port: intstr.FromString("http"), HTTPHeaders: []corev1.HTTPHeader{
				{Name: "Host", Value: "example.org"}, {Name: "x-mine", Value: "1"}, {Name: "X-Mine", Value: "2"}, {Name: "Accept"},
			}},
		},
		{name: "HTTPS that is none", want: "/ 127.0.0.1:" + at.Port() + " kube-lifecycle/1.36 [] [*/*]", action: corev1.HTTPGetAction{Scheme: "HTTPS", Path: "/", Port: intstr.FromInt(port)}, event: "LifecycleHTTPFallback"},
		{name: "no such port", wrong: `HTTP lifecycle hook (/) for Container "c" in Pod "web_default(uid)" failed - error: invalid port number: nowhere`, action: corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("nowhere")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			seen = ""
			event := ""
			err := hook.New(commands{}).Run(t.Context(), hook.Call{
				Handler: &corev1.LifecycleHandler{HTTPGet: &test.action}, Pod: pod, Container: c, IP: "127.0.0.1", Say: func(_, reason, _ string) { event = reason },
			})
			if got := fmt.Sprint(err); err != nil && got != test.wrong || err == nil && test.wrong != "" {
				t.Errorf("got %s", got)
			}
			if seen != test.want || event != test.event {
				t.Errorf("saw %q, event %q", seen, event)
			}
		})
	}
}
