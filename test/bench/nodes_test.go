package bench_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"
)

// nodes says of every pod of namespace default that it runs and is ready, and
// counts pods as a watch tells of them.
type nodes struct {
	server *server

	mu     sync.Mutex      // guards the fields below
	known  map[string]bool // pods by UID that are not going, and whether they are ready
	ready  int
	most   int // fences; no fence when most is 0
	least  int
	breach string
}

// playNodes plays the nodes of a server until the benchmark ends.
func playNodes(b *testing.B, s *server) *nodes {
	b.Helper()
	n := &nodes{server: s, known: map[string]bool{}}
	waiting := make(chan string, 1<<16)
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	all.Go(func() {
		defer close(waiting)
		if err := n.watch(ctx, waiting); err != nil && ctx.Err() == nil {
			b.Errorf("watch pods: %v", err)
		}
	})
	for range clients {
		all.Go(func() {
			for name := range waiting {
				if err := n.run(ctx, name); err != nil && ctx.Err() == nil {
					b.Errorf("run %s: %v", name, err)
				}
			}
		})
	}
	b.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return n
}

// run says of a pod that it is ready. One that is gone meanwhile is not found.
func (n *nodes) run(ctx context.Context, name string) error {
	now := time.Now().UTC().Format(time.RFC3339)
	status := fmt.Sprintf(`{"status":{"phase":"Running","startTime":%q,"conditions":[{"type":"Ready","status":"True","lastTransitionTime":%q}]}}`, now, now)
	code, answer, err := n.server.do(ctx, http.MethodPatch, "/api/v1/namespaces/default/pods/"+name+"/status", "application/merge-patch+json", []byte(status))
	if err != nil || code != http.StatusOK && code != http.StatusNotFound {
		return fmt.Errorf("%d, %w: %.300s", code, err, answer)
	}
	return nil
}

// told is what is read of a change.
type told struct {
	Type   string
	Object struct {
		Metadata struct{ Name, UID, ResourceVersion, DeletionTimestamp string }
		Status   struct {
			Phase      string
			Conditions []struct{ Type, Status string }
		}
	}
}

// watch follows pods and passes on those that wait for a node. A server may end a
// watch that it finds slow; then it goes on where it was.
func (n *nodes) watch(ctx context.Context, waiting chan<- string) error {
	for at := ""; ; {
		err := n.follow(ctx, &at, waiting)
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
}

// follow reads one watch that begins after the revision at, and keeps at up to
// date.
func (n *nodes) follow(ctx context.Context, at *string, waiting chan<- string) error {
	path := fmt.Sprintf("https://127.0.0.1:%d/api/v1/namespaces/default/pods?watch=1&timeoutSeconds=3600&resourceVersion=%s", n.server.port, *at)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := n.server.client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // the watch is over
	for decoder := json.NewDecoder(bufio.NewReaderSize(answer.Body, 1<<16)); ; {
		var change told
		if err := decoder.Decode(&change); err != nil {
			return err
		}
		if change.Type == "ERROR" {
			return fmt.Errorf("the watch after %s ended with an error", *at)
		}
		*at = change.Object.Metadata.ResourceVersion
		if n.note(&change) {
			waiting <- change.Object.Metadata.Name
		}
	}
}

// note counts a change, and says whether its pod waits for a node.
func (n *nodes) note(change *told) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	about, status := change.Object.Metadata, change.Object.Status
	was, had := n.known[about.UID]
	if was {
		n.ready--
	}
	if change.Type == "DELETED" || about.DeletionTimestamp != "" {
		delete(n.known, about.UID)
	} else {
		is := false
		for _, c := range status.Conditions {
			is = is || c.Type == "Ready" && c.Status == "True"
		}
		n.known[about.UID] = is
		if is {
			n.ready++
		}
	}
	if n.most > 0 && n.breach == "" && (len(n.known) > n.most || n.ready < n.least) {
		n.breach = fmt.Sprintf("there were %d pods, %d of them ready; no more than %d and no fewer than %d may be", len(n.known), n.ready, n.most, n.least)
	}
	return !had && change.Type == "ADDED" && status.Phase == "Pending" && about.DeletionTimestamp == ""
}

// fence says between which bounds the number of pods has to stay from now on.
func (n *nodes) fence(most, least int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.most, n.least, n.breach = most, least, ""
}

// unfence ends a fence, and says what broke it; "" when nothing did.
func (n *nodes) unfence() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.most = 0
	return n.breach
}
