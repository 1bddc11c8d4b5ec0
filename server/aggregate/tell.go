package aggregate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/responsewriter"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"setpoint.dev/setpoint/server/route"
)

// server is who this server is when it acts by itself, and manager the name
// under which it owns fields.
var server = &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}

const manager = "kube-apiserver"

// tell writes a condition into the status of an APIService unless it is there.
// The error is an API Status: a conflict when the object has changed since.
func (a *Aggregator) tell(ctx context.Context, s *apiregistrationv1.APIService, c apiregistrationv1.APIServiceCondition) error {
	told := s.DeepCopy()
	helper.SetAPIServiceCondition(told, c)
	if apiequality.Semantic.DeepEqual(s.Status, told.Status) {
		return nil
	}
	return a.write(ctx, http.MethodPut, s.Name+"/status", told)
}

// write sends a request about an APIService to this server's own API.
func (a *Aggregator) write(ctx context.Context, method, name string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	sent, err := json.Marshal(body)
	if err != nil {
		return err
	}
	path := "/apis/" + apiregistrationv1.SchemeGroupVersion.String() + "/apiservices/" + name
	r, err := http.NewRequestWithContext(request.WithUser(ctx, server), method, path, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", manager)
	what, err := route.Resolve(r)
	if err != nil {
		return err
	}
	answer := responsewriter.NewInMemoryResponseWriter()
	a.API.ServeHTTP(answer, r.WithContext(route.With(r.Context(), what)))
	if answer.RespCode() < http.StatusMultipleChoices {
		return nil
	}
	status := metav1.Status{}
	if err := json.Unmarshal(answer.Data(), &status); err != nil {
		return fmt.Errorf("%s %s: %d", method, path, answer.RespCode())
	}
	return &apierrors.StatusError{ErrStatus: status}
}
