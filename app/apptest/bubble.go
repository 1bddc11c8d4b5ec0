package apptest

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/client"
)

// Bubble is a control plane in a bubble of testing/synctest: it is reached through
// memory alone, and its time is the bubble's, which passes when all are waiting.
type Bubble struct {
	// Client is for requests with all rights.
	Client kubernetes.Interface
	// Handler is the API.
	Handler http.Handler
}

// InBubble runs a control plane as cfg says, which keeps nothing, until stop is
// called. The function of the bubble has to call it before it ends.
func InBubble(t testing.TB, cfg app.Config) (b *Bubble, stop func()) {
	t.Helper()
	silence()
	cfg.Data, cfg.Listener, cfg.Logger = app.Memory, &deaf{closed: make(chan struct{})}, slog.New(slog.DiscardHandler)
	withoutAccounts(&cfg)
	a, err := app.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	k, err := client.New(client.Config{
		Handler: a.Handler(), UserAgent: "test", User: &user.DefaultInfo{Name: "test", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}},
	}).Kubernetes()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	return &Bubble{Client: k, Handler: a.Handler()}, sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the control plane ended with %v", err)
		}
	})
}

// silence has what client-go says told to nobody. One of those who would be told
// of errors sleeps if they come too fast, by what it has last seen of a clock
// outside of the bubble: for decades.
var silence = sync.OnceFunc(func() {
	utilruntime.ErrorHandlers = nil
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
})

// Turn turns the clock, and waits until what follows from that is done.
func (b *Bubble) Turn(by time.Duration) {
	time.Sleep(by)
	synctest.Wait()
}

// Settle turns the clock second by second until nothing has been written for a
// while, and says how long that took. It gives up after a day.
func (b *Bubble) Settle(t testing.TB) time.Duration {
	t.Helper()
	begun, last, since := time.Now(), "", time.Now()
	for time.Since(begun) < 24*time.Hour {
		b.Turn(time.Second)
		now := b.revision(t)
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) >= settled {
			return since.Sub(begun)
		}
	}
	t.Fatal("it does not settle")
	return 0
}

// settled is how long nothing is written when all is done.
const settled = 10 * time.Second

// revision is that of the last change to anything.
func (b *Bubble) revision(t testing.TB) string {
	t.Helper()
	list, err := b.Client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	return list.ResourceVersion
}

// deaf is a listener that nobody can reach.
type deaf struct {
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (d *deaf) Accept() (net.Conn, error) {
	<-d.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Addr implements net.Listener.
func (*deaf) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443} }
