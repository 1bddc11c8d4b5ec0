// Package openapi tells clients the shape of what is served: /openapi/v2, one
// document over everything, and /openapi/v3, an index of one document per path
// prefix, such as api/v1 or apis/apps/v1.
//
// What comes in is a list of kinds; paths are made from its verbs and
// subresources, schemas from the definitions that upstream generates. Nothing
// is made before it is asked for. A document is made by the first request for
// it and kept, compressed, until the part of the list that it describes
// changes.
//
// A document's hash is known without making the document: it is taken over
// what determines the document. So the index, with which most clients start,
// costs next to nothing.
package openapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"setpoint.dev/setpoint/kinds"
)

// Server serves the OpenAPI documents.
type Server struct {
	list    func() *kinds.List
	version string
	joined  Joined // nil when there are no other servers
	plain   bool   // documents say nothing of initializers

	mu     sync.Mutex // guards the fields below
	now    *edition
	merged *document // version 2 with other servers'
}

// New returns a server of documents for a list of kinds that may be replaced.
// The documents are those of the given version of the API, such as "1.36" or
// "v1.36.3"; only the first two numbers are told.
func New(list func() *kinds.List, version string) *Server {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) > 2 {
		parts = parts[:2]
	}
	return &Server{list: list, version: strings.Join(parts, ".")}
}

const (
	pathV2 = "/openapi/v2"
	pathV3 = "/openapi/v3"
)

// ServeHTTP serves /openapi/v2, /openapi/v3 and the paths below it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "405 method not allowed", http.StatusMethodNotAllowed)
		return
	}
	e := s.edition()
	switch r.URL.Path {
	case pathV3:
		s.index(e).serve(w, r)
	case pathV2:
		s.v2(r.Context(), e).serve(w, r)
	default:
		name, ok := strings.CutPrefix(r.URL.Path, pathV3+"/")
		if other := s.remote(e, name); other != nil {
			other.ServeHTTP(w, r)
			return
		}
		doc := e.v3[name]
		if !ok || doc == nil {
			w.WriteHeader(http.StatusNotFound) // Compat: with no body
			return
		}
		doc.serve(w, r)
	}
}

// edition is the set of documents that describe one list. Its documents know
// their hashes and how they are made.
type edition struct {
	list  *kinds.List
	index *document
	v2    *document
	v3    map[string]*document // by what follows /openapi/v3/ in their paths
	parts map[part]string      // fingerprints
}

// edition returns the documents of the present list. Documents that have been
// made and that the change from the last list leaves as they were are carried
// over.
func (s *Server) edition() *edition {
	list := s.list()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil && s.now.list == list {
		return s.now
	}
	old := s.now
	if old == nil {
		old = &edition{}
	}
	m := newMaker(list, s.version, s.plain)
	e := &edition{list: list, v3: make(map[string]*document, len(m.sections)), parts: map[part]string{}}
	for _, r := range list.All() {
		for _, version := range r.Versions {
			p := part{r, version}
			if known := old.parts[p]; known != "" {
				e.parts[p] = known
			}
		}
	}
	var all []byte
	for _, section := range m.sections {
		hash := m.fingerprint(section, e.parts)
		all = append(all, hash...)
		render := func() ([]byte, error) { return m.v3(section) }
		doc := newDocument(hash, mediaV3, pathV3+"/"+section.name, render, protoV3)
		e.v3[section.name] = doc.or(old.v3[section.name])
	}
	e.v2 = newDocument(digest("v2", all), mediaV2, "", m.v2, protoV2).or(old.v2)
	e.index = newDocument(digest("index", all), nil, "", func() ([]byte, error) { return e.list3(nil) }, nil)
	s.now = e
	return e
}

// list3 is the index of the documents of version 3, with those of others by
// name.
func (e *edition) list3(others map[string]string) ([]byte, error) {
	type entry struct {
		URL string `json:"serverRelativeURL"`
	}
	index := struct {
		Paths map[string]entry `json:"paths"`
	}{make(map[string]entry, len(e.v3)+len(others))}
	for name, url := range others {
		index.Paths[name] = entry{url}
	}
	for name, doc := range e.v3 {
		index.Paths[name] = entry{doc.url()}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(index)
	return b.Bytes(), err
}
