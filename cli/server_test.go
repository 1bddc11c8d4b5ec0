package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestReadyAsJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	in, out := io.Pipe()
	c := serverCommand("server")
	c.SetOut(out)
	c.SetArgs([]string{"--data=memory", "--listen=127.0.0.1:0", "--output=json", "--controllers="})
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(c.ExecuteContext(ctx), out.Close()) }()
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		t.Fatal(err, <-ended)
	}
	var said ready
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", said.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != said.URL || said.PID != os.Getpid() || said.Context != "setpoint" {
		t.Errorf("it says %s; the kubeconfig is for %s", line, cfg.Host)
	}
	if _, err := kubernetes.NewForConfigOrDie(cfg).Discovery().ServerVersion(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(said.Kubeconfig); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the kubeconfig is left: %v", err)
	}
}

func TestOutputThatIsNotKnown(t *testing.T) {
	c := serverCommand("server")
	c.SetArgs([]string{"--data=memory", "--output=xml"})
	c.SilenceErrors, c.SilenceUsage = true, true
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "neither text nor json") {
		t.Errorf("got %v", err)
	}
}
