package webhook

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	webhookrequest "k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/admission/settled"
	"setpoint.dev/setpoint/api/initializers"
)

// call asks a webhook and returns what it answers when it allows the request.
// An ErrWebhookRejection says that it does not; an ErrCallingWebhook that it
// could not be asked.
func (c *Callers) call(ctx context.Context, h *hook, invocation *generic.WebhookInvocation, a *admission.VersionedAttributes, mutating bool) (*webhookrequest.AdmissionResponse, error) {
	if err := h.allowsDryRun(a); err != nil {
		return nil, err
	}
	sees, err := shown(a)
	if err != nil {
		return nil, err
	}
	uid, request, response, err := webhookrequest.CreateAdmissionObjects(sees, invocation)
	if err != nil {
		return nil, h.failed(fmt.Errorf("could not create admission objects: %w", err), apierrors.NewBadRequest("error creating admission objects"))
	}
	if err := settled.Await(ctx); err != nil {
		return nil, h.failed(fmt.Errorf("the object was not stored that is to be changed: %w", err), apierrors.NewInternalError(err))
	}
	if err := c.post(ctx, h, request, response); err != nil {
		return nil, err
	}
	result, err := webhookrequest.VerifyAdmissionResponse(uid, mutating, response)
	if err != nil {
		return nil, h.failed(fmt.Errorf("received invalid webhook response: %w", err), apierrors.NewServiceUnavailable("error validating webhook response"))
	}
	for key, value := range result.AuditAnnotations {
		// A key that is none is not written down; the request goes on.
		_ = a.AddAnnotation(h.name+"/"+key, value)
	}
	for _, text := range result.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	if !result.Allowed {
		return nil, &webhookutil.ErrWebhookRejection{Status: webhookerrors.ToStatusErr(h.name, result.Result)}
	}
	return result, nil
}

// shown is a request as webhooks see it: with what its objects wait for, where
// clients have it.
func shown(a *admission.VersionedAttributes) (*admission.VersionedAttributes, error) {
	obj, err := initializers.Shown(a.VersionedObject)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	old, err := initializers.Shown(a.VersionedOldObject)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	sees := *a
	sees.VersionedObject, sees.VersionedOldObject = obj, old
	return &sees, nil
}

// allowsDryRun refuses to call a webhook with side effects for a request that
// must have none.
func (h *hook) allowsDryRun(a *admission.VersionedAttributes) error {
	if !a.IsDryRun() {
		return nil
	}
	effects := h.accessor.GetSideEffects()
	switch {
	case effects == nil:
		return h.failed(errors.New("Webhook SideEffects is nil"), apierrors.NewBadRequest("Webhook SideEffects is nil")) //nolint:staticcheck // clients know this text
	case *effects == admissionregistrationv1.SideEffectClassNone || *effects == admissionregistrationv1.SideEffectClassNoneOnDryRun:
		return nil
	}
	return webhookerrors.NewDryRunUnsupportedErr(h.name)
}

// failed says that the webhook could not be asked.
func (h *hook) failed(why error, status *apierrors.StatusError) error {
	return &webhookutil.ErrCallingWebhook{WebhookName: h.name, Reason: why, Status: status}
}

// post sends the review within the webhook's time and reads the answer.
func (c *Callers) post(ctx context.Context, h *hook, request, response runtime.Object) error {
	client, err := h.accessor.GetRESTClient(&c.clients)
	if err != nil {
		return h.failed(fmt.Errorf("could not get REST client: %w", err), apierrors.NewInternalError(err))
	}
	if seconds := h.accessor.GetTimeoutSeconds(); seconds != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*seconds)*time.Second)
		defer cancel()
	}
	post := client.Post().Body(request)
	if end, ok := ctx.Deadline(); ok {
		if left := time.Until(end); left > 0 {
			post.Timeout(upToSeconds(left)) // the webhook is told
		}
	}
	err = post.Do(ctx).Into(response)
	if err == nil {
		return nil
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		status = apierrors.NewServiceUnavailable("error calling webhook")
	}
	return h.failed(fmt.Errorf("failed to call webhook: %w", err), status)
}

// upToSeconds is the next whole second.
func upToSeconds(d time.Duration) time.Duration {
	whole := d.Truncate(time.Second)
	if whole != d {
		whole += time.Second
	}
	return whole
}
