package serviceip_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

var (
	rewrite = flag.Bool("rewrite", false, "write the answers to testdata")
	// A peer for dual.txt has the ranges 10.0.0.0/24,fd00::/108.
	peer      = flag.String("peer", "", "URL of an empty kube-apiserver to ask instead")
	peerToken = flag.String("peer-token", "", "token that may do everything there")
)

// TestStories plays the files of testdata. Each was recorded from
// kube-apiserver v1.36.3. A step is a verb and a service's name, then what is
// sent, a line, and the answer with the IPAddresses that are there then. What
// is chosen at random is numbered in the order in which it appears.
//
// Now and then a port or address that was given back is chosen again, which
// changes the numbers. So a story is told anew, up to three times, before it
// counts as another one.
func TestStories(t *testing.T) {
	for _, name := range []string{"single", "dual"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".txt")
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var diff string
			for range 3 {
				got := tell(t, name, string(want))
				if *rewrite {
					if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
					return
				}
				if diff = cmp.Diff(string(want), got); diff == "" {
					return
				}
			}
			t.Error(diff)
		})
	}
}

// tell plays a story on a control plane of its own.
func tell(t *testing.T, name, story string) string {
	t.Helper()
	client := connect(t)
	if name == "dual" {
		_, err := client.NetworkingV1().ServiceCIDRs().Patch(t.Context(), "kubernetes", types.MergePatchType,
			[]byte(`{"spec":{"cidrs":["10.0.0.0/24","fd00::/108"]}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return play(t.Context(), client, story)
}

func connect(t *testing.T) kubernetes.Interface {
	t.Helper()
	cfg := &rest.Config{Host: *peer, BearerToken: *peerToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if *peer == "" {
		cfg = apptest.Start(t).Config
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// play carries out the steps of a story and returns it with their answers.
func play(ctx context.Context, client kubernetes.Interface, story string) string {
	var told []string
	l := &labels{asked: map[string]bool{}, known: map[string]string{}}
	for step := range strings.SplitSeq(strings.TrimSpace(story), "\n\n") {
		asked, _, _ := strings.Cut(step, "\n----")
		l.note(asked)
		told = append(told, asked+"\n----\n"+l.apply(answer(ctx, client, asked)))
	}
	return strings.Join(told, "\n\n") + "\n"
}

// answer carries out one step.
func answer(ctx context.Context, client kubernetes.Interface, asked string) string {
	for strings.HasPrefix(asked, "#") {
		_, asked, _ = strings.Cut(asked, "\n")
	}
	line, body, _ := strings.Cut(asked, "\n")
	words := strings.Fields(line)
	verb, name := words[0], words[1]
	var dry []string
	if slices.Contains(words, "dry") {
		dry = []string{metav1.DryRunAll}
	}
	services := client.CoreV1().Services("default")
	svc := &corev1.Service{}
	var err error
	switch verb {
	case "create", "update":
		if err := yaml.UnmarshalStrict([]byte(body), &svc.Spec); err != nil {
			return err.Error()
		}
		if svc.Name = name; strings.HasSuffix(name, "-") {
			svc.Name, svc.GenerateName = "", name
		}
		if verb == "create" {
			svc, err = services.Create(ctx, svc, metav1.CreateOptions{DryRun: dry})
		} else {
			svc, err = services.Update(ctx, svc, metav1.UpdateOptions{DryRun: dry})
		}
	case "patch":
		patch, failed := yaml.YAMLToJSON([]byte(body))
		if failed != nil {
			return failed.Error()
		}
		svc, err = services.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":%s}`, patch), metav1.PatchOptions{DryRun: dry})
	case "delete":
		err = services.Delete(ctx, name, metav1.DeleteOptions{DryRun: dry})
	case "endpoints":
		_, err = client.CoreV1().Endpoints("default").Create(ctx, &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}) //nolint:staticcheck // they are still there
	case "get-endpoints":
		_, err = client.CoreV1().Endpoints("default").Get(ctx, name, metav1.GetOptions{})
	default:
		return "no such verb: " + verb
	}
	var b strings.Builder
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		fmt.Fprintf(&b, "%d %s\n", status.ErrStatus.Code, status.ErrStatus.Message)
	} else if err != nil {
		fmt.Fprintln(&b, err)
	} else if svc.Spec.Type != "" {
		svc.Spec.Selector = nil
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].TargetPort.IntVal = 0
		}
		shown, _ := yaml.Marshal(svc.Spec) // a service can be written
		b.Write(bytes.ReplaceAll(shown, []byte("  targetPort: 0\n"), nil))
	}
	b.WriteString(addresses(ctx, client))
	return b.String()
}

// addresses lists what is taken.
func addresses(ctx context.Context, client kubernetes.Interface) string {
	all, err := client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{LabelSelector: "ipaddress.kubernetes.io/managed-by=ipallocator.k8s.io"})
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, a := range all.Items {
		lines = append(lines, fmt.Sprintf("%s/%s %s %s", a.Spec.ParentRef.Resource, a.Spec.ParentRef.Name, a.Labels["ipaddress.kubernetes.io/ip-family"], a.Name))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// labels replace what is chosen at random.
type labels struct {
	asked map[string]bool
	known map[string]string
}

var random = regexp.MustCompile(`10\.0\.0\.\d+|fd00::[0-9a-f:]*[0-9a-f]|\b3[0-2]\d\d\d\b|gen-[0-9a-z]{5}\b`)

func (l *labels) note(asked string) {
	for _, word := range random.FindAllString(asked, -1) {
		l.asked[word] = true
	}
}

func (l *labels) apply(text string) string {
	return random.ReplaceAllStringFunc(text, func(word string) string {
		switch {
		case l.asked[word] || slices.Contains([]string{"10.0.0.0", "10.0.0.1", "30000", "32767", "32768", "32769", "32770"}, word):
			return word
		case l.known[word] == "":
			l.known[word] = fmt.Sprintf("<%d>", len(l.known)+1)
		}
		return l.known[word]
	})
}

// TestNobodySharesWhatIsAllocated: services that are created at the same time
// get addresses and ports of their own, and all come back.
func TestNobodySharesWhatIsAllocated(t *testing.T) {
	const n = 64
	plane := apptest.Start(t)
	client, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	services := client.CoreV1().Services("default")
	for round := range 2 {
		made := make([]*corev1.Service, n)
		each(n, func(i int) {
			s, err := services.Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d-%d", round, i)},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
			made[i] = s
		})
		if t.Failed() {
			return
		}
		seen := map[any]string{}
		for _, s := range made {
			for _, got := range []any{s.Spec.ClusterIP, s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort} {
				if other := seen[got]; other != "" {
					t.Errorf("%v is given to %s and %s", got, other, s.Name)
				}
				seen[got] = s.Name
			}
		}
		each(n, func(i int) {
			if err := services.Delete(t.Context(), made[i].Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		if got, want := addresses(t.Context(), client), "services/kubernetes IPv4 10.0.0.1"; got != want {
			t.Errorf("left are %s, want %s", got, want)
		}
	}
}

// TestOneWinsWhatAllWant: of many who name one address and port, one gets them.
func TestOneWinsWhatAllWant(t *testing.T) {
	const n = 64
	client, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards won
	won := 0
	each(n, func(i int) {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.0.0.5", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if i%2 == 0 {
			s.Spec.ClusterIP, s.Spec.Ports[0].NodePort = "", 30001
		}
		_, err := client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
		switch {
		case err == nil:
			mu.Lock()
			defer mu.Unlock()
			won++
		case !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "already allocated"):
			t.Error(err)
		}
	})
	if won != 2 {
		t.Errorf("%d got what they wanted; there is one address and one port", won)
	}
}

// TestAllOfARange: a range gives every address that it has, and says when there
// are no more, as often as one comes back.
func TestAllOfARange(t *testing.T) {
	client, err := kubernetes.NewForConfig(apptest.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	services := client.CoreV1().Services("default")
	make1 := func(name string) error {
		_, err := services.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		return err
	}
	each(253, func(i int) { // of 254, the kubernetes service has one
		if err := make1(fmt.Sprintf("s%d", i)); err != nil {
			t.Error(err)
		}
	})
	if err := make1("late"); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("one too many got %v", err)
	}
	if err := services.Delete(t.Context(), "s7", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := make1("late"); err != nil {
		t.Error(err)
	}
}

// TestTakenOutlivesTheServer: what is allocated is still taken after a restart.
func TestTakenOutlivesTheServer(t *testing.T) {
	cfg := app.Config{Data: t.TempDir()}
	plane := apptest.StartOn(t, cfg)
	first := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "first"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeNodePort, ClusterIP: "10.0.0.9", Ports: []corev1.ServicePort{{Port: 80, NodePort: 30009}},
	}}
	client, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services("default").Create(t.Context(), first, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	plane.Stop()
	if client, err = kubernetes.NewForConfig(apptest.StartOn(t, cfg).Config); err != nil {
		t.Fatal(err)
	}
	second := first.DeepCopy()
	second.Name = "second"
	_, err = client.CoreV1().Services("default").Create(t.Context(), second, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "provided IP is already allocated") {
		t.Errorf("the same address: %v", err)
	}
	second.Spec.ClusterIP = ""
	_, err = client.CoreV1().Services("default").Create(t.Context(), second, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "provided port is already allocated") {
		t.Errorf("the same port: %v", err)
	}
}

// each runs f for 0 to n-1 at the same time.
func each(n int, f func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { f(i) })
	}
	group.Wait()
}
