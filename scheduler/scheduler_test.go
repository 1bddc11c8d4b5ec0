package scheduler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/scheduler"
)

// cluster is a control plane with a scheduler, in a bubble.
type cluster struct {
	*apptest.Bubble
	t *testing.T
}

func inCluster(t *testing.T, cfg app.Scheduler, do func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg.On = true
		b, stop := apptest.InBubble(t, app.Config{Scheduler: cfg})
		defer stop()
		do(t, &cluster{b, t})
	})
}

func (c *cluster) node(name, cpu string) {
	c.t.Helper()
	n, err := c.Client.CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10")}
	n.Status.Capacity = n.Status.Allocatable
	if _, err := c.Client.CoreV1().Nodes().UpdateStatus(c.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.Turn(time.Millisecond) // events of one moment have one name
	ready(c.t, c.Client, name)
	c.Turn(100 * time.Millisecond)
}

// ready takes off the taint that new nodes have: nobody here looks whether they
// are well.
func ready(t *testing.T, k kubernetes.Interface, node string) {
	t.Helper()
	if _, err := k.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(`{"spec":{"taints":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pod makes a pod that asks for processors, and waits for what follows.
func (c *cluster) pod(name, cpu string, change func(*corev1.Pod)) {
	c.t.Helper()
	none := int64(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none, Containers: []corev1.Container{{
			Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	if change != nil {
		change(p)
	}
	if _, err := c.Client.CoreV1().Pods("default").Create(c.t.Context(), p, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.Turn(100 * time.Millisecond)
}

// state is where a pod is, or why it is nowhere.
func (c *cluster) state(name string) string {
	c.t.Helper()
	p, err := c.Client.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return "gone"
	}
	if p.Spec.NodeName != "" {
		return "on " + p.Spec.NodeName
	}
	for _, cond := range p.Status.Conditions {
		if cond.Type == corev1.PodScheduled {
			return strings.TrimSpace(fmt.Sprintf("%s %s: %s %s", cond.Status, cond.Reason, cond.Message, p.Status.NominatedNodeName))
		}
	}
	return "new"
}

func (c *cluster) expect(name, want string) {
	c.t.Helper()
	if got := c.state(name); got != want {
		c.t.Errorf("%s is %q, want %q", name, got, want)
	}
}

// events are the events about a pod.
func (c *cluster) events(name string) []string {
	c.t.Helper()
	list, err := c.Client.EventsV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, e := range list.Items {
		if e.Regarding.Name == name {
			all = append(all, fmt.Sprintf("%s %s by %s (%s): %s", e.Type, e.Reason, e.ReportingController, e.Action, e.Note))
		}
	}
	return all
}

func TestPodsGetNodes(t *testing.T) {
	inCluster(t, app.Scheduler{}, func(t *testing.T, c *cluster) {
		c.pod("early", "1", nil)
		c.expect("early", "False Unschedulable: no nodes available to schedule pods")
		c.node("a", "2")
		c.expect("early", "on a")
		c.pod("large", "2", nil)
		c.expect("large", "False Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		c.node("b", "2")
		c.expect("large", "on b")
		c.pod("late", "1500m", nil)
		if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "large", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Turn(2 * time.Second)
		c.expect("late", "on b")
		got := c.events("large")
		if want := "Warning FailedScheduling by default-scheduler (Scheduling): 0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."; got[0] != want {
			t.Errorf("the first event is %s", got[0])
		}
		if want := "Normal Scheduled by default-scheduler (Binding): Successfully assigned default/large to b"; got[len(got)-1] != want {
			t.Errorf("the last event is %s", got[len(got)-1])
		}
	})
}

func TestGatesAndOtherSchedulers(t *testing.T) {
	inCluster(t, app.Scheduler{}, func(t *testing.T, c *cluster) {
		c.node("a", "4")
		c.pod("gated", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}} })
		c.pod("foreign", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "somebody-else" })
		c.Turn(time.Minute)
		c.expect("gated", "False SchedulingGated: Scheduling is blocked due to non-empty scheduling gates")
		c.expect("foreign", "new")
		p, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "gated", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Spec.SchedulingGates = nil
		if _, err := c.Client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Turn(100 * time.Millisecond)
		c.expect("gated", "on a")
	})
}

func priority(of string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.PriorityClassName = of }
}

func TestImportantPodsHaveOthersGo(t *testing.T) {
	inCluster(t, app.Scheduler{}, func(t *testing.T, c *cluster) {
		c.node("a", "2")
		c.pod("small", "500m", nil)
		c.pod("large", "1500m", nil)
		never := corev1.PreemptNever
		if _, err := c.Client.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "polite"}, Value: 7, PreemptionPolicy: &never}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.pod("lasting", "1", priority("polite"))
		c.expect("lasting", "False Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.")
		if err := c.Client.CoreV1().Pods("default").Delete(t.Context(), "lasting", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		// A kubelet would take its time; here the victim holds on by a finalizer.
		if _, err := c.Client.CoreV1().Pods("default").Patch(t.Context(), "large", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		c.pod("critical", "1", priority("system-cluster-critical"))
		c.expect("critical", "False Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. a")
		victim, err := c.Client.CoreV1().Pods("default").Get(t.Context(), "large", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var told *corev1.PodCondition
		for i := range victim.Status.Conditions {
			if victim.Status.Conditions[i].Type == corev1.DisruptionTarget {
				told = &victim.Status.Conditions[i]
			}
		}
		if victim.DeletionTimestamp == nil || told == nil || told.Reason != "PreemptionByScheduler" || told.Message != "default-scheduler: preempting to accommodate a higher priority pod" {
			t.Errorf("the victim is %+v", victim.Status.Conditions)
		}
		// What is not as important does not take the room that will be there.
		c.pod("sneaky", "1", nil)
		if _, err := c.Client.CoreV1().Pods("default").Patch(t.Context(), "large", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Turn(15 * time.Second)
		c.expect("critical", "on a")
		c.expect("small", "on a")
		c.expect("large", "gone")
		if got := c.state("sneaky"); !strings.Contains(got, "Insufficient cpu") {
			t.Errorf("sneaky is %s", got)
		}
		if got := c.events("large"); !strings.Contains(strings.Join(got, "\n"), "Normal Preempted by default-scheduler (Preempting): Preempted by pod ") {
			t.Errorf("events are %s", got)
		}
	})
}

func TestProfilesByName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
- schedulerName: only-b
  pluginConfig:
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [b]}]}]}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	inCluster(t, app.Scheduler{ConfigFile: file}, func(t *testing.T, c *cluster) {
		c.node("a", "4")
		c.pod("special", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "only-b" })
		c.expect("special", "False Unschedulable: 0/1 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		c.pod("plain", "1", nil)
		c.expect("plain", "on a")
		c.node("b", "4")
		c.expect("special", "on b")
		if got := c.events("special"); !strings.Contains(got[len(got)-1], "Scheduled by only-b") {
			t.Errorf("events are %s", got)
		}
	})
}

func TestWhyAPodIsWhereItIs(t *testing.T) {
	inCluster(t, app.Scheduler{}, func(t *testing.T, c *cluster) {
		c.node("a", "1")
		c.node("b", "2")
		c.pod("web", "4", nil)
		ask := func(name string, who user.Info) (int, *scheduler.Placement) {
			t.Helper()
			k := client.New(client.Config{Handler: c.Handler, UserAgent: "test", User: who})
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://setpoint/debug/scheduler/default/"+name, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := k.Config().Transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close() //nolint:errcheck // it has been read
			var p scheduler.Placement
			if answer.StatusCode == http.StatusOK {
				if err := json.NewDecoder(answer.Body).Decode(&p); err != nil {
					t.Fatal(err)
				}
			}
			return answer.StatusCode, &p
		}
		admin := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
		code, p := ask("web", admin)
		if code != http.StatusOK || p.Decision == nil || len(p.Decision.Nodes) != 2 || p.Decision.Nodes[0].Refused.Filter != "NodeResourcesFit" {
			t.Errorf("%d: %+v", code, p)
		}
		c.node("c", "8")
		if code, p = ask("web", admin); code != http.StatusOK || p.Node != "c" || p.Decision != nil {
			t.Errorf("%d: %+v", code, p)
		}
		if code, _ = ask("nobody", admin); code != http.StatusNotFound {
			t.Errorf("a pod that is not there: %d", code)
		}
		if code, _ = ask("web", &user.DefaultInfo{Name: "guest", Groups: []string{user.AllAuthenticated}}); code != http.StatusForbidden {
			t.Errorf("somebody who may not: %d", code)
		}
	})
}

// TestVolumesComeWithTheNode has a claim wait for its pod's node, and the pod for
// the volume.
func TestVolumesComeWithTheNode(t *testing.T) {
	inCluster(t, app.Scheduler{}, func(t *testing.T, c *cluster) {
		c.node("a", "4")
		apply := func(path, body string) {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/yaml")
			k := client.New(client.Config{Handler: c.Handler, UserAgent: "test", User: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}})
			r.RequestURI, r.URL.Scheme, r.URL.Host = "", "http", "setpoint"
			answer, err := k.Config().Transport.RoundTrip(r)
			if err != nil || answer.StatusCode != http.StatusCreated {
				t.Fatal(answer, err)
			}
			_ = answer.Body.Close()
		}
		apply("/apis/storage.k8s.io/v1/storageclasses", `{metadata: {name: later}, provisioner: example.com/p, volumeBindingMode: WaitForFirstConsumer}`)
		apply("/api/v1/namespaces/default/persistentvolumeclaims", `{metadata: {name: data}, spec: {storageClassName: later, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`)
		c.Turn(time.Second) // the claim is known before its pod
		c.pod("db", "1", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		})
		c.Turn(5 * time.Second)
		c.expect("db", "new")
		claim, err := c.Client.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil || claim.Annotations["volume.kubernetes.io/selected-node"] != "a" {
			t.Fatalf("the claim is %v, %v", claim.Annotations, err)
		}
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		claim.Spec.VolumeName = "v"
		if _, err := c.Client.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Turn(2 * time.Second)
		c.expect("db", "on a")
	})
}

// TestManyPodsAndNodes has pods made, deleted and bound by others while they are
// placed, on a server of its own: no node gets more than it has.
func TestManyPodsAndNodes(t *testing.T) {
	plane := apptest.StartOn(t, app.Config{Data: app.Memory, Scheduler: app.Scheduler{On: true}})
	k, err := kubernetes.NewForConfig(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	const nodes, pods, room = 10, 200, 15
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse(fmt.Sprint(room))}
		if _, err := k.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ready(t, k, n.Name)
	}
	for i := range pods {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		if _, err := k.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	now := int64(0)
	for i := 0; i < pods; i += 10 {
		if err := k.CoreV1().Pods("default").Delete(t.Context(), fmt.Sprintf("p%d", i), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	apptest.Eventually(t, func(ctx context.Context) string {
		list, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		on, placed := map[string]int{}, 0
		for i := range list.Items {
			if name := list.Items[i].Spec.NodeName; name != "" {
				on[name]++
				placed++
			}
		}
		for name, count := range on {
			if count > room {
				t.Fatalf("%d pods are on %s", count, name)
			}
		}
		if placed != nodes*room {
			return fmt.Sprintf("%d pods have a node", placed)
		}
		return ""
	})
}
