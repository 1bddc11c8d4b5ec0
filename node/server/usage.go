package server

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// summary says what the node and its pods use.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	all, err := s.Stats.Summary(r.Context(), r.FormValue("only_cpu_and_memory") == "true")
	if err != nil {
		http.Error(w, fmt.Sprintf("Internal Error: %v", err), http.StatusInternalServerError)
		return
	}
	writeJSON(w, all)
}

// runningPods are those that the runtime has, whatever the node is to run.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	running, err := s.Runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		fail(w, err)
		return
	}
	pods, found := []*corev1.Pod{}, map[string]*corev1.Pod{}
	for _, c := range running {
		pod := found[c.PodSandboxId]
		if pod == nil {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: c.Labels[podNamespaceLabel], Name: c.Labels[podNameLabel], UID: types.UID(c.Labels[podUIDLabel]),
			}}
			pods, found[c.PodSandboxId] = append(pods, pod), pod
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Labels[containerNameLabel], Image: c.GetImage().GetImage()})
	}
	writePods(w, pods)
}

// resourceMetrics are what autoscalers and `kubectl top` go by. Compat: names and
// labels are kubelet's.
func (s *Server) resourceMetrics(w http.ResponseWriter, r *http.Request) {
	all, err := s.Stats.Summary(r.Context(), true)
	answer(w, r, func(m *samples) {
		failed := 0.0
		if err != nil {
			failed = 1
		} else {
			m.resources(all)
		}
		m.put(resourceError, failed, time.Time{})
	})
}

// containerMetrics are what dashboards go by. Compat: names and labels are
// cAdvisor's, as far as runtimes know them.
func (s *Server) containerMetrics(w http.ResponseWriter, r *http.Request) {
	all, err := s.Stats.Summary(r.Context(), false)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, r, func(m *samples) { m.containers(all) })
}

// answer answers with metrics that are made for one request.
func answer(w http.ResponseWriter, r *http.Request, fill func(*samples)) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(fill))
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// collector makes metrics when they are asked for. What they are is not known
// before.
type collector func(*samples)

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) { c(&samples{to}) }

// samples are metrics on their way.
type samples struct{ to chan<- prometheus.Metric }

// metric is one that is counted, or that goes up and down.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// put adds a sample of a time; the zero one is now.
func (m *samples) put(of metric, value float64, at time.Time, labels ...string) {
	sample := prometheus.MustNewConstMetric(of.desc, of.kind, value, labels...)
	if !at.IsZero() {
		sample = prometheus.NewMetricWithTimestamp(at, sample)
	}
	m.to <- sample
}

// known adds a sample of what is known; a scale is what one of it is.
func (m *samples) known(of metric, value *uint64, scale float64, at time.Time, labels ...string) {
	if value != nil {
		m.put(of, float64(*value)*scale, at, labels...)
	}
}

// second is one of the nanoseconds that processor time is counted in.
const second = 1e-9

var (
	nodeCPU        = counter("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the node in core-seconds")
	nodeMemory     = gauge("node_memory_working_set_bytes", "Current working set of the node in bytes")
	nodeSwap       = gauge("node_swap_usage_bytes", "Current swap usage of the node in bytes. Reported only on non-windows systems")
	podCPU         = counter("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pod in core-seconds", "pod", "namespace")
	podMemory      = gauge("pod_memory_working_set_bytes", "Current working set of the pod in bytes", "pod", "namespace")
	containerCPU   = counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds", "container", "pod", "namespace")
	containerBytes = gauge("container_memory_working_set_bytes", "Current working set of the container in bytes", "container", "pod", "namespace")
	containerBegun = gauge("container_start_time_seconds", "Start time of the container since unix epoch in seconds", "container", "pod", "namespace")
	resourceError  = gauge("resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise")
)

// resources adds processor and memory of all there is.
func (m *samples) resources(all *statsapi.Summary) {
	if cpu := all.Node.CPU; cpu != nil {
		m.known(nodeCPU, cpu.UsageCoreNanoSeconds, second, cpu.Time.Time)
	}
	if memory := all.Node.Memory; memory != nil {
		m.known(nodeMemory, memory.WorkingSetBytes, 1, memory.Time.Time)
	}
	if swap := all.Node.Swap; swap != nil {
		m.known(nodeSwap, swap.SwapUsageBytes, 1, swap.Time.Time)
	}
	for _, pod := range all.Pods {
		ref := pod.PodRef
		for _, c := range pod.Containers {
			m.put(containerBegun, float64(c.StartTime.UnixNano())*second, time.Time{}, c.Name, ref.Name, ref.Namespace)
			if c.CPU != nil {
				m.known(containerCPU, c.CPU.UsageCoreNanoSeconds, second, c.CPU.Time.Time, c.Name, ref.Name, ref.Namespace)
			}
			if c.Memory != nil {
				m.known(containerBytes, c.Memory.WorkingSetBytes, 1, c.Memory.Time.Time, c.Name, ref.Name, ref.Namespace)
			}
		}
		if pod.CPU != nil {
			m.known(podCPU, pod.CPU.UsageCoreNanoSeconds, second, pod.CPU.Time.Time, ref.Name, ref.Namespace)
		}
		if pod.Memory != nil {
			m.known(podMemory, pod.Memory.WorkingSetBytes, 1, pod.Memory.Time.Time, ref.Name, ref.Namespace)
		}
	}
}

var (
	usedMemory  = gauge("container_memory_usage_bytes", "Current memory usage in bytes, including all memory regardless of when it was accessed", "container", "pod", "namespace")
	usedRSS     = gauge("container_memory_rss", "Size of RSS in bytes.", "container", "pod", "namespace")
	usedDisk    = gauge("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", "container", "pod", "namespace")
	received    = counter("container_network_receive_bytes_total", "Cumulative count of bytes received", "interface", "pod", "namespace")
	receivedBad = counter("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", "interface", "pod", "namespace")
	sent        = counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", "interface", "pod", "namespace")
	sentBad     = counter("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", "interface", "pod", "namespace")
)

// containers adds what is known of containers.
func (m *samples) containers(all *statsapi.Summary) {
	for _, pod := range all.Pods {
		name, namespace := pod.PodRef.Name, pod.PodRef.Namespace
		for _, c := range pod.Containers {
			m.put(containerBegun, float64(c.StartTime.UnixNano())*second, time.Time{}, c.Name, name, namespace)
			if c.CPU != nil {
				m.known(containerCPU, c.CPU.UsageCoreNanoSeconds, second, c.CPU.Time.Time, c.Name, name, namespace)
			}
			if c.Memory != nil {
				m.known(containerBytes, c.Memory.WorkingSetBytes, 1, c.Memory.Time.Time, c.Name, name, namespace)
				m.known(usedMemory, c.Memory.UsageBytes, 1, c.Memory.Time.Time, c.Name, name, namespace)
				m.known(usedRSS, c.Memory.RSSBytes, 1, c.Memory.Time.Time, c.Name, name, namespace)
			}
			if c.Rootfs != nil {
				m.known(usedDisk, c.Rootfs.UsedBytes, 1, c.Rootfs.Time.Time, c.Name, name, namespace)
			}
		}
		if pod.Network == nil {
			continue
		}
		for _, i := range pod.Network.Interfaces {
			at := pod.Network.Time.Time
			m.known(received, i.RxBytes, 1, at, i.Name, name, namespace)
			m.known(receivedBad, i.RxErrors, 1, at, i.Name, name, namespace)
			m.known(sent, i.TxBytes, 1, at, i.Name, name, namespace)
			m.known(sentBad, i.TxErrors, 1, at, i.Name, name, namespace)
		}
	}
}
