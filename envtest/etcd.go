package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
)

// Etcd stands in for an etcd: it says that it is well, and where the API server
// that asks it may keep its data. It holds nothing itself.
type Etcd struct {
	// URLs are where to listen.
	URLs []string
	// Place is what API servers are told.
	Place Place
}

// Place is where an API server keeps its data.
type Place struct {
	// Folder is the data folder, empty or an earlier server's.
	Folder string `json:"folder"`
	// NoSync says that it need not outlive a power cut.
	NoSync bool `json:"noSync,omitempty"`
}

// placePath is where an Etcd tells its Place. No etcd has it.
const placePath = "/setpoint/place"

// Serve answers until ctx ends.
func (e Etcd) Serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", answer(map[string]string{"health": "true", "reason": ""}))
	mux.HandleFunc("GET /version", answer(map[string]string{"etcdserver": "3.6.0", "etcdcluster": "3.6.0"}))
	mux.HandleFunc("GET "+placePath, answer(e.Place))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	for _, text := range e.URLs {
		g.Go(func() error {
			defer cancel() // one that ends ends all
			return serve(ctx, text, mux)
		})
	}
	return g.Wait()
}

func serve(ctx context.Context, text string, handler http.Handler) error {
	u, err := url.Parse(text)
	if err != nil {
		return err
	}
	if u.Scheme != "http" {
		return fmt.Errorf("etcd: %s: only http is served", text)
	}
	listener, err := net.Listen("tcp", u.Host) //nolint:noctx // it does not wait
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	s := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = errors.Join(s.Close(), <-served)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// answer is always the same.
func answer(v any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the client has gone
	}
}

// askWithin is how long an Etcd may take to tell its place.
const askWithin = 10 * time.Second

// Ask asks an Etcd where to keep data.
func Ask(ctx context.Context, server string) (Place, error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	where, err := url.JoinPath(server, placePath)
	if err != nil {
		return Place{}, fmt.Errorf("--etcd-servers: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, where, nil)
	if err != nil {
		return Place{}, fmt.Errorf("--etcd-servers: %w", err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return Place{}, fmt.Errorf("--etcd-servers: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	var p Place
	if response.StatusCode != http.StatusOK {
		return p, fmt.Errorf("--etcd-servers: %s is not the etcd that setpoint envtest provides", server)
	}
	if err := json.NewDecoder(response.Body).Decode(&p); err != nil || p.Folder == "" {
		return p, fmt.Errorf("--etcd-servers: %s does not say where data is kept: %w", server, errors.Join(err))
	}
	return p, nil
}
