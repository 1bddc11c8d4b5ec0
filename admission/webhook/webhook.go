// Package webhook asks servers elsewhere about requests, as the
// MutatingWebhookConfigurations and ValidatingWebhookConfigurations of the
// plane say.
//
// In come the attributes of a request; out goes an AdmissionReview to each
// webhook that the request is for, and what they answer is done: mutating ones
// are asked one after the other, each seeing what those before it have made of
// the object, and again when something changed the object after them and they
// want that; validating ones are asked at once. Configurations are read as of
// the last acknowledged write and kept until one changes.
//
// A webhook gets no more time than it or the request has, and its answer is
// read up to a bound, so that none can hold the server.
package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"

	"setpoint.dev/setpoint/admission/view"
)

// Names of the plugins.
const (
	MutatingName   = "MutatingAdmissionWebhook"
	ValidatingName = "ValidatingAdmissionWebhook"
)

// Config is what webhooks are called with.
type Config struct {
	Objects view.Objects
	// Services finds where a webhook that is a service is reached; nil takes
	// its name in the cluster's DNS.
	Services webhookutil.ServiceResolver
	// Authorizer answers what match conditions ask.
	Authorizer authorizer.Authorizer
	// Failed hears of a call that failed, nil of nothing. It must not wait.
	Failed func(Failure)
}

// Failure is a call of a webhook that failed.
type Failure struct {
	// Configuration is the kind and name of the webhook's configuration.
	Configuration struct{ Kind, Name string }
	Webhook       string
	Client        admissionregistrationv1.WebhookClientConfig
	// Refused says that the request was refused because of it.
	Refused    bool
	Attributes admission.Attributes
	Err        error
}

// Callers call webhooks. They are shared by both plugins, as connections are.
type Callers struct {
	Config
	clients webhookutil.ClientManager
}

// New returns callers.
func New(cfg Config) (*Callers, error) {
	clients, err := webhookutil.NewClientManager(
		[]schema.GroupVersion{admissionv1beta1.SchemeGroupVersion, admissionv1.SchemeGroupVersion},
		admissionv1beta1.AddToScheme, admissionv1.AddToScheme,
	)
	if err != nil {
		return nil, err
	}
	known, err := webhookutil.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		return nil, err
	}
	clients.SetAuthenticationInfoResolver(bounded{known})
	services := cfg.Services
	if services == nil {
		services = webhookutil.NewDefaultServiceResolver()
	}
	clients.SetServiceResolver(services)
	return &Callers{Config: cfg, clients: clients}, nil
}

// wants says how a hook wants to be called for the request, nil when it is not
// for it.
func (c *Callers) wants(ctx context.Context, h *hook, a admission.Attributes, o admission.ObjectInterfaces, versions generic.VersionedAttributeAccessor) (*generic.WebhookInvocation, error) {
	as, err := h.matcher.Match(ctx, c.Objects, a, o)
	if as == nil || err != nil {
		return nil, err
	}
	if len(h.conditions.Of) > 0 {
		versioned, err := versions.VersionedAttribute(as.Kind)
		if err != nil {
			return nil, err
		}
		if matches, err := h.conditions.Match(ctx, versioned, c.Authorizer); !matches || err != nil {
			return nil, err
		}
	}
	return &generic.WebhookInvocation{Webhook: h.accessor, Resource: as.Resource, Subresource: a.GetSubresource(), Kind: as.Kind}, nil
}

// settle is what the outcome of a call means for the request: nil to go on, or
// the answer. It counts the call. A call that failed, of a webhook whose
// failures are to be ignored, has failed open.
func (c *Callers) settle(ctx context.Context, h *hook, a *admission.VersionedAttributes, begun time.Time, err error) (failedOpen bool, answer error) {
	metrics, operation, took := admissionmetrics.Metrics, string(a.GetOperation()), time.Since(begun)
	observe := func(rejected bool, code int) {
		metrics.ObserveWebhook(ctx, h.name, took, rejected, a.Attributes, h.step, code)
	}
	reject := func(why admissionmetrics.WebhookRejectionErrorType, code int) {
		metrics.ObserveWebhookRejection(ctx, h.name, h.step, operation, why, code)
	}
	if err == nil {
		observe(false, 200)
		return false, nil
	}
	if refused, ok := errors.AsType[*webhookutil.ErrWebhookRejection](err); ok {
		code := int(refused.Status.ErrStatus.Code)
		reject(admissionmetrics.WebhookRejectionNoError, code)
		observe(true, code)
		return false, refused.Status
	}
	failed, ok := errors.AsType[*webhookutil.ErrCallingWebhook](err)
	if !ok {
		reject(admissionmetrics.WebhookRejectionAPIServerInternalError, 0)
		observe(true, 0)
		return false, err
	}
	code := int(failed.Status.ErrStatus.Code)
	gone := errors.Is(failed.Reason, context.Canceled) // by the client, which is nobody's failure
	if !gone {
		c.tell(h, a, failed)
	}
	observe(!h.ignores, code)
	if h.ignores {
		if !gone {
			metrics.ObserveWebhookFailOpen(ctx, h.name, h.step)
		}
		return !gone, nil
	}
	if !gone {
		reject(admissionmetrics.WebhookRejectionCallingWebhookError, code)
	}
	return false, apierrors.NewInternalError(failed)
}

// tell passes a failure on.
func (c *Callers) tell(h *hook, a *admission.VersionedAttributes, err error) {
	if c.Failed == nil {
		return
	}
	f := Failure{Webhook: h.name, Client: h.accessor.GetClientConfig(), Refused: !h.ignores, Attributes: a.Attributes, Err: err}
	f.Configuration.Kind, f.Configuration.Name = h.kind, h.accessor.GetConfigurationName()
	c.Failed(f)
}

// timedOut is the answer to a request whose time is over.
func timedOut(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}

// annotate adds to the request's entry in the audit log.
func annotate(a *admission.VersionedAttributes, prefix string, round, index int, value string) {
	// What does not fit is not written down; the request goes on.
	_ = a.AddAnnotation(fmt.Sprintf("%sround_%d_index_%d", prefix, round, index), value)
}
