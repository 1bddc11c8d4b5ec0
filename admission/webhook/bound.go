package webhook

import (
	"fmt"
	"io"
	"net/http"

	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// maxAnswer is how much of a webhook's answer is read: more than any patch of
// an object that may be stored needs.
const maxAnswer = 32 << 20

// bounded makes clients that read answers up to maxAnswer.
type bounded struct {
	webhookutil.AuthenticationInfoResolver
}

// ClientConfigFor implements webhookutil.AuthenticationInfoResolver.
func (b bounded) ClientConfigFor(host string) (*rest.Config, error) {
	return bound(b.AuthenticationInfoResolver.ClientConfigFor(host))
}

// ClientConfigForService implements webhookutil.AuthenticationInfoResolver.
func (b bounded) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return bound(b.AuthenticationInfoResolver.ClientConfigForService(name, namespace, port))
}

func bound(cfg *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedTransport{next} })
	return cfg, nil
}

type boundedTransport struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxAnswer}
	}
	return answer, err
}

// boundedBody fails where an answer is too long.
type boundedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}
