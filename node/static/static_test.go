package static_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node/static"
)

const (
	one  = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {containers: [{name: c, image: i}]}\n"
	many = one + "---\n# nothing\n---\n" + `{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}]}`
)

// follow runs a folder and returns where its pods are told.
func follow(t *testing.T, dir string) <-chan []*corev1.Pod {
	told := make(chan []*corev1.Pod, 100)
	f := static.New(static.Config{Dir: dir, Node: "N1", Changed: func(pods []*corev1.Pod) { told <- pods }, Default: func(pod *corev1.Pod) error {
		if len(pod.Spec.Containers) == 0 {
			return errors.New("spec.containers: Required value")
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return told
}

func names(pods []*corev1.Pod) string {
	var list []string
	for _, pod := range pods {
		list = append(list, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(list, " ")
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// File times may be coarse; the size differs, or the time does.
	later := time.Now().Add(time.Duration(len(text)) * time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
}

// TestFolder changes a folder and hears of its pods.
func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	told := follow(t, dir)
	if got := <-told; len(got) != 0 {
		t.Errorf("a folder that is not there has %s", names(got))
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, ".hidden"), one)
	put(t, filepath.Join(dir, "one.yaml"), one)
	first := <-told
	if got := names(first); got != "shop/web-n1" {
		t.Fatalf("pods are %s", got)
	}
	pod := first[0]
	if !static.Is(pod) || pod.Annotations[static.Hash] != string(pod.UID) || pod.Spec.NodeName != "N1" || len(pod.Spec.Tolerations) != 1 {
		t.Errorf("the pod is %+v", pod)
	}
	put(t, filepath.Join(dir, "one.yaml"), "kind: Pod\nspec: {}\n") // wrong, so nothing changes
	put(t, filepath.Join(dir, "two.yaml"), strings.ReplaceAll(many, "web", "other"))
	second := <-told
	if got := names(second); got != "shop/web-n1 shop/other-n1 default/a-n1" || second[0].UID != pod.UID {
		t.Errorf("pods are %s", got)
	}
	if err := os.Remove(filepath.Join(dir, "two.yaml")); err != nil {
		t.Fatal(err)
	}
	if got := names(<-told); got != "shop/web-n1" {
		t.Errorf("pods are %s", got)
	}
	put(t, filepath.Join(dir, "one.yaml"), strings.Replace(one, "image: i", "image: other", 1))
	if got := <-told; names(got) != "shop/web-n1" || got[0].UID == pod.UID {
		t.Error("another manifest makes the same pod")
	}
}

func TestTheSamePodAfterARestart(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "p.json"), many)
	first, second := <-follow(t, dir), <-follow(t, dir)
	if diff := cmp.Diff(first, second); diff != "" || len(first) != 2 {
		t.Error(diff)
	}
}

func TestPlan(t *testing.T) {
	pod := func(name, annotation, hash string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{annotation: hash}}}
	}
	leaving := pod("a", static.Mirror, "1")
	leaving.DeletionTimestamp = &metav1.Time{}
	for _, test := range []struct {
		name            string
		static, seen    []*corev1.Pod
		create, deleted string
	}{
		{name: "nothing"},
		{name: "new", static: []*corev1.Pod{pod("a", static.Hash, "1")}, create: "default/a"},
		{name: "there", static: []*corev1.Pod{pod("a", static.Hash, "1")}, seen: []*corev1.Pod{pod("a", static.Mirror, "1")}},
		{name: "changed", static: []*corev1.Pod{pod("a", static.Hash, "2")}, seen: []*corev1.Pod{pod("a", static.Mirror, "1")}, deleted: "default/a"},
		{name: "gone", seen: []*corev1.Pod{pod("a", static.Mirror, "1"), pod("b", "x", "1")}, deleted: "default/a"},
		{name: "being deleted", static: []*corev1.Pod{pod("a", static.Hash, "1")}, seen: []*corev1.Pod{leaving}, deleted: "default/a"},
		{name: "a pod of somebody else's", static: []*corev1.Pod{pod("a", static.Hash, "1")}, seen: []*corev1.Pod{pod("a", "x", "1")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := static.MakePlan(test.static, test.seen)
			if names(plan.Create) != test.create || names(plan.Delete) != test.deleted {
				t.Errorf("create %s, delete %s", names(plan.Create), names(plan.Delete))
			}
		})
	}
}

// TestMirrors makes and removes mirrors as a node may.
func TestMirrors(t *testing.T) {
	plane, ctx := apptest.Start(t), t.Context()
	admin, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	self, err := client.New(client.Config{Handler: plane.Handler, UserAgent: "node", User: &user.DefaultInfo{
		Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated},
	}}).Kubernetes()
	if err != nil {
		t.Fatal(err)
	}
	node, err := self.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1", UID: "123", Annotations: map[string]string{static.Hash: "123", static.Source: "file"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	mirrors := func() []*corev1.Pod {
		t.Helper()
		list, err := admin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var pods []*corev1.Pod
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
		return pods
	}
	sync := func(declared ...*corev1.Pod) []*corev1.Pod {
		t.Helper()
		if err := static.MakePlan(declared, mirrors()).Act(ctx, self, node); err != nil {
			t.Fatal(err)
		}
		return mirrors()
	}
	first := sync(pod)
	if len(first) != 1 || !static.IsMirror(first[0]) || first[0].OwnerReferences[0].UID != node.UID {
		t.Fatalf("mirrors are %+v", first)
	}
	if again := sync(pod); again[0].UID != first[0].UID {
		t.Error("the mirror is made again")
	}
	pod.Annotations[static.Hash] = "124"
	if left := sync(pod); len(left) != 0 {
		t.Errorf("%s is left", names(left))
	}
	if made := sync(pod); len(made) != 1 || made[0].Annotations[static.Mirror] != "124" {
		t.Errorf("mirrors are %+v", made)
	}
	if left := sync(); len(left) != 0 {
		t.Errorf("%s is left", names(left))
	}
}
