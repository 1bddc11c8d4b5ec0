package metrics_test

import (
	"iter"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/metrics"
)

func text(t *testing.T, m *metrics.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestText(t *testing.T) {
	m := metrics.New()
	list := metrics.Request{Verb: "LIST", Version: "v1", Resource: "pods", Scope: "namespace"}
	m.Begin(list, time.Now(), false, false).End(200, 5000)
	m.Begin(list, time.Now(), false, false).End(403, 10)
	m.Begin(metrics.Request{Verb: "POST", Version: "v1", Resource: "pods", Scope: "resource"}, time.Now(), false, true)
	m.Begin(metrics.Request{Verb: "WATCH", Version: "v1", Resource: "pods", Scope: "cluster"}, time.Now(), true, false)
	m.Events("", "v1", "pods").Add(3)
	m.CountObjects(func() iter.Seq[metrics.Count] {
		return slices.Values([]metrics.Count{{Resource: "pods", Objects: 7}, {Group: "apps", Resource: "deployments", Objects: 2}})
	})
	got := text(t, m)
	for _, want := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_total{code="403",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_duration_seconds_count{component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 2`,
		`apiserver_response_sizes_sum{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 5010`,
		`apiserver_current_inflight_requests{request_kind="mutating"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 0`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_watch_events_total{group="",resource="pods",version="v1"} 3`,
		`apiserver_storage_objects{resource="pods"} 7`,
		`apiserver_storage_objects{resource="deployments.apps"} 2`,
		`apiserver_resource_objects{group="apps",resource="deployments"} 2`,
		"go_goroutines ", "process_start_time_seconds ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing %s", want)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	m := metrics.New()
	q := metrics.Request{Verb: "GET", Version: "v1", Resource: "pods", Scope: "resource"}
	b.ReportAllocs()
	for b.Loop() {
		m.Begin(q, time.Now(), false, false).End(200, 1000)
	}
}
