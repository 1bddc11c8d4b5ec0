package webhook

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"

	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/reinvoke"
	"setpoint.dev/setpoint/admission/steps"
)

// Mutating is the plugin that asks mutating webhooks.
type Mutating struct {
	*admission.Handler
	callers *Callers
	source  *source
}

// NewMutating returns the plugin.
func NewMutating(c *Callers) *Mutating {
	return &Mutating{admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), c, mutatingSource()}
}

// Admit implements admission.MutationInterface. Webhooks are asked in their
// order, each about the object as those before it have left it.
func (m *Mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if match.Exempt(a) {
		return nil
	}
	hooks, err := m.source.hooks(ctx, m.callers.Objects)
	if err != nil || len(hooks) == 0 {
		return err
	}
	r := &round{
		callers: m.callers, attributes: a, interfaces: o,
		rounds: reinvoke.Begin[string](a, MutatingName), versions: match.NewCurrent(a, o),
	}
	defer func() { r.rounds.End(a.GetObject()) }()
	for i, h := range hooks {
		if err := r.ask(ctx, h, i); err != nil {
			return err
		}
	}
	return r.versions.Finish()
}

// round is one time of asking all webhooks about a request.
type round struct {
	callers    *Callers
	attributes admission.Attributes
	interfaces admission.ObjectInterfaces
	rounds     *reinvoke.Rounds[string]
	versions   *match.Current
}

// ask asks one webhook if the request is for it. An error is the answer to the
// request.
func (r *round) ask(ctx context.Context, h *hook, index int) error {
	about := r.attributes
	if now := r.versions.Now(); now != nil {
		about = now
	}
	invocation, err := r.callers.wants(ctx, h, about, r.interfaces, r.versions)
	if invocation == nil || err != nil {
		return err
	}
	again := h.reinvocation == admissionregistrationv1.IfNeededReinvocationPolicy
	if r.rounds.Skips(h.accessor.GetUID(), again) {
		return nil
	}
	versioned, err := r.versions.VersionedAttribute(invocation.Kind)
	if err != nil {
		return err
	}
	number := 0
	if r.rounds.Second() {
		number = 1
	}
	begun := time.Now()
	changed, err := r.patch(ctx, h, invocation, versioned, number, index)
	failedOpen, err := r.callers.settle(ctx, h, versioned, begun, err)
	r.rounds.Asked(h.accessor.GetUID(), changed, again)
	if err != nil {
		return err
	}
	if changed {
		steps.Add(ctx, fmt.Sprintf("%s/%s/%s", MutatingName, h.accessor.GetConfigurationName(), h.name))
	}
	if failedOpen {
		annotate(versioned, mutating.MutationAuditAnnotationFailedOpenKeyPrefix, number, index, h.name)
	}
	return timedOut(ctx)
}

// patch asks the webhook and does to the object what it answers.
func (r *round) patch(ctx context.Context, h *hook, invocation *generic.WebhookInvocation, a *admission.VersionedAttributes, number, index int) (changed bool, err error) {
	defer func() { h.recordMutation(a, number, index, changed) }()
	result, err := r.callers.call(ctx, h, invocation, a, true)
	if err != nil || len(result.Patch) == 0 {
		return false, err
	}
	patched, operations, err := h.apply(result, a, r.interfaces)
	if err != nil || patched == nil {
		return false, err
	}
	h.recordPatch(a, number, index, operations)
	changed = !same(a.VersionedObject, patched)
	a.Dirty, a.VersionedObject = true, patched
	r.interfaces.GetObjectDefaulter().Default(patched)
	return changed, nil
}
