package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"
)

// The load on initializers: config maps, one after the other and by several
// clients.
const (
	initializedOne  = 500
	initializedMany = 4_000
)

const (
	benchMaps        = "/api/v1/namespaces/default/configmaps"
	benchInitializer = "bench.initializer.example.org"
)

// BenchmarkInitializer measures what a create costs that waits for one
// initializer, which watches and patches from a process of its own, beside a
// create that waits for nobody; and what the latter costs while creates of another
// kind are held by an initializer that is dead. kube-apiserver has no initializers any more.
func BenchmarkInitializer(b *testing.B) {
	s := setpointServer(b, buildSetpoint(b))
	s.start(b)
	defer s.stop()
	b.ReportMetric(0, "ns/op")
	measure := func(name string) {
		for _, load := range []struct {
			name string
			run  func(prefix string) int
		}{
			{"one", func(prefix string) int {
				for i := range initializedOne {
					if err := createMap(b.Context(), s, prefix, i); err != nil {
						b.Fatal(err)
					}
				}
				return initializedOne
			}},
			{"many", func(prefix string) int {
				together(b, initializedMany, func(i int) error { return createMap(b.Context(), s, prefix, i) })
				return initializedMany
			}},
		} {
			begun, cpu := time.Now(), s.cpu(b)
			n := time.Duration(load.run(name + "-" + load.name))
			b.ReportMetric(float64((time.Since(begun)/n).Nanoseconds())/1000, name+"-"+load.name+"-µs")
			b.ReportMetric(float64(((s.cpu(b)-cpu)/n).Nanoseconds())/1000, name+"-"+load.name+"-cpu-µs")
		}
	}
	measure("plain")
	release := hold(b, s)
	measure("beside-a-dead-one")
	release()
	s.want(b, http.StatusCreated, http.MethodPost, "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations", "application/json",
		[]byte(`{"metadata":{"name":"bench"},"initializers":[{"name":"`+benchInitializer+`","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	ended, begun := make(chan error, 1), make(chan struct{})
	go func() { ended <- initialize(ctx, s, begun) }()
	<-begun
	measure("initialized")
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		b.Fatal(err)
	}
}

// held is how many creates wait for an initializer that is dead.
const held = 400

// hold has creates of secrets wait for nobody. What it returns ends that.
func hold(b *testing.B, s *server) (release func()) {
	b.Helper()
	const path, configuration = "/api/v1/namespaces/default/secrets", "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations"
	s.want(b, http.StatusCreated, http.MethodPost, configuration, "application/json",
		[]byte(`{"metadata":{"name":"dead"},"initializers":[{"name":"dead.initializer.example.org","failurePolicy":"Wait","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["secrets"]}]}]}`))
	ctx, cancel := context.WithCancel(b.Context())
	var holding sync.WaitGroup
	for i := range held {
		holding.Go(func() {
			body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"held-%d"}}`, i)
			_, _, _ = s.do(ctx, http.MethodPost, path+"?timeout=10m", "application/json", body) // it ends with the test
		})
	}
	for {
		body := s.want(b, http.StatusOK, http.MethodGet, path+"?includeUninitialized=true", "", nil)
		if bytes.Count(body, []byte(`"name":"held-`)) == held {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return func() {
		cancel()
		holding.Wait()
		s.want(b, http.StatusOK, http.MethodDelete, path, "", nil)
		s.want(b, http.StatusOK, http.MethodDelete, configuration+"/dead", "", nil)
	}
}

func createMap(ctx context.Context, s *server, prefix string, i int) error {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-%d"},"data":{"a":"b"}}`, prefix, i)
	return s.expect(ctx, http.StatusCreated, http.MethodPost, benchMaps, "application/json", []byte(body))
}

// initialize acts on every config map that waits, several at once.
func initialize(ctx context.Context, s *server, begun chan<- struct{}) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s?watch=true&includeUninitialized=true", s.port, benchMaps), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // it is only read
	close(begun)
	work := make(chan string, clients)
	defer close(work)
	failed := make(chan error, clients)
	for range clients {
		go func() {
			for name := range work {
				err := s.expect(ctx, http.StatusOK, http.MethodPatch, benchMaps+"/"+name, "application/strategic-merge-patch+json",
					[]byte(`{"metadata":{"annotations":{"seen":"yes"},"initializers":{"pending":[{"$patch":"delete","name":"`+benchInitializer+`"}]}}}`))
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	for lines := bufio.NewReaderSize(answer.Body, 64<<10); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		var event struct {
			Type   string
			Object struct {
				Metadata struct {
					Name         string
					Initializers *struct{}
				}
			}
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return err
		}
		if event.Type != "ADDED" || event.Object.Metadata.Initializers == nil {
			continue
		}
		select {
		case work <- event.Object.Metadata.Name:
		case err := <-failed:
			return err
		}
	}
}
