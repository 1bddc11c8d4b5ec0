// Package storm_test puts controllers through a storm: they are killed and started
// again at random, cut off and healed, and told of changes late, while what is
// declared changes at random. When the storm is over what is there has to be what
// is declared: nothing twice, nothing left over.
//
// It runs in a bubble of testing/synctest, so hours of waiting take seconds. The
// seed is printed; -seed repeats a storm's dice, though not the order in which
// goroutines run.
package storm_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/controller"
)

var (
	seed    = flag.Uint64("seed", 0, "the first storm's dice; 0 takes new ones")
	storms  = flag.Int("storms", 2, "how many storms there are")
	changes = flag.Int("changes", 200, "how many changes a storm has")
)

// crews are controllers that live and die together.
var crews = [][]string{
	{"deployment-controller"},
	{"replicaset-controller", "statefulset-controller"},
	{"garbage-collector-controller"},
	{"namespace-controller", "serviceaccount-controller"},
}

func TestStorm(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for i := range uint64(*storms) {
		t.Run(fmt.Sprint(first+i), func(t *testing.T) {
			t.Logf("-seed %d", first+i)
			synctest.Test(t, func(t *testing.T) {
				b, stop := apptest.InBubble(t, app.Config{})
				defer stop()
				s := &storm{t: t, Bubble: b, dice: rand.New(rand.NewPCG(first+i, 0)), declared: declaration{}}
				s.blow()
			})
		})
	}
}

// declaration is what should be, by kind and name.
type declaration map[object]int32 // how many pods each has

type object struct{ kind, name string }

type storm struct {
	*apptest.Bubble
	t        *testing.T
	dice     *rand.Rand
	declared declaration
	crews    []*crew
}

// blow has the storm blow, waits until it is over, and looks.
func (s *storm) blow() {
	for _, names := range crews {
		c := &crew{t: s.t, names: names, api: late(s.Handler, s.dice.Uint64())}
		c.start()
		s.crews = append(s.crews, c)
	}
	nodes, goHome := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.runPods(nodes) })
	for range *changes {
		s.change()
		s.disturb()
		s.Turn(time.Duration(s.dice.IntN(3000)) * time.Millisecond)
	}
	for _, c := range s.crews {
		c.heal()
		c.start()
	}
	s.Turn(20 * time.Minute) // whoever has failed often waits for so long at most
	s.Settle(s.t)
	s.look()
	goHome()
	running.Wait()
	for _, c := range s.crews {
		c.kill()
	}
}

// crew is a set of controllers that can be killed.
type crew struct {
	t     *testing.T
	names []string
	api   http.Handler
	set   *controller.Set
	end   func() // nil when it is dead
}

func (c *crew) start() {
	if c.end != nil {
		return
	}
	set, err := controller.New(controller.Config{Handler: c.api, Controllers: c.names, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- set.Run(ctx) }()
	c.set = set
	c.end = func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	}
}

func (c *crew) kill() {
	if c.end != nil {
		c.end()
		c.end = nil
	}
}

func (c *crew) heal() { c.set.API().Heal() }

// disturb kills, starts, cuts and heals a crew.
func (s *storm) disturb() {
	c := s.crews[s.dice.IntN(len(s.crews))]
	switch s.dice.IntN(6) {
	case 0:
		c.kill()
	case 1, 2:
		c.start()
	case 3:
		c.set.API().Cut()
	case 4, 5:
		c.heal()
	}
}

// late is an API whose watches tell everything up to two seconds late.
func late(api http.Handler, seed uint64) http.Handler {
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 1))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			w = &lateWriter{ResponseWriter: w, wait: func() {
				mu.Lock()
				d := time.Duration(dice.IntN(2000)) * time.Millisecond
				mu.Unlock()
				select {
				case <-r.Context().Done():
				case <-time.After(d):
				}
			}}
		}
		api.ServeHTTP(w, r)
	})
}

type lateWriter struct {
	http.ResponseWriter
	wait func()
}

// Write implements io.Writer.
func (w *lateWriter) Write(b []byte) (int, error) {
	w.wait()
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (w *lateWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *lateWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// fine fails the test unless a write went well, or what it is about is not there.
func (s *storm) fine(err error) {
	s.t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatal(err)
	}
}

// change changes what is declared, or disturbs what is there.
func (s *storm) change() {
	ctx := s.t.Context()
	kind := []string{"Deployment", "Deployment", "StatefulSet", "ReplicaSet"}[s.dice.IntN(4)]
	o := object{kind, fmt.Sprintf("%c%d", kind[0]+'a'-'A', s.dice.IntN(4))}
	_, is := s.declared[o]
	switch n := s.dice.IntN(10); {
	case n == 0:
		s.removeAPod()
	case n == 1:
		s.visit()
	case !is:
		s.declare(ctx, o, s.dice.Int32N(5))
	case n == 2:
		s.remove(ctx, o)
	case n < 6:
		s.scale(ctx, o, s.dice.Int32N(6))
	default:
		s.roll(ctx, o)
	}
}

func (s *storm) declare(ctx context.Context, o object, pods int32) {
	apps, labels := s.Client.AppsV1(), map[string]string{"of": o.name}
	meta := metav1.ObjectMeta{Name: o.name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v0"}}}}
	var err error
	switch o.kind {
	case "Deployment":
		_, err = apps.Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &pods, Selector: selector, Template: template}}, metav1.CreateOptions{})
	case "StatefulSet":
		_, err = apps.StatefulSets("default").Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &pods, Selector: selector, Template: template, ServiceName: "s"}}, metav1.CreateOptions{})
	case "ReplicaSet":
		_, err = apps.ReplicaSets("default").Create(ctx, &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &pods, Selector: selector, Template: template}}, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return // it was deleted, and has not gone yet
	}
	s.fine(err)
	s.declared[o] = pods
	_, err = s.Client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "of-", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: o.kind, Name: o.name, UID: s.uid(ctx, o)}},
	}}, metav1.CreateOptions{})
	s.fine(err)
}

// get is an object as it is, nil when it is not there.
func (s *storm) get(ctx context.Context, o object) metav1.Object {
	apps := s.Client.AppsV1()
	var obj metav1.Object
	var err error
	switch o.kind {
	case "Deployment":
		obj, err = apps.Deployments("default").Get(ctx, o.name, metav1.GetOptions{})
	case "StatefulSet":
		obj, err = apps.StatefulSets("default").Get(ctx, o.name, metav1.GetOptions{})
	case "ReplicaSet":
		obj, err = apps.ReplicaSets("default").Get(ctx, o.name, metav1.GetOptions{})
	}
	s.fine(err)
	if err != nil {
		return nil
	}
	return obj
}

func (s *storm) uid(ctx context.Context, o object) types.UID { return s.get(ctx, o).GetUID() }

// remove deletes an object, now and then dependents first.
func (s *storm) remove(ctx context.Context, o object) {
	how := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}[s.dice.IntN(2)]
	options := metav1.DeleteOptions{PropagationPolicy: &how}
	apps := s.Client.AppsV1()
	switch o.kind {
	case "Deployment":
		s.fine(apps.Deployments("default").Delete(ctx, o.name, options))
	case "StatefulSet":
		s.fine(apps.StatefulSets("default").Delete(ctx, o.name, options))
	case "ReplicaSet":
		s.fine(apps.ReplicaSets("default").Delete(ctx, o.name, options))
	}
	delete(s.declared, o)
}

func (s *storm) scale(ctx context.Context, o object, pods int32) {
	s.patch(ctx, o, fmt.Sprintf(`{"spec":{"replicas":%d}}`, pods))
	s.declared[o] = pods
}

// roll changes the pods' template.
func (s *storm) roll(ctx context.Context, o object) {
	s.patch(ctx, o, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"v%d"}]}}}}`, s.dice.IntN(4)))
}

func (s *storm) patch(ctx context.Context, o object, patch string) {
	apps, how, data := s.Client.AppsV1(), types.StrategicMergePatchType, []byte(patch)
	var err error
	switch o.kind {
	case "Deployment":
		_, err = apps.Deployments("default").Patch(ctx, o.name, how, data, metav1.PatchOptions{})
	case "StatefulSet":
		_, err = apps.StatefulSets("default").Patch(ctx, o.name, how, data, metav1.PatchOptions{})
	case "ReplicaSet":
		_, err = apps.ReplicaSets("default").Patch(ctx, o.name, how, data, metav1.PatchOptions{})
	}
	s.fine(err)
}

// removeAPod deletes any pod.
func (s *storm) removeAPod() {
	if all := s.pods(); len(all) > 0 {
		s.fine(s.Client.CoreV1().Pods("default").Delete(s.t.Context(), all[s.dice.IntN(len(all))].Name, metav1.DeleteOptions{}))
	}
}

// visit makes a namespace with something in it, and has it go again.
func (s *storm) visit() {
	ctx, name := s.t.Context(), fmt.Sprintf("visit-%d", s.dice.Uint32())
	_, err := s.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.fine(err)
	_, err = s.Client.CoreV1().ConfigMaps(name).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{})
	s.fine(err)
	s.fine(s.Client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
}

func (s *storm) pods() []corev1.Pod {
	s.t.Helper()
	all, err := s.Client.CoreV1().Pods("default").List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return all.Items
}

// runPods plays the nodes: what waits runs after a moment.
func (s *storm) runPods(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(2 * time.Second):
		}
		all, err := s.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return // it is over
		}
		for _, p := range all.Items {
			if p.Status.Phase == corev1.PodPending && p.DeletionTimestamp == nil {
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
				_, _ = s.Client.CoreV1().Pods("default").UpdateStatus(ctx, &p, metav1.UpdateOptions{}) // the next time
			}
		}
	}
}

// look compares what is there with what is declared.
func (s *storm) look() {
	ctx := s.t.Context()
	there := declaration{}
	owners := map[types.UID]object{}
	for o := range s.declared {
		obj := s.get(ctx, o)
		if obj == nil {
			s.t.Errorf("%v is declared and not there", o)
			continue
		}
		owners[obj.GetUID()] = o
		there[o] = 0
	}
	s.replicaSets(owners)
	for _, p := range s.pods() {
		o, owned := owners[controllerOf(&p)]
		if !owned {
			s.t.Errorf("pod %s belongs to nobody: %v", p.Name, p.OwnerReferences)
		}
		there[o]++
	}
	for o, want := range s.declared {
		if there[o] != want {
			s.t.Errorf("%v has %d pods, not %d", o, there[o], want)
		}
	}
	s.statefulPods()
	s.leftovers(owners)
}

// replicaSets has the replica sets of deployments stand for them: one is as large
// as its deployment, and others are empty.
func (s *storm) replicaSets(owners map[types.UID]object) {
	sets, err := s.Client.AppsV1().ReplicaSets("default").List(s.t.Context(), metav1.ListOptions{})
	s.fine(err)
	sizes := map[object][]int32{}
	for _, set := range sets.Items {
		if _, itself := owners[set.UID]; itself {
			continue
		}
		o, owned := owners[controllerOf(&set)]
		if !owned {
			s.t.Errorf("replica set %s belongs to nobody: %v", set.Name, set.OwnerReferences)
			continue
		}
		owners[set.UID] = o
		if *set.Spec.Replicas > 0 {
			sizes[o] = append(sizes[o], *set.Spec.Replicas)
		}
	}
	for o, want := range s.declared {
		if o.kind == "Deployment" && want > 0 && !slices.Equal(sizes[o], []int32{want}) {
			s.t.Errorf("%v has replica sets of %v, not of %d", o, sizes[o], want)
		}
	}
}

// statefulPods are numbered from 0 on.
func (s *storm) statefulPods() {
	names := map[string]bool{}
	for _, p := range s.pods() {
		names[p.Name] = true
	}
	for o, want := range s.declared {
		for i := range want {
			if name := fmt.Sprintf("%s-%d", o.name, i); o.kind == "StatefulSet" && !names[name] {
				s.t.Errorf("there is no pod %s", name)
			}
		}
	}
}

// leftovers looks for what should have gone with others.
func (s *storm) leftovers(owners map[types.UID]object) {
	maps, err := s.Client.CoreV1().ConfigMaps("default").List(s.t.Context(), metav1.ListOptions{})
	s.fine(err)
	owned := 0
	for _, m := range maps.Items {
		if len(m.OwnerReferences) == 0 {
			continue
		}
		owned++
		if _, is := owners[m.OwnerReferences[0].UID]; !is {
			s.t.Errorf("config map %s is left of %s", m.Name, m.OwnerReferences[0].Name)
		}
	}
	if owned != len(s.declared) {
		s.t.Errorf("%d config maps of %d owners", owned, len(s.declared))
	}
	all, err := s.Client.CoreV1().Namespaces().List(s.t.Context(), metav1.ListOptions{})
	s.fine(err)
	for _, ns := range all.Items {
		if ns.DeletionTimestamp != nil {
			s.t.Errorf("namespace %s is still there", ns.Name)
		}
	}
}

// controllerOf is the UID of who controls an object.
func controllerOf(obj metav1.Object) types.UID {
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		return ref.UID
	}
	return ""
}
