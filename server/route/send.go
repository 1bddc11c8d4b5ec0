package route

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
)

// Sent is a request that the server sends to itself.
type Sent struct {
	// As is who asks, Agent the program that they ask with.
	As    user.Info
	Agent string

	Method, Path, Media string
	// Body is sent as JSON.
	Body any
}

// Send lets a handler of requests for resources carry out a request. An error is
// its answer as an API Status, where it is one.
func Send(ctx context.Context, to http.Handler, s Sent) error {
	body, err := json.Marshal(s.Body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(request.WithUser(ctx, s.As), s.Method, s.Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", s.Media)
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", s.Agent)
	what, err := Resolve(r)
	if err != nil {
		return err
	}
	answer := responsewriter.NewInMemoryResponseWriter()
	to.ServeHTTP(answer, r.WithContext(With(r.Context(), what)))
	if answer.RespCode() < http.StatusMultipleChoices {
		return nil
	}
	status := metav1.Status{}
	if err := json.Unmarshal(answer.Data(), &status); err != nil {
		return fmt.Errorf("%s %s: %d", s.Method, s.Path, answer.RespCode())
	}
	return &apierrors.StatusError{ErrStatus: status}
}
