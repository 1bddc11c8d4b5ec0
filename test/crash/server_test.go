package crash_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

var serverKills = flag.Int("server-kills", 30, "how often the server is killed during a storm of requests")

// served is a setpoint process that is killed and started again on one folder
// and port.
type served struct {
	t          *testing.T
	binary     string
	dir        string
	kubeconfig string
	listen     string
	process    *exec.Cmd
}

func buildServer(t *testing.T) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, binary: filepath.Join(dir, "setpoint"), dir: filepath.Join(dir, "data"), kubeconfig: filepath.Join(dir, "kubeconfig"), listen: "127.0.0.1:0"}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.binary, "setpoint.dev/setpoint/cmd/setpoint")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return s
}

// start runs the server and waits until it says that it is ready.
func (s *served) start() {
	s.t.Helper()
	s.process = exec.CommandContext(s.t.Context(), s.binary, "server", "--data", s.dir, "--listen", s.listen, "--kubeconfig", s.kubeconfig)
	s.process.Stderr = os.Stderr
	out, err := s.process.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		s.t.Fatalf("the server did not become ready: %v", err)
	}
	_, rest, _ := strings.Cut(line, "https://")
	s.listen, _, _ = strings.Cut(rest, " ")
}

func (s *served) kill() {
	s.t.Helper()
	if err := s.process.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.process.Wait() // it was killed
}

func (s *served) client() *kubernetes.Clientset {
	s.t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg.QPS = -1
	cfg.Timeout = 5 * time.Second
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// expectation is what one client knows of its object: what was acknowledged
// last, and what was asked for since without an answer.
type expectation struct {
	acknowledged string // value; "" for gone
	asked        *string
}

// TestKillServer kills the server while clients create, update and delete
// through HTTP: what was acknowledged is there, and an informer that lives
// through it all ends with the true state.
func TestKillServer(t *testing.T) {
	rounds := *serverKills
	if testing.Short() {
		rounds = min(rounds, 5)
	}
	s := buildServer(t)
	s.start()
	client := s.client()
	informer, stop := follow(t, s)
	defer stop()
	const writers = 16
	state := make([]expectation, writers)
	acknowledged, unsure := 0, 0
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var mu sync.Mutex
		for w := range writers {
			wg.Go(func() {
				n := write(ctx, client, w, round, &state[w])
				mu.Lock()
				defer mu.Unlock()
				acknowledged += n
			})
		}
		time.Sleep(time.Duration(50+rand.IntN(250)) * time.Millisecond)
		s.kill()
		cancel()
		wg.Wait()
		s.start()
		for w := range writers {
			if state[w].asked != nil {
				unsure++
			}
			verify(t, client, w, &state[w])
		}
	}
	settle(t, client, informer)
	t.Logf("%d kills: %d writes acknowledged, %d without an answer, lost 0 unless said above", rounds, acknowledged, unsure)
	s.kill()
}

func name(writer int) string { return fmt.Sprintf("writer-%02d", writer) }

// write creates, updates and deletes one object in turn until ctx ends or the
// server is gone.
func write(ctx context.Context, client *kubernetes.Clientset, writer, round int, e *expectation) (acknowledged int) {
	maps := client.CoreV1().ConfigMaps("default")
	for i := 0; ctx.Err() == nil; i++ {
		value := fmt.Sprintf("%d-%d", round, i)
		want := value
		var err error
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name(writer)}, Data: map[string]string{"n": value}}
		switch {
		case e.acknowledged == "":
			e.asked = &want
			_, err = maps.Create(ctx, obj, metav1.CreateOptions{})
		case i%5 == 4:
			want = ""
			e.asked = &want
			err = maps.Delete(ctx, name(writer), metav1.DeleteOptions{})
		default:
			e.asked = &want
			_, err = maps.Update(ctx, obj, metav1.UpdateOptions{})
		}
		if err != nil {
			return acknowledged
		}
		e.acknowledged, e.asked = want, nil
		acknowledged++
	}
	return acknowledged
}

// verify compares an object with what its writer was told, and takes what is
// there as the truth from then on.
func verify(t *testing.T, client *kubernetes.Clientset, writer int, e *expectation) {
	t.Helper()
	got, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name(writer), metav1.GetOptions{})
	have := ""
	switch {
	case err == nil:
		have = got.Data["n"]
	case !apierrors.IsNotFound(err):
		t.Fatal(err)
	}
	if have != e.acknowledged && (e.asked == nil || have != *e.asked) {
		t.Errorf("%s holds %q; %q was acknowledged, %v was asked for since", name(writer), have, e.acknowledged, e.asked)
	}
	e.acknowledged, e.asked = have, nil
}

// follow runs an informer on config maps.
func follow(t *testing.T, s *served) (cache.SharedIndexInformer, func()) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(s.client(), 0)
	informer := factory.Core().V1().ConfigMaps().Informer()
	stop := make(chan struct{})
	factory.Start(stop)
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer never synced")
	}
	return informer, func() {
		close(stop)
		factory.Shutdown()
	}
}

// settle waits until the informer shows what a list shows.
func settle(t *testing.T, client *kubernetes.Clientset, informer cache.SharedIndexInformer) {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range list.Items {
		want[m.Namespace+"/"+m.Name] = m.ResourceVersion
	}
	deadline := time.Now().Add(time.Minute)
	for {
		differs := len(informer.GetStore().ListKeys()) != len(want)
		for _, o := range informer.GetStore().List() {
			m, ok := o.(*corev1.ConfigMap)
			differs = differs || !ok || want[m.Namespace+"/"+m.Name] != m.ResourceVersion
		}
		if !differs {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the informer shows %v, the server %v", informer.GetStore().ListKeys(), want)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}
