package fair

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	work "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Judge says which schema a request is judged by here, and by upstream.
func (g *Gate) Judge(who user.Info, what *request.RequestInfo) (here, upstream string) {
	r := g.rules.Load()
	if r == nil {
		return "", ""
	}
	s, _ := r.classify(who, what)
	r.control.Handle(context.Background(), flowcontrol.RequestDigest{RequestInfo: what, User: who},
		func(s *flowcontrolv1.FlowSchema, _ *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			upstream = s.Name
		},
		func() work.WorkEstimate { return work.WorkEstimate{InitialSeats: 1} }, func(bool) {}, func() {})
	return s.name, upstream
}
