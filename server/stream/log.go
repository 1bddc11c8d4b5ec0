package stream

import (
	"context"
	"errors"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"setpoint.dev/setpoint/server/lasting"
)

// maxComplaint bounds what is read of a node's error.
const maxComplaint = 50000

// Log answers with the log of a container of the pod name in the namespace of
// the request's context. It returns an error while nothing has been answered.
//
// Compat: a pod that has no node yet has no log, and no error either.
func (s *Streams) Log(w http.ResponseWriter, r *http.Request, name string, options *core.PodLogOptions) error {
	r, done := lasting.Request(s.ending, r)
	defer done()
	log, err := s.openLog(r.Context(), name, options)
	if err != nil {
		return err
	}
	if log == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	defer func() { _ = log.Close() }() // it is only read
	if wsstream.IsWebSocketRequest(r) {
		return wsstream.NewReader(log, true, wsstream.NewDefaultReaderProtocols()).Copy(lasting.Writer(s.ending, w), r)
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	if options.Follow {
		flush(w) // the client learns that there is a log before it has a line
		w = flusher{w}
	}
	_, _ = io.Copy(onlyWriter{w}, log) // either side has gone; the answer has begun
	return nil
}

// openLog asks the node of a pod for a log; nil when the pod has no node.
func (s *Streams) openLog(ctx context.Context, name string, options *core.PodLogOptions) (io.ReadCloser, error) {
	location, through, err := pod.LogLocation(ctx, getter{s.Objects, "pods"}, s, name, options)
	if err != nil || location == nil {
		return nil, err
	}
	asking, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	node := http.Client{Transport: through, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("redirects forbidden") }}
	answer, err := node.Do(asking)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusOK || answer.StatusCode > http.StatusPartialContent {
		return nil, complaint(answer, name)
	}
	return answer.Body, nil
}

// complaint is what a node says instead of a log, as an API error.
func complaint(answer *http.Response, name string) error {
	defer func() { _ = answer.Body.Close() }() // it is only read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxComplaint))
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	switch answer.StatusCode {
	case http.StatusInternalServerError:
		return apierrors.NewInternalError(errors.New(string(text)))
	case http.StatusBadRequest:
		return apierrors.NewBadRequest(string(text))
	default:
		return apierrors.NewGenericServerResponse(answer.StatusCode, "", core.Resource("pods/log"), name, string(text), 0, false)
	}
}

// flusher hands on each write at once.
type flusher struct{ http.ResponseWriter }

// Write implements io.Writer.
func (f flusher) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err == nil {
		flush(f.ResponseWriter)
	}
	return n, err
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() } // the client has gone

// onlyWriter hides that a ResponseWriter may read by itself, past what counts
// and flushes.
type onlyWriter struct{ io.Writer }
