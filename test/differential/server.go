package differential

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Server is one of the two that are compared.
type Server struct {
	URL    string
	client *http.Client
	// nobody is a client without a certificate.
	nobody *http.Client
	kept   map[string]string
}

// NewServer returns a server that is spoken to with the given certificate.
// What it says it is, is not checked: it is on loopback.
func NewServer(url string, certificate tls.Certificate) *Server {
	return &Server{URL: url, client: newClient(certificate), nobody: newClient(), kept: map[string]string{}}
}

func newClient(certificates ...tls.Certificate) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{Certificates: certificates, InsecureSkipVerify: true}},
	}
}

// How often and how long an answer is waited for.
const (
	untilEvery = 50 * time.Millisecond
	untilMost  = 10 * time.Second
)

// Do sends a request and reads the answer: the first that contains what is
// waited for, or the last one when that does not come.
func (s *Server) Do(ctx context.Context, r Request) (Answer, error) {
	for deadline := time.Now().Add(untilMost); ; time.Sleep(untilEvery) {
		response, body, err := s.send(ctx, r) //nolint:bodyclose // it is read and closed there
		if err != nil {
			return Answer{}, fmt.Errorf("%s: %w", r.Name, err)
		}
		missing := slices.ContainsFunc(r.Until, func(text string) bool { return !strings.Contains(string(body), s.fill(text)) })
		if missing && time.Now().Before(deadline) {
			continue
		}
		for name, path := range r.Keep {
			s.kept[name] = field(body, path)
		}
		return NewAnswer(response, body, s.kept, r.Part), nil
	}
}

// Know lets requests use a value by a name, as if it had been kept.
func (s *Server) Know(name, value string) { s.kept[name] = value }

// fill puts what was kept into a text.
func (s *Server) fill(text string) string {
	for name, value := range s.kept {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	return text
}

// send sends a request once and reads all of the answer.
func (s *Server) send(ctx context.Context, r Request) (*http.Response, []byte, error) {
	content, err := r.content(s.fill(r.Body))
	if err != nil {
		return nil, nil, err
	}
	q, err := http.NewRequestWithContext(ctx, r.Method, s.URL+s.fill(r.Path), bytes.NewReader(content))
	if err != nil {
		return nil, nil, err
	}
	q.Header.Set("User-Agent", "differential/1 (test)")
	for name, values := range r.Header {
		q.Header.Del(name)
		for _, v := range values {
			if v != "-" {
				q.Header.Add(name, s.fill(v))
			}
		}
	}
	client := s.client
	if r.Nobody {
		client = s.nobody
	}
	response, err := client.Do(q)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(response.Body)
	return response, body, err
}
