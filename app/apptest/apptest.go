// Package apptest starts whole control planes for tests.
package apptest

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/controller"
	"setpoint.dev/setpoint/pki"
)

// Plane is a running control plane.
type Plane struct {
	URL string
	// Config is for clients with all rights.
	Config *rest.Config
	// Kubeconfig is a file with the same.
	Kubeconfig string
	// Handler is the API without the network.
	Handler http.Handler
	// Controllers are those that run; nil when none were asked for.
	Controllers *controller.Set
	// Authority signs for whoever stands for a node.
	Authority *pki.Authority

	stop func()
}

// Start runs a control plane on loopback that keeps nothing and ends with the
// test. No controllers run: nothing happens that the test does not do.
func Start(t testing.TB) *Plane {
	t.Helper()
	return StartOn(t, app.Config{Data: app.Memory})
}

// StartWith runs a control plane as Start does, with some controllers.
func StartWith(t testing.TB, controllers ...string) *Plane {
	t.Helper()
	return StartOn(t, app.Config{Data: app.Memory, Controllers: controllers})
}

// StartOn runs a control plane as cfg says, on a port of its own. It ends with
// the test, or with Stop. Pods need service accounts where somebody makes these,
// or where cfg enables the plugin by name.
func StartOn(t testing.TB, cfg app.Config) *Plane {
	t.Helper()
	withoutAccounts(&cfg)
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	a, err := app.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &Plane{URL: a.URL(), Handler: a.Handler(), Controllers: a.Controllers(), Authority: a.Authority(), Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	if err := a.WriteKubeconfig(p.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	p.Config = &rest.Config{Host: p.URL, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAData: a.Authority().CACert, CertData: a.Authority().AdminCert, KeyData: a.Authority().AdminKey,
	}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the control plane ended with %v", err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// withoutAccounts turns the plugin off that asks for service accounts, where
// nobody makes them and nobody asks for it.
func withoutAccounts(cfg *app.Config) {
	if !makesServiceAccounts(cfg.Controllers) && !slices.Contains(cfg.Admission.Enable, serviceaccount.PluginName) {
		cfg.Admission.Disable = append(slices.Clip(cfg.Admission.Disable), serviceaccount.PluginName)
	}
}

func makesServiceAccounts(controllers []string) bool {
	return slices.ContainsFunc(controllers, func(name string) bool {
		return name == "*" || name == "serviceaccount" || name == "serviceaccount-controller"
	})
}

// Stop ends the control plane before the test ends, as SIGTERM does.
func (p *Plane) Stop() { p.stop() }
