// Package metrics counts what the API does, under upstream's names.
//
// In come requests as they begin and end, watch events as they are sent, keys
// as they pass through queues, and a way to ask how many objects there are; out
// comes the Prometheus text. A
// request costs one lookup of its labels and a few atomic additions: the
// children of every vector are found once per combination and kept. Labels
// are the caller's: it must not pass on what clients may make up.
package metrics

import (
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
)

// component is the label that tells an API server from others.
const component = "apiserver"

// Metrics are those of one control plane.
type Metrics struct {
	registry *prometheus.Registry
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	sizes    *prometheus.HistogramVec
	long     *prometheus.GaugeVec
	events   *prometheus.CounterVec
	// Dropped counts audit events that were not written.
	Dropped  prometheus.Counter
	outcomes *prometheus.CounterVec

	mutating, readOnly prometheus.Gauge
	queues             *queues

	requests sync.Map // Request to *series
	watches  sync.Map // [3]string to prometheus.Counter
}

// Request says what a request asks for, in labels.
type Request struct {
	Verb, DryRun, Group, Version, Resource, Subresource, Scope string
}

// series are the children for one combination of labels.
type series struct {
	duration, size prometheus.Observer
	long           prometheus.Gauge
	// codes are the counters by HTTP status, made when first needed.
	codes [600]atomic.Pointer[prometheus.Counter]
}

// New returns metrics of which nothing is counted yet, but for those of the
// process.
func New() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), queues: newQueues()}
	labels := []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	withDryRun := append([]string{"dry_run"}, labels...)
	m.total = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_request_total", Help: "Requests by what they asked for and the HTTP status they got.",
	}, append([]string{"code"}, withDryRun...))
	m.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_request_duration_seconds", Help: "How long requests took, by what they asked for.",
		Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
	}, withDryRun)
	m.sizes = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_response_sizes", Help: "Bytes of the answers to reads, by what they asked for.",
		Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
	}, labels)
	m.long = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "apiserver_longrunning_requests", Help: "Watches and other long requests that are under way.",
	}, labels)
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_watch_events_total", Help: "Events sent to watchers.",
	}, []string{"group", "version", "resource"})
	inflight := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "apiserver_current_inflight_requests", Help: "Requests under way that are not long, by kind.",
	}, []string{"request_kind"})
	m.mutating, m.readOnly = inflight.WithLabelValues("mutating"), inflight.WithLabelValues("readOnly")
	m.Dropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "apiserver_audit_requests_rejected_total", Help: "Audit events that were dropped because the log could not keep up.",
	})
	m.outcomes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "setpoint_initializer_outcomes_total", Help: "What became of objects that waited for an initializer: complete, fail, expire, skip, release.",
	}, []string{"name", "outcome"})
	m.registry.MustRegister(
		m.outcomes, m.total, m.duration, m.sizes, m.long, m.events, inflight, m.Dropped, m.queues,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Handler serves the Prometheus text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{m.registry, prometheus.GathererFunc(ofUpstream)}, promhttp.HandlerOpts{})
}

// ofUpstream are the metrics that upstream's parts of admission and fairness count
// in the registry of the process.
func ofUpstream() ([]*dto.MetricFamily, error) {
	all, err := legacyregistry.DefaultGatherer.Gather()
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
		name := f.GetName()
		return !strings.HasPrefix(name, "apiserver_admission_") && !strings.HasPrefix(name, "apiserver_validating_admission_policy_") &&
			!strings.HasPrefix(name, "apiserver_mutating_admission_policy_") && !strings.HasPrefix(name, "apiserver_flowcontrol_")
	}), err
}

// series finds the children for a request's labels.
func (m *Metrics) series(q Request) *series {
	if s, ok := m.requests.Load(q); ok {
		return s.(*series)
	}
	labels := q.labels()
	s := &series{
		size: m.sizes.With(labels), long: m.long.With(labels),
		duration: m.duration.MustCurryWith(prometheus.Labels{"dry_run": q.DryRun}).With(labels),
	}
	kept, _ := m.requests.LoadOrStore(q, s)
	return kept.(*series)
}

func (q Request) labels() prometheus.Labels {
	return prometheus.Labels{
		"verb": q.Verb, "group": q.Group, "version": q.Version, "resource": q.Resource,
		"subresource": q.Subresource, "scope": q.Scope, "component": component,
	}
}

// Ongoing is a request that has begun.
type Ongoing struct {
	metrics *Metrics
	request Request
	series  *series
	begun   time.Time
	active  prometheus.Gauge
}

// Begin takes note of a request that came in at begun. A long one counts as
// such, another as under way.
func (m *Metrics) Begin(q Request, begun time.Time, long, mutating bool) Ongoing {
	o := Ongoing{metrics: m, request: q, series: m.series(q), begun: begun}
	switch {
	case long:
		o.active = o.series.long
	case mutating:
		o.active = m.mutating
	default:
		o.active = m.readOnly
	}
	o.active.Inc()
	return o
}

// Leave says that the request is not under way any more, though it has not
// ended.
func (o *Ongoing) Leave() {
	if o.active != nil {
		o.active.Dec()
		o.active = nil
	}
}

// End takes note of the answer. The zero Ongoing ends without a trace.
func (o Ongoing) End(code, size int) {
	if o.metrics == nil {
		return
	}
	o.Leave()
	o.series.duration.Observe(time.Since(o.begun).Seconds())
	o.metrics.counter(o.series, o.request, code).Inc()
	// Compat: sizes are told of reads only.
	if o.request.Verb == "GET" || o.request.Verb == "LIST" {
		o.series.size.Observe(float64(size))
	}
}

func (m *Metrics) counter(s *series, q Request, code int) prometheus.Counter {
	if code < 0 || code >= len(s.codes) {
		code = 0
	}
	if c := s.codes[code].Load(); c != nil {
		return *c
	}
	c := m.total.MustCurryWith(prometheus.Labels{"dry_run": q.DryRun, "code": strconv.Itoa(code)}).With(q.labels())
	s.codes[code].Store(&c)
	return c
}

// Events counts the watch events of a resource in a version.
func (m *Metrics) Events(group, version, resource string) interface{ Add(n float64) } {
	key := [3]string{group, version, resource}
	if c, ok := m.watches.Load(key); ok {
		return c.(prometheus.Counter)
	}
	c, _ := m.watches.LoadOrStore(key, m.events.WithLabelValues(group, version, resource))
	return c.(prometheus.Counter)
}

// Count is how many objects of a resource there are.
type Count struct {
	Group, Resource string
	Objects         int
}

// CountObjects asks for the objects there are whenever the metrics are read.
// It is called once.
func (m *Metrics) CountObjects(counts func() iter.Seq[Count]) {
	m.registry.MustRegister(objects(counts))
}

// objects tells how many there are, under upstream's older name and its newer.
type objects func() iter.Seq[Count]

var (
	storageObjects = prometheus.NewDesc("apiserver_storage_objects", "Objects that are stored, by resource.", []string{"resource"}, nil)
	groupObjects   = prometheus.NewDesc("apiserver_resource_objects", "Objects that are stored, by group and resource.", []string{"group", "resource"}, nil)
)

// Describe implements prometheus.Collector.
func (o objects) Describe(to chan<- *prometheus.Desc) {
	to <- storageObjects
	to <- groupObjects
}

// Collect implements prometheus.Collector.
func (o objects) Collect(to chan<- prometheus.Metric) {
	for c := range o() {
		name := c.Resource
		if c.Group != "" {
			name += "." + c.Group
		}
		to <- prometheus.MustNewConstMetric(storageObjects, prometheus.GaugeValue, float64(c.Objects), name)
		to <- prometheus.MustNewConstMetric(groupObjects, prometheus.GaugeValue, float64(c.Objects), c.Group, c.Resource)
	}
}

// Initialized counts what became of an object that waited for an initializer.
func (m *Metrics) Initialized(name, outcome string) { m.outcomes.WithLabelValues(name, outcome).Inc() }

// Waiting is what waits for initializers.
type Waiting struct {
	// Creates are the requests that wait.
	Creates int
	// Objects are those that wait, by initializer.
	Objects []Backlog
}

// Backlog is what waits for one initializer.
type Backlog struct {
	Name    string
	Pending int
	Oldest  time.Duration // how long the one has that waits longest
}

// CountWaiting asks what waits for initializers whenever the metrics are read.
// It is called once.
func (m *Metrics) CountWaiting(count func() Waiting) { m.registry.MustRegister(waiting(count)) }

// waiting tells what waits.
type waiting func() Waiting

var (
	waitingCreates = prometheus.NewDesc("setpoint_initializer_waiting_creates", "Creates that wait for initializers.", nil, nil)
	pendingObjects = prometheus.NewDesc("setpoint_initializer_pending", "Objects that wait for an initializer, whether it is its turn or not.", []string{"name"}, nil)
	oldestPending  = prometheus.NewDesc("setpoint_initializer_oldest_pending_seconds", "How long an initializer has had its turn with the object that waits longest.", []string{"name"}, nil)
)

// Describe implements prometheus.Collector.
func (w waiting) Describe(to chan<- *prometheus.Desc) {
	to <- waitingCreates
	to <- pendingObjects
	to <- oldestPending
}

// Collect implements prometheus.Collector.
func (w waiting) Collect(to chan<- prometheus.Metric) {
	now := w()
	to <- prometheus.MustNewConstMetric(waitingCreates, prometheus.GaugeValue, float64(now.Creates))
	for _, b := range now.Objects {
		to <- prometheus.MustNewConstMetric(pendingObjects, prometheus.GaugeValue, float64(b.Pending), b.Name)
		to <- prometheus.MustNewConstMetric(oldestPending, prometheus.GaugeValue, b.Oldest.Seconds(), b.Name)
	}
}
