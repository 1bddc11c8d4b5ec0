package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// asProgram makes this program setpoint itself.
const asProgram = "SETPOINT_CLI_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// What is allowed holds for a process, so that each case has its own.
func TestPrivilegedContainers(t *testing.T) {
	yes := true
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "c", Image: "i", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}},
	}}
	for _, test := range []struct {
		name    string
		given   []string
		refused bool
	}{
		{"unless it is said", nil, true},
		{"allowed", []string{"--allow-privileged"}, false},
		{"not allowed", []string{"--allow-privileged=false"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{
				"server", "--data=memory", "--listen=127.0.0.1:0", "--output=json", "--exit-with-parent", "--controllers=", "--disable-admission-plugins=ServiceAccount",
			}, test.given...)...)
			cmd.Env = append(os.Environ(), asProgram+"=1")
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = errors.Join(cmd.Cancel(), cmd.Wait()) }() // it says that it was told to end
			var said ready
			if err := json.NewDecoder(out).Decode(&said); err != nil {
				t.Fatal(err)
			}
			cfg, err := clientcmd.BuildConfigFromFlags("", said.Kubeconfig)
			if err != nil {
				t.Fatal(err)
			}
			_, err = kubernetes.NewForConfigOrDie(cfg).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
			const why = "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy"
			if test.refused && !strings.Contains(fmt.Sprint(err), why) || !test.refused && err != nil {
				t.Errorf("got %v", err)
			}
		})
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
