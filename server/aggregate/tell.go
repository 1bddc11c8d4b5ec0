package aggregate

import (
	"context"
	"net/http"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/authentication/user"
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
	path := "/apis/" + apiregistrationv1.SchemeGroupVersion.String() + "/apiservices/" + name
	return route.Send(ctx, a.API, route.Sent{As: server, Agent: manager, Method: method, Path: path, Media: "application/json", Body: body})
}
