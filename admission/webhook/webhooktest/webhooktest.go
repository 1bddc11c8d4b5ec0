// Package webhooktest is an admission webhook for tests: a server on loopback
// that does what the path of its address says, so that a configuration tells
// the whole story. The first part of the path is a word, the rest what it takes;
// a configuration's address may have no args.
//
//	/allow                               allows
//	/deny/message=&code=&reason=         refuses
//	/patch/op=...                        answers with a JSON patch
//	/append/annotation=&value=           appends to an annotation of the object
//	/say/status=&body=                   answers with the body, UID standing for the request's
//	/warn/text=&text=                    allows with warnings
//	/note/key=&value=                    allows with an audit annotation
//	/echo                                refuses with what it was asked, in a message
//	/hang  /close  /huge  /cut           do not answer as they should
//	/redirect/to=                        says where else to ask
//
// A review is answered in the version that it was asked in.
package webhooktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Service is the name that the server's certificate is for, beside loopback.
const Service = "hook.hooks.svc"

// Server is a running webhook.
type Server struct {
	// URL is its address, without a path; CABundle is who vouches for it.
	URL      string
	CABundle []byte

	server *httptest.Server
	mu     sync.Mutex // guards calls
	calls  map[string]int
}

// Start starts a webhook that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	bundle, pair, err := certify()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{CABundle: bundle, calls: map[string]int{}}
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.server.EnableHTTP2 = true
	s.server.StartTLS()
	s.URL = s.server.URL
	t.Cleanup(func() {
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

// certify makes a certificate that vouches for itself.
func certify() (bundle []byte, pair tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, pair, err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: Service}, DNSNames: []string{Service, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		return nil, pair, err
	}
	bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})
	return bundle, tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, nil
}

// Port is the port that it listens on.
func (s *Server) Port() int {
	return s.server.Listener.Addr().(*net.TCPAddr).Port
}

// Calls is how often a word was asked for.
func (s *Server) Calls(word string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[word]
}

// said is what a path says.
func said(path string) (word string, args url.Values) {
	word, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	args = url.Values{}
	for pair := range strings.SplitSeq(rest, "&") {
		key, value, _ := strings.Cut(pair, "=")
		args.Add(key, value)
	}
	return word, args
}

// review is the part of an AdmissionReview that matters here, in both versions.
type review struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Request    json.RawMessage `json:"request,omitempty"`
	Response   map[string]any  `json:"response,omitempty"`
}

type asked struct {
	UID       string `json:"uid"`
	Operation string `json:"operation"`
	Object    struct {
		Metadata struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	} `json:"object"`
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	word, args := said(r.URL.Path)
	s.mu.Lock()
	s.calls[word]++
	s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	switch word {
	case "hang":
		<-r.Context().Done()
		return
	case "close":
		panic(http.ErrAbortHandler)
	case "huge":
		_, _ = io.Copy(w, io.LimitReader(spaces{}, 64<<20)) // until the client has enough
		return
	case "redirect":
		http.Redirect(w, r, args.Get("to"), http.StatusTemporaryRedirect)
		return
	case "cut":
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, `{"apiVersion":`)
		panic(http.ErrAbortHandler)
	}
	var in review
	var request asked
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := json.Unmarshal(in.Request, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if word == "say" {
		say(w, args, request.UID)
		return
	}
	response := answer(word, args, in, request)
	response["uid"] = request.UID
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review{APIVersion: in.APIVersion, Kind: in.Kind, Response: response}) // the client has gone
}

// say answers with what it is told to.
func say(w http.ResponseWriter, args url.Values, uid string) {
	w.Header().Set("Content-Type", "application/json")
	if code, err := strconv.Atoi(args.Get("status")); err == nil {
		w.WriteHeader(code)
	}
	_, _ = io.WriteString(w, strings.ReplaceAll(args.Get("body"), "UID", uid)) // the client has gone
}

func answer(word string, args url.Values, in review, request asked) map[string]any {
	switch word {
	case "deny":
		status := map[string]any{}
		for _, name := range []string{"message", "reason"} {
			if args.Has(name) {
				status[name] = args.Get(name)
			}
		}
		if code, err := strconv.Atoi(args.Get("code")); err == nil {
			status["code"] = code
		}
		if len(status) == 0 {
			return map[string]any{"allowed": false}
		}
		return map[string]any{"allowed": false, "status": status}
	case "patch":
		return patch(args.Get("op"))
	case "append":
		return appended(args.Get("annotation"), args.Get("value"), request)
	case "warn":
		return map[string]any{"allowed": true, "warnings": args["text"]}
	case "note":
		return map[string]any{"allowed": true, "auditAnnotations": map[string]string{args.Get("key"): args.Get("value")}}
	case "echo":
		return map[string]any{"allowed": false, "status": map[string]any{"message": told(in.Request)}}
	default:
		return map[string]any{"allowed": true}
	}
}

func patch(operations string) map[string]any {
	return map[string]any{"allowed": true, "patchType": "JSONPatch", "patch": base64.StdEncoding.EncodeToString([]byte(operations))}
}

// appended appends to an annotation. It tells how often and in which order it
// was asked.
func appended(annotation, value string, request asked) map[string]any {
	have := request.Object.Metadata.Annotations
	text, err := json.Marshal(have[annotation] + value)
	if err != nil {
		return map[string]any{"allowed": false}
	}
	if have == nil {
		return patch(fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{%q:%s}}]`, annotation, text))
	}
	return patch(fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/%s","value":%s}]`, strings.ReplaceAll(annotation, "/", "~1"), text))
}

// told is a request as text, without what differs each time.
func told(request json.RawMessage) string {
	var all map[string]any
	if err := json.Unmarshal(request, &all); err != nil {
		return err.Error()
	}
	delete(all, "uid")
	for _, name := range []string{"object", "oldObject"} {
		obj, _ := all[name].(map[string]any)
		m, _ := obj["metadata"].(map[string]any)
		for _, field := range []string{"uid", "creationTimestamp", "deletionTimestamp", "resourceVersion", "managedFields"} {
			if _, ok := m[field]; ok {
				m[field] = "some"
			}
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// spaces have no end.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
