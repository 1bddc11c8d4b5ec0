package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	caching "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/admission/expression"
	"setpoint.dev/setpoint/admission/match"
)

// Validating is the plugin that carries out ValidatingAdmissionPolicies.
type Validating struct {
	*admission.Handler
	Config
	source *source[validating.Validator]
}

// NewValidating returns the plugin.
func NewValidating(cfg Config) *Validating {
	return &Validating{admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), cfg, validatingSource()}
}

func validatingSource() *source[validating.Validator] {
	version := admissionregistrationv1.SchemeGroupVersion
	return &source[validating.Validator]{
		policies: version.WithResource("validatingadmissionpolicies"), bindings: version.WithResource("validatingadmissionpolicybindings"),
		read: func(obj runtime.Object) (*bound[validating.Validator], error) {
			p, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicy)
			if !ok {
				return nil, fmt.Errorf("unexpected policy %T", obj)
			}
			b := newBound[validating.Validator](p.Name, p.Spec.FailurePolicy, p.Spec.ParamKind, p.Spec.MatchConstraints)
			b.compiled = sync.OnceValue(func() validating.Validator { return compileValidating(p) })
			return b, nil
		},
		bind: func(obj runtime.Object) (string, binding, error) {
			b, ok := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
			if !ok {
				return "", binding{}, fmt.Errorf("unexpected binding %T", obj)
			}
			made := newBinding(b.Name, b.Spec.ParamRef, b.Spec.MatchResources)
			made.actions = b.Spec.ValidationActions
			return b.Spec.PolicyName, made, nil
		},
	}
}

// compileValidating compiles a policy's expressions. What does not compile is
// an error of the requests that it would have to decide.
func compileValidating(p *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	spec := &p.Spec
	uses := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	compiler, err := expression.WithVariables(variables(spec.Variables), uses)
	if err != nil {
		return validating.NewValidator(nil, nil, nil, nil, spec.FailurePolicy, err)
	}
	validations, messages := make([]cel.ExpressionAccessor, len(spec.Validations)), make([]cel.ExpressionAccessor, len(spec.Validations))
	for i, v := range spec.Validations {
		validations[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason}
		if v.MessageExpression != "" {
			messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
	}
	annotations := make([]cel.ExpressionAccessor, len(spec.AuditAnnotations))
	for i, a := range spec.AuditAnnotations {
		annotations[i] = &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression}
	}
	// Compat: a message cannot ask about users.
	says := cel.OptionalVariableDeclarations{HasParams: uses.HasParams}
	return validating.NewValidator(
		compiler.Conditions(validations, uses), conditions(compiler, spec.MatchConditions, uses, spec.FailurePolicy, p.Name),
		compiler.Conditions(annotations, uses), compiler.Conditions(messages, says), spec.FailurePolicy, nil,
	)
}

func variables(of []admissionregistrationv1.Variable) []cel.NamedExpressionAccessor {
	named := make([]cel.NamedExpressionAccessor, len(of))
	for i, v := range of {
		named[i] = &validating.Variable{Name: v.Name, Expression: v.Expression}
	}
	return named
}

// conditions are a policy's match conditions; nil where it has none. Compat:
// the metrics of both kinds of policy call the step validate.
func conditions(c *expression.Compiler, of []admissionregistrationv1.MatchCondition, uses cel.OptionalVariableDeclarations, failure *admissionregistrationv1.FailurePolicyType, name string) matchconditions.Matcher {
	if len(of) == 0 {
		return nil
	}
	expressions := make([]cel.ExpressionAccessor, len(of))
	for i := range of {
		expressions[i] = (*matchconditions.MatchCondition)(&of[i])
	}
	return matchconditions.NewMatcher(c.Conditions(expressions, uses), failure, "policy", "validate", name)
}

// Validate implements admission.ValidationInterface.
func (v *Validating) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if exempt(a) {
		return nil
	}
	policies, err := v.source.all(ctx, v.Objects)
	if err != nil || len(policies) == 0 {
		return err
	}
	r := &review{
		Config: v.Config, ctx: expression.Share(ctx), attributes: a, interfaces: o,
		versions: match.NewVersions(a, o), may: caching.NewCachingAuthorizer(v.Authorizer),
	}
	for _, p := range policies {
		if err := r.ask(p); err != nil {
			return err
		}
	}
	return r.answer()
}

// review is a request that policies decide about.
type review struct {
	Config
	ctx        context.Context
	attributes admission.Attributes
	interfaces admission.ObjectInterfaces
	versions   *match.Versions
	may        authorizer.Authorizer

	namespace *corev1.Namespace
	looked    bool // for the namespace
	denials   []denial
}

// denial is a decision against the request.
type denial struct {
	policy, binding string // binding may be ""
	validating.PolicyDecision
}

// misconfigured denies the request, unless failures of the policy are to be
// ignored.
func (r *review) misconfigured(p *bound[validating.Validator], binding string, err error) {
	what := "policy"
	if binding != "" {
		what = "binding"
	}
	message := fmt.Sprintf("failed to configure %s: %v", what, err)
	switch p.failure {
	case admissionregistrationv1.Ignore:
		return
	case admissionregistrationv1.Fail:
	default:
		message = fmt.Sprintf("unrecognized failure policy: '%v'", p.failure)
	}
	r.denials = append(r.denials, denial{p.name, binding, validating.PolicyDecision{Action: validating.ActionDeny, Message: message}})
}

// ask asks one policy. An error is the answer to the request.
func (r *review) ask(p *bound[validating.Validator]) error {
	as, err := p.matches(r.ctx, r.Objects, r.attributes, r.interfaces)
	if as == nil && err == nil {
		return nil
	}
	var from *paramSource
	if err == nil {
		from, err = r.paramsOf(p.param)
	}
	if err != nil {
		r.misconfigured(p, "", err)
		return nil
	}
	notes := notes{}
	for i := range p.bindings {
		if err := r.askBound(p, &p.bindings[i], as, from, notes); err != nil {
			return err
		}
	}
	notes.publish(p.name, r.attributes)
	return nil
}

func (r *review) askBound(p *bound[validating.Validator], b *binding, as *match.As, from *paramSource, notes notes) error {
	matches, err := b.matches(r.ctx, r.Objects, r.attributes, r.interfaces)
	if !matches && err == nil {
		return nil
	}
	var params []runtime.Object
	if err == nil {
		params, err = r.params(r.ctx, from, b.params, r.attributes.GetNamespace())
	}
	var versioned *admission.VersionedAttributes
	if err == nil && len(params) > 0 {
		if versioned, err = r.versions.VersionedAttribute(as.Kind); err != nil {
			err = fmt.Errorf("failed to convert object version: %w", err)
		}
	}
	if err != nil {
		r.misconfigured(p, b.name, err)
		return nil
	}
	if err := r.lookForNamespace(); err != nil {
		return err
	}
	for _, param := range params {
		result := p.compiled().Validate(r.ctx, as.Resource, versioned, param, r.namespace, celconfig.RuntimeCELCostBudget, r.may)
		if err := r.take(p, b, versioned, result, notes); err != nil {
			return err
		}
	}
	return nil
}

func (r *review) lookForNamespace() (err error) {
	if !r.looked {
		r.namespace, err = match.Namespace(r.ctx, r.Objects, r.attributes)
		r.looked = err == nil
	}
	return err
}

// answer is what all decisions come to: the first denial.
func (r *review) answer() error {
	if len(r.denials) == 0 {
		return nil
	}
	d := r.denials[0]
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", d.policy, d.Message)
	if d.binding != "" {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", d.policy, d.binding, d.Message)
	}
	return refused(r.attributes, errors.New(message), d.Reason)
}
