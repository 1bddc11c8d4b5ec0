package aggregate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	openapi "k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/openapiconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	own "setpoint.dev/setpoint/server/openapi"
)

// specFor is how long a server's OpenAPI document of version 2 is taken for its
// present one.
const specFor = time.Minute

const (
	pathV2 = "/openapi/v2"
	pathV3 = "/openapi/v3"
)

// index reads which OpenAPI documents of version 3 a server has. A server from
// before version 3 has one, made of what it says in version 2.
func (b *backend) index(ctx context.Context) (paths map[string]string, converted bool) {
	doc, err := b.fetch(ctx, pathV3, reader, http.Header{"Accept": {"application/json"}})
	switch {
	case err != nil:
		return nil, false
	case doc.code == http.StatusNotFound:
		name := root(groupVersion(b.service))[1:]
		return map[string]string{name: pathV3 + "/" + name}, true
	case doc.code != http.StatusOK:
		return nil, false
	}
	list := handler3.OpenAPIV3Discovery{}
	if json.Unmarshal(doc.body, &list) != nil {
		return nil, false
	}
	paths = map[string]string{}
	for name, at := range list.Paths {
		paths[name] = at.ServerRelativeURL
	}
	return paths, false
}

// Documents are the OpenAPI documents of version 3 that other servers have, by
// what follows /openapi/v3/ in their paths. It implements openapi.Joined.
func (a *Aggregator) Documents() map[string]own.Document {
	if a.remote.Load() == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]own.Document{}
	for _, e := range a.inOrderLocked() {
		var h http.Handler = e.backend
		if e.found.converted {
			h = converted{e.backend, e.spec}
		}
		for name, url := range e.found.specs {
			if _, taken := all[name]; !taken {
				all[name] = own.Document{URL: url, Handler: h}
			}
		}
	}
	return all
}

// Specs are what other servers say in version 2 about the group versions that
// they serve here, in order. It implements openapi.Joined.
func (a *Aggregator) Specs(ctx context.Context) []own.Spec {
	if a.remote.Load() == nil {
		return nil
	}
	type source struct {
		from *backend
		spec *swagger
	}
	var sources []source
	a.mu.Lock()
	for _, e := range a.inOrderLocked() {
		sources = append(sources, source{e.backend, e.spec})
	}
	a.mu.Unlock()
	var all []own.Spec
	for _, s := range sources {
		if doc, hash := s.spec.get(ctx, s.from); doc != nil {
			path := root(groupVersion(s.from.service)) + "/"
			all = append(all, own.Spec{Hash: hash + path, Spec: openapi.FilterSpecByPathsWithoutSideEffects(doc, []string{path})})
		}
	}
	return all
}

// inOrderLocked are the entries of other servers, by the priority of their
// groups and then by name.
func (a *Aggregator) inOrderLocked() []*entry {
	var all []*entry
	for _, e := range a.entries {
		if e.backend != nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(x, y *entry) int {
		return cmp.Or(cmp.Compare(y.service.Spec.GroupPriorityMinimum, x.service.Spec.GroupPriorityMinimum), cmp.Compare(x.service.Name, y.service.Name))
	})
	return all
}

// swagger is a server's document of version 2, read when it is asked for.
type swagger struct {
	mu   sync.Mutex // guards the fields below, and is held while one reads
	at   time.Time
	etag string
	doc  *spec.Swagger
}

// get returns the document and its hash; the last one when the server does not
// answer, nil when it never has.
func (s *swagger) get(ctx context.Context, b *backend) (*spec.Swagger, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.available || !s.at.IsZero() && time.Since(s.at) < specFor {
		return s.doc, s.etag
	}
	s.at = time.Now()
	header := http.Header{"Accept": {"application/json"}}
	if s.etag != "" {
		header.Set("If-None-Match", s.etag)
	}
	doc, err := b.fetch(ctx, pathV2, reader, header)
	if err != nil || doc.code != http.StatusOK {
		return s.doc, s.etag
	}
	parsed := &spec.Swagger{}
	if err := parsed.UnmarshalJSON(doc.body); err != nil {
		b.of.Logger.Debug("an API server's OpenAPI document cannot be read", "apiservice", b.service.Name, "error", err)
		return s.doc, s.etag
	}
	s.doc, s.etag = parsed, doc.header.Get("Etag")
	if s.etag == "" {
		s.etag = fmt.Sprintf("%X", sha256.Sum256(doc.body)) // the server knows none
	}
	return s.doc, s.etag
}

// converted serves the document of version 3 of a server that has none.
type converted struct {
	from *backend
	spec *swagger
}

// ServeHTTP implements http.Handler.
func (c converted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	doc, _ := c.spec.get(r.Context(), c.from)
	if doc == nil {
		http.Error(w, unavailable, http.StatusServiceUnavailable)
		return
	}
	doc = openapi.FilterSpecByPathsWithoutSideEffects(doc, []string{root(groupVersion(c.from.service)) + "/"})
	body, err := json.Marshal(openapiconv.ConvertV2ToV3(doc))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client has gone
}
