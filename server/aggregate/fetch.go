package aggregate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// Whom this server is for other servers when it asks by itself: about what they
// serve, which it must come to know, and about OpenAPI, which anybody may read.
var (
	discoverer = &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}}
	reader     = &user.DefaultInfo{Name: "system:aggregator"}
)

// get asks a server of an address; the caller closes the answer's body.
func (b *backend) get(ctx context.Context, at *url.URL, who user.Info, header http.Header) (*http.Response, error) {
	if b.err != nil {
		return nil, b.err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.Header, header)
	client := http.Client{
		Transport:     transport.NewAuthProxyRoundTripper(who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra(), b.transport),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return client.Do(r)
}

// document is a small document of a server.
type document struct {
	code   int
	header http.Header
	body   []byte
}

// fetch reads a document whole.
func (b *backend) fetch(ctx context.Context, path string, who user.Info, header http.Header) (*document, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchWithin)
	defer cancel()
	at, err := b.of.resolve(ctx, b.service.Spec.Service)
	if err != nil {
		return nil, err
	}
	at.Path = path
	answer, err := b.get(ctx, at, who, header)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxDocument {
		return nil, fmt.Errorf("%v has more than %d bytes", at, maxDocument)
	}
	return &document{answer.StatusCode, answer.Header, body}, nil
}
