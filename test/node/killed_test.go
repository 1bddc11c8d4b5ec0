package node_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/nodetest"
)

var (
	seed  = flag.Uint64("seed", 0, "what chance goes by; 0 takes another each time")
	lives = flag.Int("lives", 30, "how many pods live while others are killed")
)

// atOnce is how many pods live at the same time.
const atOnce = 9

// TestKilledAtRandom has pods live on a node that joined a server, each a process
// of its own, while at random the server, the node's agent and whoever holds the
// containers (the shims of containerd, the supervisors of the process runtime) are
// killed, three times of four only after the others are back. Every pod ends as
// declared, no container runs twice that must not, nor at the same time as its
// successor, and nothing is left.
func TestKilledAtRandom(t *testing.T) {
	for _, runtime := range []string{"containerd", "process"} {
		t.Run(runtime, func(t *testing.T) {
			if alone(t) {
				newSite(t, runtime == "containerd").test(t)
			}
		})
	}
}

// site is a server and a node, and who is killed.
type site struct {
	server, agent *daemon
	containerd    *nodetest.Runtime // nil on the process runtime
	runtime       *cri.Client       // that of containerd
	client        kubernetes.Interface
	user          *user
	work          string // a folder for each pod
	chance        *rand.Rand

	mu     sync.Mutex // guards the fields below
	killed map[string]int
	kills  map[string]int
	ends   map[string]int
	off    int // starts that were called off
}

func newSite(t *testing.T, containerd bool) *site {
	t.Helper()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("chance goes by -seed %d", *seed)
	s := &site{
		user: newUser(t, 0), work: filepath.Join(os.TempDir(), "work"), chance: rand.New(rand.NewPCG(*seed, 0)),
		killed: map[string]int{}, kills: map[string]int{}, ends: map[string]int{},
	}
	config := filepath.Join(s.user.home, "kubeconfig")
	s.server = s.user.start(t, "server", "--data", filepath.Join(s.user.home, "data"), "--kubeconfig", config)
	join := []string{"agent", "--kubeconfig", config, "--node-dir", s.user.nodeDir(), "--runtime", "process"}
	image := onceImage(t)
	if containerd {
		s.containerd = nodetest.Containerd(t)
		err := s.containerd.Load(t.Context(), image)
		if err != nil {
			t.Fatal(err)
		}
		if s.runtime, err = cri.Dial(t.Context(), s.containerd.Socket); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.runtime.Close(context.Background()) })
		join[len(join)-1] = "unix://" + s.containerd.Socket
	} else {
		s.user.archive(t, image)
	}
	eventually(t, func() string {
		cfg, err := clientcmd.BuildConfigFromFlags("", config)
		if err != nil {
			return err.Error()
		}
		cfg.QPS, cfg.Timeout = -1, 20*time.Second
		s.client, err = kubernetes.NewForConfig(cfg)
		return text(err)
	})
	s.agent = s.user.start(t, join...)
	return s
}

// onceImage has a shell, and test/node/once.
func onceImage(t *testing.T) nodetest.Image {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "once")
	c := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", exe, "./once")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("once is not built: %v: %s", err, out)
	}
	files, err := nodetest.BusyboxLayer()
	if err != nil {
		t.Fatal(err)
	}
	files.HostFile("once", 0o755, exe)
	return nodetest.Image{Names: []string{"docker.io/library/busybox:once"}, Layers: []*nodetest.Layer{files}}
}

// text is an error's, "" for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *site) test(t *testing.T) {
	if testing.Short() {
		*lives = min(*lives, 20)
	}
	s.awaitNode(t)
	before := count(t, s.user.nodeDir(), s.containerd)
	begun := time.Now()
	killing, stop := context.WithCancel(t.Context())
	var killer sync.WaitGroup
	killer.Go(func() { s.killAtRandom(killing, t) })
	defer killer.Wait()
	defer stop()
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range *lives {
		turns <- struct{}{}
		n := s.chance.Uint64()
		all.Go(func() {
			defer func() { <-turns }()
			s.live(t, i, rand.New(rand.NewPCG(n, 0)))
		})
	}
	all.Wait()
	stop()
	killer.Wait()
	t.Logf("%d pods in %v, ended %v; killed %v, starts called off %d", *lives, time.Since(begun).Round(time.Second), s.ends, s.kills, s.off)
	s.awaitNode(t)
	eventually(t, func() string { return left(count(t, s.user.nodeDir(), s.containerd), before, afterKills) })
	t.Logf("left: %s", count(t, s.user.nodeDir(), s.containerd))
}

// awaitNode waits until the node is ready.
func (s *site) awaitNode(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		_, err := s.user.try(t, "--kubeconfig", filepath.Join(s.user.home, "kubeconfig"), "wait", "--for=condition=Ready", "node/machine", "--timeout=20s")
		return text(err)
	})
}

// killAtRandom kills until ctx ends. Who was killed is started anew at once.
func (s *site) killAtRandom(ctx context.Context, t *testing.T) {
	chance := rand.New(rand.NewPCG(*seed, 1))
	for {
		if chance.IntN(4) > 0 { // else they are killed again before they are back
			s.back(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(chance.IntN(1500)) * time.Millisecond):
		}
		if !s.due() {
			continue
		}
		what := []string{"agent", "agent", "agent", "holder", "holder", "holder", "server"}[chance.IntN(7)]
		var err error
		switch what {
		case "agent":
			err = s.agent.again()
		case "server":
			err = s.server.again()
		default:
			holders := s.holders(ctx)
			if len(holders) == 0 {
				continue
			}
			victim := holders[chance.IntN(len(holders))]
			s.mu.Lock()
			s.killed[victim.pod]++
			s.mu.Unlock()
			if syscall.Kill(victim.pid, syscall.SIGKILL) != nil {
				continue // it has just ended
			}
		}
		if err != nil {
			t.Errorf("kill %s: %v", what, err)
			return
		}
		s.mu.Lock()
		s.kills[what]++
		s.mu.Unlock()
	}
}

// due says whether somebody else may be killed: on a machine so slow that nothing is
// made from one kill to the next, no pod would ever end.
func (s *site) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kills, ended := 0, 0
	for _, n := range s.kills {
		kills += n
	}
	for _, n := range s.ends {
		ended += n
	}
	return kills < atOnce+2*ended
}

// back waits until server and agent are at work again: the one knows that the other
// is there.
func (s *site) back(ctx context.Context) {
	for ctx.Err() == nil {
		lease, err := s.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, "machine", metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime != nil && lease.Spec.RenewTime.After(s.agent.began) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// again kills a process and starts it anew.
func (d *daemon) again() error {
	if err := d.kill(); err != nil {
		return err
	}
	return d.launch()
}

// holder is a process that holds containers of a pod.
type holder struct {
	pid int
	pod string
}

// holders are those of the runtime that there are now.
func (s *site) holders(ctx context.Context) []holder {
	if s.containerd == nil {
		return s.supervisors()
	}
	pods, err := s.runtime.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{})
	if err != nil {
		return nil
	}
	shims := s.shims()
	var all []holder
	for _, pod := range pods {
		if pid := shims[pod.GetId()]; pid != 0 {
			all = append(all, holder{pid, pod.GetMetadata().GetName()})
		}
	}
	return all
}

// shims are those of containerd, by the sandboxes that they hold. On a machine of
// the test's own there are no others.
func (s *site) shims() map[string]int {
	all := map[string]int{}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, _ := os.ReadFile(path) // it may have ended
		words := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if len(words) != 7 || !strings.HasPrefix(filepath.Base(words[0]), "containerd-shim") { // with more words it is on an errand
			continue
		}
		for i, word := range words {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && word == "-id" {
				all[words[i+1]] = pid
			}
		}
	}
	return all
}

// supervisors are those of the process runtime.
func (s *site) supervisors() []holder {
	var all []holder
	records, _ := filepath.Glob(filepath.Join(s.user.nodeDir(), "process/containers/*/container.json"))
	for _, path := range records {
		var record struct {
			Config struct{ Labels map[string]string }
		}
		var started struct{ Supervisor int }
		if !read(path, &record) || !read(filepath.Join(filepath.Dir(path), "started.json"), &started) {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", started.Supervisor))
		if err == nil && strings.Contains(string(line), "setpoint-container") {
			all = append(all, holder{started.Supervisor, record.Config.Labels["io.kubernetes.pod.name"]})
		}
	}
	return all
}

func read(path string, into any) bool {
	b, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(b, into) == nil
}
