package admission

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
)

// The steps of admission, as metrics call them.
const (
	stepAdmit    = "admit"
	stepValidate = "validate"
)

// observeStep counts a step of a request that has begun then and ended with err.
func observeStep(ctx context.Context, a admission.Attributes, step string, begun time.Time, err *error) {
	admissionmetrics.Metrics.ObserveAdmissionStep(ctx, time.Since(begun), *err != nil, a, step)
}

// observe counts what a plugin had to do with it. Those that are for other
// resources are not counted.
func (p running) observe(ctx context.Context, a admission.Attributes, step string, begun time.Time, err *error) {
	admissionmetrics.Metrics.ObserveAdmissionController(ctx, time.Since(begun), *err != nil, a, step, p.name)
}
