package stats_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/stats"
)

// runtime has a pod with containers that have used some processor time.
type runtime struct {
	at   time.Time
	used map[string]uint64 // seconds, by container
	gone bool
}

func labels(container string) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u", "io.kubernetes.container.name": container,
	}
}

func (r *runtime) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	if r.gone {
		return nil, errors.New("the runtime is gone")
	}
	var all []*runtimeapi.ContainerStats
	for name, used := range r.used {
		all = append(all, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: name, Labels: labels(name)},
			Cpu:        &runtimeapi.CpuUsage{Timestamp: r.at.UnixNano(), UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: used * 1e9}},
			Memory:     &runtimeapi.MemoryUsage{Timestamp: r.at.UnixNano(), WorkingSetBytes: &runtimeapi.UInt64Value{Value: 1000}},
		})
	}
	return all, nil
}

func (r *runtime) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	var all []*runtimeapi.Container
	for name := range r.used {
		all = append(all, &runtimeapi.Container{Id: name, PodSandboxId: "s"})
	}
	return all, nil
}

func (r *runtime) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s", Labels: labels("")}}, nil
}

func (r *runtime) PodSandboxStatus(context.Context, string, bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return nil, errors.New("not asked for what is brief")
}

// TestRates looks again and again, at containers that work, end and begin anew.
func TestRates(t *testing.T) {
	begun := time.Unix(1700000000, 0)
	r := &runtime{}
	c := stats.New(stats.Config{Node: "n", Runtime: r, UID: func(uid types.UID) types.UID { return "mirror-of-" + uid }})
	for _, step := range []struct {
		name  string
		after time.Duration
		used  map[string]uint64
		// rates are of containers in thousandths, and of the pod under ""
		rates map[string]int
	}{
		{"the first look", 0, map[string]uint64{"a": 100, "b": 5}, map[string]int{}},
		{"the next", 10 * time.Second, map[string]uint64{"a": 105, "b": 6}, map[string]int{"a": 500, "b": 100, "": 600}},
		{"too soon to say", 10*time.Second + time.Millisecond, map[string]uint64{"a": 107, "b": 6}, map[string]int{"a": 500, "b": 100, "": 600}},
		{"idle", 20 * time.Second, map[string]uint64{"a": 105, "b": 6}, map[string]int{"a": 0, "b": 0, "": 0}},
		{"one is gone", 30 * time.Second, map[string]uint64{"a": 115}, map[string]int{"a": 1000, "": 1000}},
		{"one begins anew", 40 * time.Second, map[string]uint64{"a": 1, "b": 7}, map[string]int{}},
		{"and goes on", 50 * time.Second, map[string]uint64{"a": 3, "b": 7}, map[string]int{"a": 200, "b": 0, "": 200}},
	} {
		t.Run(step.name, func(t *testing.T) {
			r.at, r.used = begun.Add(step.after), step.used
			s, err := c.Summary(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Pods) != 1 || s.Pods[0].PodRef.UID != "mirror-of-u" || *s.Pods[0].Memory.WorkingSetBytes != uint64(1000*len(step.used)) {
				t.Fatalf("pods: %+v", s.Pods)
			}
			rates := map[string]int{}
			if rate := s.Pods[0].CPU.UsageNanoCores; rate != nil {
				rates[""] = int(*rate / 1e6)
			}
			for _, one := range s.Pods[0].Containers {
				if one.CPU.UsageNanoCores != nil {
					rates[one.Name] = int(*one.CPU.UsageNanoCores / 1e6)
				}
			}
			if diff := cmp.Diff(step.rates, rates); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNoRuntime(t *testing.T) {
	c := stats.New(stats.Config{Node: "n", Runtime: &runtime{gone: true}})
	if _, err := c.Summary(t.Context(), true); err == nil {
		t.Error("nothing was said of it")
	}
}
