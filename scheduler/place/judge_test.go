package place_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/fake"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/testing/defaults"
	upstreamcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"setpoint.dev/setpoint/scheduler/place"
)

var (
	clusters = flag.Int("clusters", 100, "random clusters that upstream is asked about, too")
	seed     = flag.Uint64("seed", 1, "where random clusters begin")
)

// TestUpstreamDecidesTheSame puts random clusters to upstream's plugins: every
// node gets the same no, by the same plugin with the same reasons, or the same
// score by every plugin.
func TestUpstreamDecidesTheSame(t *testing.T) {
	metrics.Register()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.DRAExtendedResource, false)
	feasible, refused := 0, map[string]int{}
	for i := range *clusters {
		r := rand.New(rand.NewPCG(*seed, uint64(i)))
		w := randomWorld(t, r)
		judge := newJudge(t, w)
		for _, pod := range w.pending {
			want := judge.explain(t, pod)
			e, err := place.Default("default-scheduler").Explain(w.cache.Snapshot(), newPod(t, pod))
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, n := range e.Nodes {
				got[n.Node] = describe(n)
				if n.Refused == nil {
					feasible++
				} else {
					refused[n.Refused.Filter]++
				}
			}
			if e.Refused != nil {
				refused[e.Refused.Filter]++
				for _, n := range w.nodes {
					got[n.Name] = describe(place.NodeVerdict{Refused: e.Refused})
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("cluster %d, pod %s (-upstream +setpoint):\n%s", i, pod.Name, diff)
			}
		}
	}
	t.Logf("%d nodes scored alike, and refused alike by: %v", feasible, refused)
	if feasible == 0 {
		t.Error("no node was ever feasible")
	}
}

// describe is what a node is told, in one line. That it helps if pods go is said
// only where it does.
func describe(v place.NodeVerdict) string {
	if r := v.Refused; r != nil {
		return fmt.Sprintf("%s: %s (%v)", r.Filter, strings.Join(slices.Sorted(slices.Values(r.Reasons)), ", "), r.Preemptible)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(v.Scores)) {
		if v.Scores[name] != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", name, v.Scores[name]))
		}
	}
	return strings.Join(parts, " ")
}

// judge is upstream's framework with a cluster.
type judge struct {
	framework.Framework
	nodes fwk.SharedLister
}

func newJudge(t *testing.T, w *world) *judge {
	t.Helper()
	profile := &config.KubeSchedulerProfile{SchedulerName: "default-scheduler", Plugins: defaults.PluginsV1.DeepCopy(), PluginConfig: defaults.PluginConfigsV1}
	drop := map[string]bool{"DynamicResources": true, "NodeDeclaredFeatures": true}
	enabled := &profile.Plugins.MultiPoint.Enabled
	*enabled = slices.DeleteFunc(*enabled, func(p config.Plugin) bool { return drop[p.Name] })
	lister := upstreamcache.NewSnapshot(w.placed, w.nodes)
	f, err := frameworkruntime.NewFramework(t.Context(), plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithSnapshotSharedLister(lister), frameworkruntime.WithInformerFactory(w.factory), frameworkruntime.WithClientSet(fake.NewClientset()),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(w.factory.Storage().V1().CSINodes().Lister())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return &judge{f, lister}
}

// explain says what upstream tells every node.
func (j *judge) explain(t *testing.T, pod *corev1.Pod) map[string]string {
	t.Helper()
	ctx, told := context.Background(), map[string]string{}
	state := framework.NewCycleState()
	all, err := j.nodes.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	refuse := func(node string, s *fwk.Status) {
		told[node] = describe(place.NodeVerdict{Refused: &place.Verdict{Filter: s.Plugin(), Reasons: s.Reasons(), Preemptible: s.Code() == fwk.Unschedulable}})
	}
	only, status, by := j.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		for _, n := range all {
			refuse(n.Node().Name, status)
		}
		return told
	}
	var feasible []fwk.NodeInfo
	for _, n := range all {
		name := n.Node().Name
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			refuse(name, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", slices.Sorted(maps.Keys(by)))).WithPlugin("NodeAffinity"))
			continue
		}
		if status := j.RunFilterPlugins(ctx, state, pod, n); !status.IsSuccess() {
			refuse(name, status)
			continue
		}
		feasible = append(feasible, n)
	}
	if len(feasible) == 0 {
		return told
	}
	if status := j.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	scores, status := j.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	for _, n := range scores {
		v := place.NodeVerdict{Scores: map[string]int64{}}
		for _, s := range n.Scores {
			v.Scores[s.Name] = s.Score
		}
		told[n.Name] = describe(v)
	}
	return told
}

// dice makes random objects.
type dice struct{ *rand.Rand }

func (d dice) odds(of int) bool           { return d.IntN(of) == 0 }
func (d dice) pick(from ...string) string { return from[d.IntN(len(from))] }
func (d dice) amount(most int, unit string) resource.Quantity {
	return resource.MustParse(fmt.Sprint(1+d.IntN(most)) + unit)
}

func (d dice) labels() map[string]string {
	set := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if !d.odds(3) {
			set[key] = d.pick("a", "b", "c")
		}
	}
	return set
}

func (d dice) selector() *metav1.LabelSelector {
	switch d.IntN(5) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return nil
	case 2:
		op := metav1.LabelSelectorOperator(d.pick("In", "NotIn"))
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: op, Values: []string{"a", "b"}}}}
	default:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": d.pick("a", "b", "c")}}
	}
}

func (d dice) namespace() string { return d.pick("default", "other") }

// topologies are labels that nodes may have.
var topologies = []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}

func (d dice) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprintf("node-%d", i)}}}
	if !d.odds(6) {
		n.Labels[corev1.LabelTopologyZone] = d.pick("east", "west", "mid")
	}
	if d.odds(2) {
		n.Labels["rack"] = d.pick("1", "2")
	}
	n.Spec.Unschedulable = d.odds(15)
	for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute} {
		if d.odds(10) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: d.pick("k", "l"), Value: d.pick("v", "w"), Effect: effect})
		}
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: d.amount(16, ""), corev1.ResourceMemory: d.amount(32, "Gi"), corev1.ResourcePods: d.amount(8, ""),
		corev1.ResourceEphemeralStorage: d.amount(20, "Gi"),
	}
	if d.odds(3) {
		n.Status.Allocatable["example.com/gpu"] = d.amount(4, "")
	}
	for _, image := range []string{"i:latest", "j:1"} {
		if d.odds(2) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image}, SizeBytes: d.Int64N(2 << 30)})
		}
	}
	return n
}

func (d dice) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: d.pick("i", "j:1", "k"), Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	if !d.odds(4) {
		c.Resources.Requests[corev1.ResourceCPU] = d.amount(2500, "m")
	}
	if !d.odds(4) {
		c.Resources.Requests[corev1.ResourceMemory] = d.amount(4000, "Mi")
	}
	if d.odds(5) {
		c.Resources.Requests[corev1.ResourceEphemeralStorage] = d.amount(5, "Gi")
	}
	if d.odds(8) {
		c.Resources.Requests["example.com/gpu"] = d.amount(2, "")
	}
	if d.odds(6) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80 + d.Int32N(2), HostIP: d.pick("", "10.0.0.1", "10.0.0.2"), Protocol: corev1.Protocol(d.pick("TCP", "UDP"))}}
	}
	return c
}

func (d dice) term() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{LabelSelector: d.selector(), TopologyKey: d.pick(topologies...)}
	switch d.IntN(4) {
	case 0:
		t.Namespaces = []string{d.namespace()}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": d.pick("red", "blue")}}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{}
	}
	return t
}

func (d dice) terms() []corev1.PodAffinityTerm {
	var all []corev1.PodAffinityTerm
	for d.odds(3) {
		all = append(all, d.term())
	}
	return all
}

func (d dice) weighted() []corev1.WeightedPodAffinityTerm {
	var all []corev1.WeightedPodAffinityTerm
	for d.odds(2) {
		all = append(all, corev1.WeightedPodAffinityTerm{Weight: 1 + d.Int32N(100), PodAffinityTerm: d.term()})
	}
	return all
}

func (d dice) nodeTerm() corev1.NodeSelectorTerm {
	if d.odds(5) {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{d.pick("node-0", "node-1", "gone")}}}}
	}
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: d.pick(corev1.LabelTopologyZone, "rack"), Operator: corev1.NodeSelectorOperator(d.pick("In", "NotIn")), Values: []string{"east", "1"}},
	}}
}

func (d dice) affinity() *corev1.Affinity {
	a := &corev1.Affinity{}
	if d.odds(4) {
		a.NodeAffinity = &corev1.NodeAffinity{}
		if d.odds(2) {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{d.nodeTerm(), d.nodeTerm()}}
		}
		if d.odds(2) {
			a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1 + d.Int32N(100), Preference: d.nodeTerm()}, {Weight: 7, Preference: d.nodeTerm()}}
		}
	}
	if d.odds(3) {
		a.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.terms(), PreferredDuringSchedulingIgnoredDuringExecution: d.weighted()}
	}
	if d.odds(3) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: d.terms(), PreferredDuringSchedulingIgnoredDuringExecution: d.weighted()}
	}
	return a
}

func (d dice) constraint() corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: 1 + d.Int32N(3), TopologyKey: d.pick(topologies...), LabelSelector: d.selector(),
		WhenUnsatisfiable: corev1.UnsatisfiableConstraintAction(d.pick("DoNotSchedule", "ScheduleAnyway")),
	}
	if c.WhenUnsatisfiable == corev1.DoNotSchedule && d.odds(3) {
		least := 1 + d.Int32N(4)
		c.MinDomains = &least
	}
	policy := func() *corev1.NodeInclusionPolicy {
		if d.odds(2) {
			return nil
		}
		p := corev1.NodeInclusionPolicy(d.pick("Honor", "Ignore"))
		return &p
	}
	c.NodeAffinityPolicy, c.NodeTaintsPolicy = policy(), policy()
	if d.odds(4) {
		c.MatchLabelKeys = []string{"tier"}
	}
	return c
}

func (d dice) pod(name, node string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.namespace(), UID: types.UID(name), Labels: d.labels()},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{d.container("c")}},
	}
	if d.odds(3) {
		p.Spec.Containers = append(p.Spec.Containers, d.container("d"))
	}
	if d.odds(4) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, d.container("i"))
		if d.odds(2) {
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &always
		}
	}
	if d.odds(6) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: d.amount(500, "m")}
	}
	if d.odds(8) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: d.amount(4, "")}}
	}
	if d.odds(2) {
		p.Spec.Affinity = d.affinity()
	}
	if d.odds(8) {
		p.Spec.NodeSelector = map[string]string{"rack": "1"}
	}
	for d.odds(3) {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: d.pick("k", "l", "node.kubernetes.io/unschedulable"), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(d.pick("", "NoSchedule", "NoExecute", "PreferNoSchedule"))})
	}
	for d.odds(3) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, d.constraint())
	}
	if node != "" && d.odds(6) {
		now := metav1.Now()
		p.DeletionTimestamp = &now
	}
	if d.odds(4) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", Controller: &yes}}
	}
	if d.odds(5) {
		p.Spec.Volumes = d.volumes()
	}
	return p
}

func (d dice) volumes() []corev1.Volume {
	if d.odds(3) {
		return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: d.pick("q", "r"), ReadOnly: d.odds(2)}}}}
	}
	name := d.pick("bound", "local", "alone", "later", "unbound", "missing", "second")
	return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
}

// storage is claims, volumes, classes and drivers that pods may name.
const storage = `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: later}, provisioner: d, volumeBindingMode: WaitForFirstConsumer, allowedTopologies: [{matchLabelExpressions: [{key: topology.kubernetes.io/zone, values: [east, west]}]}]}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: now}, provisioner: d, volumeBindingMode: Immediate}
---
{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: node-0}, spec: {drivers: [{name: d, nodeID: a, allocatable: {count: 1}}]}}
---
{apiVersion: storage.k8s.io/v1, kind: CSINode, metadata: {name: node-1}, spec: {drivers: [{name: d, nodeID: a, allocatable: {count: 2}}]}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: bound, labels: {topology.kubernetes.io/zone: east__mid}}, spec: {csi: {driver: d, volumeHandle: bound}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: second}, spec: {csi: {driver: d, volumeHandle: second}}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: local}, spec: {nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: rack, operator: In, values: ["1"]}]}]}}}}
---
{apiVersion: storage.k8s.io/v1, kind: VolumeAttachment, metadata: {name: at}, spec: {attacher: d, nodeName: node-1, source: {persistentVolumeName: second}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: bound, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: bound}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: second, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: second}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: local, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: local}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: alone, annotations: {pv.kubernetes.io/bind-completed: "yes"}}, spec: {volumeName: local, accessModes: [ReadWriteOncePod]}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: later}, spec: {storageClassName: later, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: unbound}, spec: {storageClassName: now}}`

// randomWorld is a cluster of a few nodes with pods on them, and pods that have
// none.
func randomWorld(t *testing.T, r *rand.Rand) *world {
	t.Helper()
	d, w := dice{r}, newWorld(t)
	fixed := []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "red"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "blue"}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "a"}}},
		&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set", Namespace: "default"}, Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "b"}}}},
	}
	for _, obj := range append(fixed, read(t, storage)...) {
		w.add(t, obj)
	}
	nodes := 1 + d.IntN(12)
	for i := range nodes {
		w.add(t, d.node(i))
	}
	for i := range d.IntN(4 * nodes) {
		w.add(t, d.pod(fmt.Sprintf("there-%d", i), fmt.Sprintf("node-%d", d.IntN(nodes))))
	}
	for i := range 6 {
		w.add(t, d.pod(fmt.Sprintf("new-%d", i), ""))
	}
	return w
}
