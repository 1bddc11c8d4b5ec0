package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"setpoint.dev/setpoint/admission/match"
)

// Validating is the plugin that asks validating webhooks.
type Validating struct {
	*admission.Handler
	callers *Callers
	source  *source
}

// NewValidating returns the plugin.
func NewValidating(c *Callers) *Validating {
	return &Validating{admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), c, validatingSource()}
}

// question is a webhook that is to be asked.
type question struct {
	hook       *hook
	invocation *generic.WebhookInvocation
	attributes *admission.VersionedAttributes
}

// Validate implements admission.ValidationInterface. All webhooks that the
// request is for are asked at once; the first, in their order, to refuse it is
// the answer.
func (v *Validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if match.Exempt(a) {
		return nil
	}
	hooks, err := v.source.hooks(ctx, v.callers.Objects)
	if err != nil || len(hooks) == 0 {
		return err
	}
	questions, err := v.questions(ctx, hooks, a, o)
	if err != nil || len(questions) == 0 {
		return err
	}
	if err := timedOut(ctx); err != nil {
		return err
	}
	answers := make([]error, len(questions))
	var asked sync.WaitGroup
	for i, q := range questions {
		asked.Go(func() { answers[i] = v.ask(ctx, q, i) })
	}
	asked.Wait()
	for _, err := range answers {
		if err != nil {
			return err
		}
	}
	return nil
}

// questions are those that the request raises. Versions are converted here, so
// that asking only reads them.
func (v *Validating) questions(ctx context.Context, hooks []*hook, a admission.Attributes, o admission.ObjectInterfaces) ([]question, error) {
	versions := match.NewVersions(a, o)
	var questions []question
	for _, h := range hooks {
		invocation, err := v.callers.wants(ctx, h, a, o, versions)
		if err != nil {
			return nil, err
		}
		if invocation == nil {
			continue
		}
		attributes, err := versions.VersionedAttribute(invocation.Kind)
		if err != nil {
			return nil, err
		}
		questions = append(questions, question{h, invocation, attributes})
	}
	return questions, nil
}

func (v *Validating) ask(ctx context.Context, q question, index int) (answer error) {
	defer func() {
		if r := recover(); r != nil && !q.hook.ignores {
			answer = fmt.Errorf("ValidatingAdmissionWebhook/%s has panicked: %v", q.hook.name, r)
		}
	}()
	begun := time.Now()
	_, err := v.callers.call(ctx, q.hook, q.invocation, q.attributes, false)
	failedOpen, err := v.callers.settle(ctx, q.hook, q.attributes, begun, err)
	if failedOpen {
		annotate(q.attributes, validating.ValidatingAuditAnnotationFailedOpenKeyPrefix, 0, index, q.hook.name)
	}
	return err
}
