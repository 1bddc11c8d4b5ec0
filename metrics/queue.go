package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// queues are the counters of every queue, by name.
type queues struct {
	adds, retries *prometheus.CounterVec
	waited, took  *prometheus.HistogramVec

	mu     sync.Mutex // guards the fields below
	byName map[string]*Queue
}

var (
	queueDepth      = prometheus.NewDesc("workqueue_depth", "Keys that wait in a queue.", []string{"name"}, nil)
	queueUnfinished = prometheus.NewDesc("workqueue_unfinished_work_seconds", "How long the keys of a queue that are being worked on have been so, added up.", []string{"name"}, nil)
	queueLongest    = prometheus.NewDesc("workqueue_longest_running_processor_seconds", "How long the key of a queue that has been worked on for longest has been so.", []string{"name"}, nil)
)

func newQueues() *queues {
	buckets := prometheus.ExponentialBuckets(10e-9, 10, 10)
	return &queues{
		adds:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_adds_total", Help: "Keys added to a queue."}, []string{"name"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_retries_total", Help: "Keys that a queue has been given again after a failure."}, []string{"name"}),
		waited:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "workqueue_queue_duration_seconds", Help: "How long keys waited in a queue.", Buckets: buckets}, []string{"name"}),
		took:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "workqueue_work_duration_seconds", Help: "How long the work on a key took.", Buckets: buckets}, []string{"name"}),
		byName:  map[string]*Queue{},
	}
}

// Queue counts what happens in the queue of that name. A queue that is made
// anew under the same name goes on counting.
func (m *Metrics) Queue(name string) *Queue {
	s := m.queues
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.byName[name]
	if q == nil {
		q = &Queue{
			adds: s.adds.WithLabelValues(name), retries: s.retries.WithLabelValues(name),
			waited: s.waited.WithLabelValues(name), took: s.took.WithLabelValues(name),
		}
		s.byName[name] = q
	}
	q.reset()
	return q
}

// Queue counts what happens in one queue of keys. The nil Queue counts nothing.
type Queue struct {
	adds, retries prometheus.Counter
	waited, took  prometheus.Observer

	mu      sync.Mutex // guards the fields below
	waiting map[any]time.Time
	working map[any]time.Time
}

func (q *Queue) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting, q.working = map[any]time.Time{}, map[any]time.Time{}
}

// Added says that a key waits. One that waits already is counted once.
func (q *Queue) Added(key any) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, waits := q.waiting[key]; !waits {
		q.waiting[key] = time.Now()
		q.adds.Inc()
	}
}

// Taken says that the work on a key has begun.
func (q *Queue) Taken(key any) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if since, waits := q.waiting[key]; waits {
		q.waited.Observe(now.Sub(since).Seconds())
		delete(q.waiting, key)
	}
	q.working[key] = now
}

// Done says that the work on a key has ended.
func (q *Queue) Done(key any) {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if since, works := q.working[key]; works {
		q.took.Observe(time.Since(since).Seconds())
		delete(q.working, key)
	}
}

// Retried says that a key will be added again because the work on it failed.
func (q *Queue) Retried() {
	if q != nil {
		q.retries.Inc()
	}
}

// now is how many keys wait, and how long those that are worked on have been.
func (q *Queue) now() (depth int, unfinished, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, since := range q.working {
		took := time.Since(since)
		unfinished += took
		longest = max(longest, took)
	}
	return len(q.waiting), unfinished, longest
}

// Describe implements prometheus.Collector.
func (s *queues) Describe(to chan<- *prometheus.Desc) {
	to <- queueDepth
	to <- queueUnfinished
	to <- queueLongest
	for _, c := range []prometheus.Collector{s.adds, s.retries, s.waited, s.took} {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (s *queues) Collect(to chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{s.adds, s.retries, s.waited, s.took} {
		c.Collect(to)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, q := range s.byName {
		depth, unfinished, longest := q.now()
		to <- prometheus.MustNewConstMetric(queueDepth, prometheus.GaugeValue, float64(depth), name)
		to <- prometheus.MustNewConstMetric(queueUnfinished, prometheus.GaugeValue, unfinished.Seconds(), name)
		to <- prometheus.MustNewConstMetric(queueLongest, prometheus.GaugeValue, longest.Seconds(), name)
	}
}
