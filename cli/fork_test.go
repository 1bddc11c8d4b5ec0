package cli

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"setpoint.dev/setpoint/app/apptest"
)

func TestFork(t *testing.T) {
	p := apptest.Start(t)
	var out bytes.Buffer
	run := func(args ...string) error {
		c := forkCommand()
		c.SetOut(&out)
		c.SetArgs(append(args, "--kubeconfig", p.Kubeconfig))
		c.SilenceErrors, c.SilenceUsage = true, true
		return c.ExecuteContext(t.Context())
	}
	if err := run("what-if"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "context setpoint-what-if") {
		t.Errorf("it says %q", out.String())
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: p.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: "setpoint-what-if"}).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != p.URL+"/planes/what-if" {
		t.Errorf("the context is for %s", cfg.Host)
	}
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if err := run("what-if"); err == nil || !strings.Contains(err.Error(), "already exists") {
		t.Errorf("the second time: %v", err)
	}
	if err := run("x", "--context", "none"); err == nil {
		t.Error("any word is a context")
	}
}
