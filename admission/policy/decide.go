package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celmetrics "k8s.io/apiserver/pkg/admission/plugin/policy/validating/metrics"
	"k8s.io/apiserver/pkg/warning"
)

// take does what a policy's decisions ask for: denies, warns, writes down.
func (r *review) take(p *bound[validating.Validator], b *binding, versioned *admission.VersionedAttributes, result validating.ValidateResult, notes notes) error {
	for i, d := range result.Decisions {
		switch d.Action {
		case validating.ActionAdmit:
			if d.Evaluation == validating.EvalError {
				celmetrics.Metrics.ObserveAdmission(r.ctx, d.Elapsed, p.name, b.name, validating.ErrorType(&d))
			}
		case validating.ActionDeny:
			for _, action := range b.actions {
				r.act(action, p, b, i, d, versioned)
			}
		default:
			return fmt.Errorf("unrecognized evaluation decision '%s' for ValidatingAdmissionPolicyBinding '%s' with ValidatingAdmissionPolicy '%s'", d.Action, b.name, p.name)
		}
	}
	for _, n := range result.AuditAnnotations {
		switch n.Action {
		case validating.AuditAnnotationActionPublish:
			notes.add(n.Key, n.Value[:min(len(n.Value), maxNote)])
		case validating.AuditAnnotationActionError:
			d := validating.PolicyDecision{Action: validating.ActionDeny, Evaluation: validating.EvalError, Message: n.Error, Elapsed: n.Elapsed}
			r.denials = append(r.denials, denial{p.name, b.name, d})
			celmetrics.Metrics.ObserveRejection(r.ctx, n.Elapsed, p.name, b.name, validating.ErrorType(&d))
		case validating.AuditAnnotationActionExclude, "":
		default:
			return fmt.Errorf("unsupported AuditAnnotation Action: %s", n.Action)
		}
	}
	return nil
}

func (r *review) act(action admissionregistrationv1.ValidationAction, p *bound[validating.Validator], b *binding, index int, d validating.PolicyDecision, versioned *admission.VersionedAttributes) {
	why := validating.ErrorType(&d)
	switch action {
	case admissionregistrationv1.Deny:
		r.denials = append(r.denials, denial{p.name, b.name, d})
		celmetrics.Metrics.ObserveRejection(r.ctx, d.Elapsed, p.name, b.name, why)
	case admissionregistrationv1.Audit:
		writeDown(p.name, b, index, d, versioned)
		celmetrics.Metrics.ObserveAudit(r.ctx, d.Elapsed, p.name, b.name, why)
	case admissionregistrationv1.Warn:
		warning.AddWarning(r.ctx, "", fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.name, b.name, d.Message))
		celmetrics.Metrics.ObserveWarn(r.ctx, d.Elapsed, p.name, b.name, why)
	}
}

// writeDown says in the audit log what a policy would have denied.
func writeDown(policy string, b *binding, index int, d validating.PolicyDecision, a admission.Attributes) {
	value, err := json.Marshal([]validating.ValidationFailureValue{{
		ExpressionIndex: index, Message: d.Message, ValidationActions: b.actions, Binding: b.name, Policy: policy,
	}})
	if err == nil {
		_ = a.AddAnnotation("validation.policy.admission.k8s.io/validation_failure", string(value)) // one that is there stays
	}
}

// refused is the answer to a request that a policy denies.
func refused(a admission.Attributes, why error, reason metav1.StatusReason) error {
	err := admission.NewForbidden(a, why)
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return err
	}
	if reason == "" {
		reason = metav1.StatusReasonInvalid
	}
	status.ErrStatus.Reason, status.ErrStatus.Code = reason, codeOf(reason)
	status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: why.Error()})
	return status
}

// codeOf is the HTTP status of the reasons that a policy may give.
func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	default:
		return http.StatusUnprocessableEntity
	}
}

// maxNote is how much of a policy's annotation is written down.
const maxNote = 10 << 10

// notes are what a policy wants written into the audit log, by key, each value
// once.
type notes map[string][]string

func (n notes) add(key, value string) {
	if !slices.Contains(n[key], value) {
		n[key] = append(n[key], value)
	}
}

func (n notes) publish(policy string, a admission.Attributes) {
	for key, values := range n {
		_ = a.AddAnnotation(policy+"/"+key, strings.Join(values, ", ")) // one that is there stays
	}
}
