package evict

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// scene is a node with its pods, as testdata describe them.
type scene struct {
	Summary      statsapi.Summary `json:"summary"`
	Pods         []corev1.Pod     `json:"pods"`
	OwnImageDisk bool             `json:"ownImageDisk"`
}

func read(t *testing.T, path string) (*scene, []*corev1.Pod) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s scene
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range s.Pods {
		s.Pods[i].Name = string(s.Pods[i].UID)
		pods = append(pods, &s.Pods[i])
	}
	return &s, pods
}

func parsed(t *testing.T, hard string) []Threshold {
	t.Helper()
	all, err := Settings{Hard: hard}.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestScenes compares what is said about nodes in testdata with what was said
// before: thresholds met, who goes first, and what they are told.
func TestScenes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no scenes: %v", err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			s, pods := read(t, path)
			seen, stats := Observe(&s.Summary), ByPod(&s.Summary)
			thresholds := parsed(t, DefaultHard+",pid.available<10%")
			var b strings.Builder
			for _, met := range Met(thresholds, seen) {
				fmt.Fprintf(&b, "%s is low: %s\n", met.Signal, met.Signal.Condition())
				for _, pod := range Rank(met.Signal, pods, stats, s.OwnImageDisk) {
					message, annotations := Message(pod, stats[pod.UID], met, seen[met.Signal])
					fmt.Fprintf(&b, "  %s critical=%t: %s\n    %v\n", pod.UID, Critical(pod), message, annotations)
				}
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *rewrite {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), b.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExceeds(t *testing.T) {
	bytes := func(n uint64) *statsapi.FsStats { return &statsapi.FsStats{UsedBytes: &n} }
	for _, test := range []struct {
		name, pod string
		logs, own uint64
		volumes   map[string]uint64
		want      string
	}{
		{name: "no limits", pod: `{spec: {containers: [{name: a}], volumes: [{name: v, emptyDir: {}}]}}`, logs: 1 << 30, volumes: map[string]uint64{"v": 1 << 30}},
		{name: "a volume", pod: `{spec: {containers: [{name: a}], volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]}}`, volumes: map[string]uint64{"v": 2 << 20}, want: `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		{name: "a container", pod: `{spec: {containers: [{name: a, resources: {limits: {ephemeral-storage: 1Mi}}}, {name: b, resources: {limits: {ephemeral-storage: 9Mi}}}]}}`, logs: 1 << 20, own: 1 << 20, want: `Container a exceeded its local ephemeral storage limit "1Mi". `},
		{name: "the pod", pod: `{spec: {containers: [{name: a, resources: {limits: {ephemeral-storage: 1Mi}}}], volumes: [{name: v, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]}}`, volumes: map[string]uint64{"v": 2 << 20, "m": 1 << 30}, want: `Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. `},
		{name: "just fits", pod: `{spec: {containers: [{name: a, resources: {limits: {ephemeral-storage: 2Mi}}}]}}`, logs: 1 << 20, own: 1 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			var pod corev1.Pod
			if err := yaml.UnmarshalStrict([]byte(test.pod), &pod); err != nil {
				t.Fatal(err)
			}
			s := &statsapi.PodStats{Containers: []statsapi.ContainerStats{{Name: "a", Logs: bytes(test.logs), Rootfs: bytes(test.own)}}}
			for name, used := range test.volumes {
				s.VolumeStats = append(s.VolumeStats, statsapi.VolumeStats{Name: name, FsStats: *bytes(used)})
			}
			if diff := cmp.Diff(test.want, Exceeds(&pod, s, false)); diff != "" {
				t.Error(diff)
			}
			if limited(&pod) != (test.name != "no limits") {
				t.Error("whether it has limits is told wrong")
			}
		})
	}
}

// node is one whose memory and disk a test sets.
type node struct {
	memory, disk uint64
	pods         []*corev1.Pod
	done         []string
}

func (n *node) summary(context.Context) (*statsapi.Summary, error) {
	used, all, more := uint64(1<<30), uint64(1000), uint64(1<<20)
	s := &statsapi.Summary{Node: statsapi.NodeStats{
		Memory: &statsapi.MemoryStats{AvailableBytes: &n.memory, WorkingSetBytes: &used}, Fs: &statsapi.FsStats{AvailableBytes: &n.disk, CapacityBytes: &all},
	}}
	for _, pod := range n.pods {
		s.Pods = append(s.Pods, statsapi.PodStats{PodRef: statsapi.PodReference{UID: string(pod.UID)}, Memory: &statsapi.MemoryStats{WorkingSetBytes: &more}})
	}
	return s, nil
}

// TestRounds lets a node run short and recover, by its clock.
func TestRounds(t *testing.T) {
	pod := func(uid string, priority int32) *corev1.Pod {
		p := &corev1.Pod{}
		p.UID, p.Name, p.Spec.Priority = types.UID(uid), uid, &priority
		return p
	}
	n := &node{memory: 1 << 30, disk: 500, pods: []*corev1.Pod{pod("critical", systemCritical), pod("high", 10), pod("low", 1)}}
	changed := 0
	m := New(Config{
		Summary: n.summary, Pods: func() []*corev1.Pod { return n.pods }, Changed: func() { changed++ },
		Thresholds: append(parsed(t, DefaultHard), Threshold{Signal: Memory, Quantity: 200 << 20, Grace: time.Minute}),
		Reclaim: func(context.Context) error {
			n.done = append(n.done, "reclaim")
			n.disk += 60
			return nil
		},
		Evict: func(_ context.Context, p *corev1.Pod, e Eviction) error {
			n.done = append(n.done, fmt.Sprintf("evict %s in %s for %s", p.UID, e.Grace, e.Condition.Reason))
			n.pods = slices.DeleteFunc(slices.Clone(n.pods), func(o *corev1.Pod) bool { return o == p })
			return nil
		},
	})
	begin := time.Now()
	at := func(after time.Duration, memory, disk uint64) {
		t.Helper()
		n.memory, n.disk = memory, disk
		if err := m.round(t.Context(), begin.Add(after)); err != nil {
			t.Fatal(err)
		}
	}
	at(0, 1<<30, 500)
	if no := m.Admit(pod("new", 0)); no != nil {
		t.Error(no.Message)
	}
	at(10*time.Second, 150<<20, 500) // for a minute this is well
	if len(n.done) != 0 || !m.Short(corev1.NodeMemoryPressure) || changed != 1 {
		t.Errorf("done is %v, changed %d times", n.done, changed)
	}
	if no := m.Admit(pod("new", 0)); no == nil || no.Reason != "Evicted" || no.Message != "The node had condition: [MemoryPressure]. " {
		t.Errorf("refused with %v", no)
	}
	if no := m.Admit(pod("new", systemCritical)); no != nil {
		t.Error("a critical pod is refused")
	}
	at(20*time.Second, 50<<20, 500) // too little
	at(30*time.Second, 1<<30, 50)   // disk: what is unused is enough
	at(40*time.Second, 1<<30, 30)   // and is not
	at(50*time.Second, 50<<20, 500) // only a critical pod is left
	if changed != 2 || !m.Short(corev1.NodeDiskPressure) {
		t.Errorf("changed %d times, conditions are %v", changed, m.conditions())
	}
	at(10*time.Minute, 1<<30, 500) // over
	want := []string{"evict low in 1s for TerminationByKubelet", "reclaim", "reclaim", "evict high in 1s for TerminationByKubelet"}
	if diff := cmp.Diff(want, n.done); diff != "" {
		t.Error(diff)
	}
	if got := m.conditions(); len(got) != 0 || changed != 3 {
		t.Errorf("conditions are %v, changed %d times", got, changed)
	}
}

// TestLimits has a pod go whose volume is too large, and asks about no others.
func TestLimits(t *testing.T) {
	pod := func(uid, limit string) *corev1.Pod {
		p := &corev1.Pod{}
		p.UID, p.Name = types.UID(uid), uid
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		if limit != "" {
			size := resource.MustParse(limit)
			p.Spec.Volumes[0].EmptyDir.SizeLimit = &size
		}
		return p
	}
	n := &node{memory: 1 << 30, disk: 500, pods: []*corev1.Pod{pod("free", ""), pod("small", "1Mi"), pod("large", "1Gi")}}
	used := uint64(2 << 20)
	m := New(Config{
		Summary: n.summary, Pods: func() []*corev1.Pod { return n.pods },
		Volumes: func(p *corev1.Pod) []statsapi.VolumeStats {
			n.done = append(n.done, "weigh "+p.Name)
			return []statsapi.VolumeStats{{Name: "v", FsStats: statsapi.FsStats{UsedBytes: &used}}}
		},
		Evict: func(_ context.Context, p *corev1.Pod, e Eviction) error {
			n.done = append(n.done, "evict "+p.Name+": "+e.Message)
			return nil
		},
	})
	if err := m.round(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"weigh small", `evict small: Usage of EmptyDir volume "v" exceeds the limit "1Mi". `, "weigh large"}, n.done); diff != "" {
		t.Error(diff)
	}
}
