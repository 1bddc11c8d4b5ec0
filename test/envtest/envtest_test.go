package envtest

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// childEnv makes this program one that starts a control plane and waits to be
// killed.
const childEnv = "SETPOINT_ENVTEST_CHILD"

func TestMain(m *testing.M) {
	if assets := os.Getenv(childEnv); assets != "" {
		os.Exit(child(assets))
	}
	flag.Parse()
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built) // only costs room
	}
	os.Exit(code)
}

// start starts a control plane that ends with the test.
func start(t testing.TB, assets string) *rest.Config {
	t.Helper()
	env := Environment(assets)
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	return cfg
}

func client(t testing.TB, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func TestItIsStill(t *testing.T) {
	k := client(t, start(t, Assets(t)))
	owner := configMap(t, k, "owner", nil)
	child := configMap(t, k, "child", owner)
	if err := k.CoreV1().ConfigMaps("default").Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.AppsV1().Deployments("default").Create(t.Context(), deployment(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // in which nothing happens
	if _, err := k.CoreV1().ConfigMaps("default").Get(t.Context(), child.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("garbage was collected: %v", err)
	}
	for _, what := range []func() (int, error){
		func() (int, error) {
			l, err := k.AppsV1().ReplicaSets("").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		func() (int, error) {
			l, err := k.CoreV1().ServiceAccounts("").List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		if n, err := what(); n != 0 || err != nil {
			t.Errorf("a controller has made %d objects, %v", n, err)
		}
	}
}

func configMap(t *testing.T, k kubernetes.Interface, name string, owner *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if owner != nil {
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	}
	m, err := k.CoreV1().ConfigMaps("default").Create(t.Context(), m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func deployment() *appsv1.Deployment {
	labels, replicas := map[string]string{"app": "web"}, int32(2)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			},
		},
	}
}

func TestControllersOnRequest(t *testing.T) {
	t.Setenv("SETPOINT_ENVTEST", "controllers")
	k := client(t, start(t, Assets(t)))
	owner := configMap(t, k, "owner", nil)
	child := configMap(t, k, "child", owner)
	if err := k.CoreV1().ConfigMaps("default").Delete(t.Context(), owner.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "garbage is collected", func() bool {
		_, err := k.CoreV1().ConfigMaps("default").Get(t.Context(), child.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "brief"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.CoreV1().Namespaces().Delete(t.Context(), "brief", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a namespace ends", func() bool {
		_, err := k.CoreV1().Namespaces().Get(t.Context(), "brief", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func TestNodesOnRequest(t *testing.T) {
	t.Setenv("SETPOINT_ENVTEST", "nodes")
	k := client(t, start(t, Assets(t)))
	web := deployment()
	if _, err := k.AppsV1().Deployments("default").Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deployment is available", func() bool {
		d, err := k.AppsV1().Deployments("default").Get(t.Context(), web.Name, metav1.GetOptions{})
		return err == nil && d.Status.AvailableReplicas == 2
	})
	background := metav1.DeletePropagationBackground
	if err := k.AppsV1().Deployments("default").Delete(t.Context(), web.Name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its pods are gone", func() bool {
		l, err := k.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(l.Items) == 0
	})
}

func TestTheAPIServerAloneIsRestarted(t *testing.T) {
	env := Environment(Assets(t))
	cfg, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	configMap(t, client(t, cfg), "kept", nil)
	if err := env.ControlPlane.APIServer.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := env.ControlPlane.APIServer.Start(); err != nil {
		t.Fatal(err)
	}
	user, err := env.ControlPlane.AddUser(envtest.User{Name: "again", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, user.Config()).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestUsersAreSubjectToRBAC(t *testing.T) {
	env := Environment(Assets(t))
	if _, err := env.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	user, err := env.AddUser(envtest.User{Name: "eve"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, user.Config()).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("eve got %v", err)
	}
	kubectl, err := user.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := kubectl.Run("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if _, err := bufio.NewReader(out).WriteTo(&text); err != nil || text.String() != "eve" {
		t.Errorf("kubectl is %q, %v", text.String(), err)
	}
}

func TestSeveralAtOnce(t *testing.T) {
	assets, program := Assets(t), Binary(t)
	envs := slices.Repeat([]*envtest.Environment{nil}, *atOnce)
	var g sync.WaitGroup
	begun := time.Now()
	for i := range envs {
		envs[i] = Environment(assets)
		g.Go(func() {
			cfg, err := envs[i].Start()
			if err != nil {
				t.Error(err)
				return
			}
			k, err := kubernetes.NewForConfig(cfg)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = k.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "same"}}, metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	var total int
	mine := dataFolders(envs)
	for _, p := range running(program, "") {
		if slices.ContainsFunc(mine, func(d string) bool { return strings.Contains(strings.Join(p.args, " "), d) }) {
			total += p.memory
		}
	}
	t.Logf("%d control planes were ready after %v and have %d MiB", *atOnce, time.Since(begun).Round(time.Millisecond), total/1024)
	if limit := 256 * *atOnce; total/1024 > limit {
		t.Errorf("that is more than %d MiB", limit)
	}
	for _, env := range envs {
		g.Go(func() {
			if err := env.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
}

// dataFolders are the folders that the processes of environments are told of.
func dataFolders(envs []*envtest.Environment) []string {
	var dirs []string
	for _, env := range envs {
		dirs = append(dirs, env.ControlPlane.Etcd.DataDir, env.ControlPlane.APIServer.CertDir)
	}
	return dirs
}

func TestNothingIsLeft(t *testing.T) {
	assets, program, temp := Assets(t), Binary(t), t.TempDir()
	t.Setenv("TMPDIR", temp)
	before := len(running(program, ""))
	for range *cycles {
		env := Environment(assets)
		cfg, err := env.Start()
		if err != nil {
			t.Fatal(err)
		}
		if err := env.Stop(); err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{cfg.Host, env.ControlPlane.Etcd.URL.Host} {
			free(t, address)
		}
	}
	if left := running(program, ""); len(left) != before {
		t.Errorf("processes are left: %v", left)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// free checks that an address can be listened on.
func free(t *testing.T, address string) {
	t.Helper()
	address = strings.TrimSuffix(strings.TrimPrefix(address, "https://"), "/")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Errorf("a port is left: %v", err)
		return
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// child starts a control plane, says where, and waits to be killed.
func child(assets string) int {
	env := Environment(assets)
	cfg, err := env.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cfg.Host, env.ControlPlane.Etcd.URL.Host, env.ControlPlane.Etcd.DataDir, env.ControlPlane.APIServer.CertDir)
	select {}
}

func TestNothingIsLeftOfATestThatIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are looked for in /proc, which only Linux has")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	assets, program := Assets(t), Binary(t)
	temp := t.TempDir() // what the dead leave lying is in here
	for _, test := range []struct {
		name  string
		after time.Duration // 0 is when the control plane is ready
	}{
		{"when it is ready", 0},
		{"at once", time.Millisecond},
		{"while etcd starts", 60 * time.Millisecond},
		{"while the API server starts", 150 * time.Millisecond},
		{"a little later", 250 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cmd := exec.CommandContext(ctx, self)
			cmd.Env = append(os.Environ(), childEnv+"="+assets, "TMPDIR="+temp)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var said string
			if test.after == 0 {
				if said, err = bufio.NewReader(out).ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				if len(running(program, temp)) != 2 {
					t.Error("there are not two processes")
				}
			} else {
				time.Sleep(test.after)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			var killed *exec.ExitError
			if err := cmd.Wait(); !errors.As(err, &killed) {
				t.Fatal(err)
			}
			eventually(t, "its processes are gone", func() bool { return len(running(program, temp)) == 0 && len(running(shell(t), temp)) == 0 })
			if said != "" {
				for _, address := range strings.Fields(said)[:2] {
					free(t, address)
				}
			}
		})
	}
}

// shell is what runs the assets before they are the program.
func shell(t *testing.T) string {
	t.Helper()
	path, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// BenchmarkStartStop measures Environment.Start and Stop together, beside the
// real ones where these are given; they take turns. Processor time is that of the
// control plane's processes; it depends less on what else the machine does.
func BenchmarkStartStop(b *testing.B) {
	assets := Assets(b)
	var ours, theirs cost
	for b.Loop() {
		ours.cycle(b, assets)
		if *peer != "" {
			theirs.cycle(b, *peer)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ours.wall), "ms")
	b.ReportMetric(median(ours.cpu), "cpu-ms")
	if *peer == "" {
		b.Log("no peer: give -peer to measure beside it")
		return
	}
	b.ReportMetric(median(theirs.wall), "peer-ms")
	b.ReportMetric(median(theirs.wall)/median(ours.wall), "ratio")
	b.ReportMetric(median(theirs.cpu), "peer-cpu-ms")
	b.ReportMetric(median(theirs.cpu)/median(ours.cpu), "cpu-ratio")
}

// cost is how long starts and stops took.
type cost struct{ wall, cpu []time.Duration }

func (c *cost) cycle(b *testing.B, assets string) {
	b.Helper()
	begun, used := time.Now(), ofChildren(b)
	env := Environment(assets)
	if _, err := env.Start(); err != nil {
		b.Fatal(err)
	}
	if err := env.Stop(); err != nil {
		b.Fatal(err)
	}
	c.wall, c.cpu = append(c.wall, time.Since(begun)), append(c.cpu, ofChildren(b)-used)
}

// ofChildren is the processor time of processes that were started and have ended.
func ofChildren(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// median of times, in milliseconds.
func median(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Microseconds()) / 1000
}
