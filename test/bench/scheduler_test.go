package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

var (
	kubeScheduler = flag.String("kube-scheduler", "", "kube-scheduler to run beside kube-apiserver")
	scheduleNodes = flag.Int("schedule-nodes", 1000, "nodes that pods are given")
	schedulePods  = flag.Int("schedule-pods", 10000, "pods that are given nodes")
)

// newSchedulers are sides that give pods nodes. The peer's scheduler may ask as
// often as it likes, as Setpoint's may.
func newSchedulers(b *testing.B) sides {
	b.Helper()
	return newTeams(b, "--scheduler", "kube-scheduler", *kubeScheduler, (*server).startScheduler)
}

// startScheduler starts the scheduler of a kube-apiserver.
func (s *server) startScheduler(b *testing.B) {
	b.Helper()
	config := filepath.Join(s.dir, "scheduler")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration",
"leaderElection":{"leaderElect":false},"clientConnection":{"kubeconfig":%q,"qps":5000,"burst":5000,"contentType":"application/vnd.kubernetes.protobuf"}}`,
		s.kubeconfig(b, "scheduler-client")), 0o600); err != nil {
		b.Fatal(err)
	}
	s.join(b, *kubeScheduler, "--config", config, "--authentication-skip-lookup")
}

const scheduledPods = "/api/v1/namespaces/default/pods"

// BenchmarkSchedule gives pods nodes that run nothing, beside kube-scheduler with
// kube-apiserver and etcd when these are given. As many pods as are made and given
// nodes are also made for a scheduler that is not there: what a node costs is the
// difference. Costs are by pod.
func BenchmarkSchedule(b *testing.B) {
	all := newSchedulers(b)
	for _, s := range all {
		together(b, *scheduleNodes, func(i int) error { return s.makeNode(b, i) })
	}
	pod := func(prefix, scheduler string, round, i int) []byte {
		return encode(b, object{
			"metadata": object{"name": fmt.Sprintf("%s-%d-%d", prefix, round, i), "labels": object{"app": "bench"}},
			"spec": object{"schedulerName": scheduler, "containers": []object{{
				"name": "c", "image": "pause", "resources": object{"requests": object{"cpu": "100m", "memory": "200Mi"}},
			}}},
		})
	}
	create := func(prefix, scheduler string, bound bool) func(b *testing.B, s *server, round, n int) {
		return func(b *testing.B, s *server, round, n int) {
			wait := func() {}
			if bound {
				wait = s.untilBound(b, n)
			}
			together(b, n, func(i int) error {
				return s.expect(b.Context(), http.StatusCreated, http.MethodPost, scheduledPods, "application/json", pod(prefix, scheduler, round, i))
			})
			wait()
		}
	}
	remove := func(b *testing.B, s *server, _, _ int) {
		s.want(b, http.StatusOK, http.MethodDelete, scheduledPods, "application/json", []byte(`{"gracePeriodSeconds":0}`))
		s.gone(b, scheduledPods)
	}
	all.measure(b, []load{
		{"create", *schedulePods, create("alone", "nobody", false)},
		{"remove-created", *schedulePods, remove},
		{"schedule", *schedulePods, create("pod", "default-scheduler", true)},
		{"remove-scheduled", *schedulePods, remove},
	})
}

// makeNode makes a node that is ready for pods.
func (s *server) makeNode(b *testing.B, i int) error {
	b.Helper()
	name := fmt.Sprintf("node-%d", i)
	room := object{"cpu": "32", "memory": "256Gi", "pods": "110"}
	err := s.expect(b.Context(), http.StatusCreated, http.MethodPost, "/api/v1/nodes", "application/json", encode(b, object{
		"metadata": object{"name": name, "labels": object{"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3)}},
		"status":   object{"capacity": room, "allocatable": room},
	}))
	if err != nil {
		return err
	}
	// A new node has a taint until somebody has seen that it is well.
	return s.expect(b.Context(), http.StatusOK, http.MethodPatch, "/api/v1/nodes/"+name, "application/merge-patch+json", []byte(`{"spec":{"taints":null}}`))
}

// untilBound returns what waits until n more pods have nodes.
func (s *server) untilBound(b *testing.B, n int) func() {
	b.Helper()
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(s.want(b, http.StatusOK, http.MethodGet, scheduledPods+"?limit=1", "", nil), &list); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	var wait sync.WaitGroup
	wait.Go(func() {
		defer cancel()
		if err := s.countBound(ctx, list.Metadata.ResourceVersion, n); err != nil {
			b.Errorf("watch pods: %v", err)
		}
	})
	return wait.Wait
}

// countBound follows pods that have nodes until there have been n.
func (s *server) countBound(ctx context.Context, since string, n int) error {
	url := fmt.Sprintf("https://127.0.0.1:%d%s?watch=1&timeoutSeconds=3600&resourceVersion=%s&fieldSelector=spec.nodeName%%21%%3D", s.port, scheduledPods, since)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // the watch is over
	bound := map[string]bool{}
	for decoder := json.NewDecoder(bufio.NewReaderSize(answer.Body, 1<<16)); len(bound) < n; {
		var change told
		if err := decoder.Decode(&change); err != nil {
			return fmt.Errorf("after %d of %d: %w", len(bound), n, err)
		}
		bound[change.Object.Metadata.Name] = true
	}
	return nil
}
