package openapi

import (
	"context"
	"net/http"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// Joined are the documents of other servers that are shown among this server's
// own.
type Joined interface {
	// Documents are those of version 3, by what follows /openapi/v3/ in their
	// paths.
	Documents() map[string]Document
	// Specs are those of version 2, each with what is to be shown of it.
	Specs(ctx context.Context) []Spec
}

// Document is where a document of another server is found, and what serves it.
type Document struct {
	URL     string
	Handler http.Handler
}

// Spec is a document of version 2 with its hash; it is not changed.
type Spec struct {
	Hash string
	Spec *spec.Swagger
}

// Join shows other servers' documents, too. It is called before the first
// request.
func (s *Server) Join(joined Joined) { s.joined = joined }

// remote finds another server's document; one of this server's own goes first.
func (s *Server) remote(e *edition, name string) http.Handler {
	if s.joined == nil || e.v3[name] != nil {
		return nil
	}
	return s.joined.Documents()[name].Handler
}

// index lists all documents of version 3.
func (s *Server) index(e *edition) *document {
	if s.joined == nil {
		return e.index
	}
	remote := s.joined.Documents()
	if len(remote) == 0 {
		return e.index
	}
	urls := map[string]string{}
	hash := []byte(e.index.hash)
	for _, name := range sortedKeys(remote) {
		if e.v3[name] == nil {
			urls[name] = remote[name].URL
			hash = append(hash, name+remote[name].URL+"\n"...)
		}
	}
	return newDocument(digest("index", hash), nil, "", func() ([]byte, error) { return e.list3(urls) }, nil)
}

// v2 is the document of version 2 over everything.
func (s *Server) v2(ctx context.Context, e *edition) *document {
	if s.joined == nil {
		return e.v2
	}
	specs := s.joined.Specs(ctx)
	if len(specs) == 0 {
		return e.v2
	}
	hash := []byte(e.v2.hash)
	for _, other := range specs {
		hash = append(hash, other.Hash+"\n"...)
	}
	doc := newDocument(digest("v2", hash), mediaV2, "", func() ([]byte, error) { return merge(e.v2, specs) }, protoV2)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.merged = doc.or(s.merged)
	return s.merged
}

// merge puts other servers' specs behind this server's own. Paths that are
// there already stay as they are; definitions that differ get other names.
func merge(local *document, others []Spec) ([]byte, error) {
	b, err := local.json()
	if err != nil {
		return nil, err
	}
	if b, err = expand(b); err != nil {
		return nil, err
	}
	all := &spec.Swagger{}
	if err := all.UnmarshalJSON(b); err != nil {
		return nil, err
	}
	for _, other := range others {
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(all, other.Spec); err != nil {
			return nil, err
		}
	}
	return all.MarshalJSON()
}
