package place_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/snapshot"
)

var rewrite = flag.Bool("rewrite", false, "record what is decided now")

// TestPlace places pods as the files in testdata say. A case is a line with its
// name after #, objects, and behind ---- what is decided about each pod that has
// no node, in their order. A pod that finds no room has those go who must.
func TestPlace(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for story := range strings.SplitSeq(strings.TrimSpace(string(want)), "\n\n# ") {
				name, rest, _ := strings.Cut(strings.TrimPrefix(story, "# "), "\n")
				objects, _, _ := strings.Cut(rest, "\n----")
				fmt.Fprintf(&got, "# %s\n%s\n----\n%s\n", name, objects, decide(t, objects))
			}
			text := strings.TrimSpace(got.String()) + "\n"
			if *rewrite {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("decisions differ:\n%s", diff)
			}
		})
	}
}

// world is a cluster that a test has made.
type world struct {
	factory informers.SharedInformerFactory
	objects *snapshot.Objects
	cache   *snapshot.Cache
	pending []*corev1.Pod
	nodes   []*corev1.Node
	placed  []*corev1.Pod
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{factory: informers.NewSharedInformerFactory(nil, 0)}
	var err error
	if w.objects, err = snapshot.NewObjects(w.factory); err != nil {
		t.Fatal(err)
	}
	w.cache = snapshot.NewCache(w.objects)
	return w
}

// add puts an object into the world.
func (w *world) add(t testing.TB, obj runtime.Object) {
	t.Helper()
	put := func(informer cache.SharedIndexInformer) {
		if err := informer.GetIndexer().Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	switch o := obj.(type) {
	case *corev1.Node:
		w.nodes = append(w.nodes, o)
		w.cache.SetNode(o)
	case *corev1.Pod:
		if o.Spec.NodeName == "" {
			w.pending = append(w.pending, o)
			return
		}
		w.placed = append(w.placed, o)
		w.cache.SetPod(newPod(t, o), o.Spec.NodeName)
	default:
		kinds, _, err := scheme.Scheme.ObjectKinds(obj)
		if err != nil {
			t.Fatal(err)
		}
		resources := map[string]string{
			"Namespace": "namespaces", "Service": "services", "ReplicaSet": "replicasets", "PersistentVolumeClaim": "persistentvolumeclaims",
			"PersistentVolume": "persistentvolumes", "StorageClass": "storageclasses", "CSINode": "csinodes", "PodDisruptionBudget": "poddisruptionbudgets",
			"VolumeAttachment": "volumeattachments", "CSIDriver": "csidrivers", "CSIStorageCapacity": "csistoragecapacities", "StatefulSet": "statefulsets",
		}
		informer, err := w.factory.ForResource(kinds[0].GroupVersion().WithResource(resources[kinds[0].Kind]))
		if err != nil {
			t.Fatal(err)
		}
		put(informer.Informer())
	}
}

func newPod(t testing.TB, o *corev1.Pod) *snapshot.Pod {
	t.Helper()
	p, err := snapshot.NewPod(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// read reads objects, with what is left out that does not matter: a node has 4
// processors and 8Gi for 10 pods, a pod is in namespace default.
func read(t *testing.T, text string) []runtime.Object {
	t.Helper()
	var all []runtime.Object
	for document := range strings.SplitSeq(text, "\n---\n") {
		data, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if m, is := obj.(metav1.Object); is {
			m.SetUID(types.UID(m.GetName()))
		}
		switch o := obj.(type) {
		case *corev1.Node:
			if o.Status.Allocatable == nil {
				o.Status.Allocatable = corev1.ResourceList{}
			}
			for name, amount := range map[corev1.ResourceName]string{"cpu": "4", "memory": "8Gi", "pods": "10"} {
				if _, said := o.Status.Allocatable[name]; !said {
					o.Status.Allocatable[name] = resource.MustParse(amount)
				}
			}
		case *corev1.Pod:
			if o.Namespace == "" {
				o.Namespace = "default"
			}
			if len(o.Spec.Containers) == 0 {
				o.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
			}
		case *corev1.PersistentVolumeClaim, *policyv1.PodDisruptionBudget:
			obj.(metav1.Object).SetNamespace("default")
		}
		all = append(all, obj)
	}
	return all
}

// decide says what is decided about the pods of a story.
func decide(t *testing.T, text string) string {
	t.Helper()
	w := newWorld(t)
	for _, obj := range read(t, text) {
		w.add(t, obj)
	}
	budgets, err := w.objects.Budgets.List(labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	profile := place.Default("default-scheduler")
	var b strings.Builder
	for _, o := range w.pending {
		pod := newPod(t, o)
		d, err := profile.Place(w.cache.Snapshot(), pod, place.Turn{})
		switch {
		case err != nil:
			fmt.Fprintf(&b, "%s: %v\n", o.Name, err)
		case d.Node == nil:
			p := d.Preempt(budgets, time.Unix(1<<31, 0))
			fmt.Fprintln(&b, strings.TrimSpace(o.Name+": "+d.Message()+" "+p.Message))
			for _, victim := range p.Victims {
				fmt.Fprintf(&b, "  %s goes from %s\n", victim.Object.Name, p.Node.Name())
				w.cache.RemovePod(victim.Object.UID)
			}
		default:
			fmt.Fprintf(&b, "%s -> %s\n", o.Name, d.Node.Name())
			if d.Volumes != nil {
				for _, v := range d.Volumes.Bind {
					fmt.Fprintf(&b, "  volume %s is for %s\n", v.Name, v.Spec.ClaimRef.Name)
				}
				for _, claim := range d.Volumes.Provision {
					fmt.Fprintf(&b, "  a volume is made for %s\n", claim.Name)
				}
			}
			w.cache.Assume(pod, d.Node.Name())
		}
	}
	return b.String()
}
