package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	caching "k8s.io/apiserver/pkg/admission/plugin/authorizer"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	celmetrics "k8s.io/apiserver/pkg/admission/plugin/policy/mutating/metrics"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/admission/expression"
	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/reinvoke"
	"setpoint.dev/setpoint/admission/steps"
	"setpoint.dev/setpoint/api/initializers"
)

// Mutating is the plugin that carries out MutatingAdmissionPolicies.
type Mutating struct {
	*admission.Handler
	Config
	source *source[mutator]
}

// NewMutating returns the plugin.
func NewMutating(cfg Config) *Mutating {
	return &Mutating{admission.NewHandler(admission.Connect, admission.Create, admission.Delete, admission.Update), cfg, mutatingSource()}
}

// mutator is a policy's compiled expressions.
type mutator struct {
	err        error
	conditions matchconditions.Matcher // nil where there are none
	patchers   []patch.Patcher
	again      bool
}

func mutatingSource() *source[mutator] {
	version := admissionregistrationv1.SchemeGroupVersion
	return &source[mutator]{
		policies: version.WithResource("mutatingadmissionpolicies"), bindings: version.WithResource("mutatingadmissionpolicybindings"),
		read: func(obj runtime.Object) (*bound[mutator], error) {
			p, ok := obj.(*admissionregistrationv1.MutatingAdmissionPolicy)
			if !ok {
				return nil, fmt.Errorf("unexpected policy %T", obj)
			}
			b := newBound[mutator](p.Name, p.Spec.FailurePolicy, p.Spec.ParamKind, p.Spec.MatchConstraints)
			b.compiled = sync.OnceValue(func() mutator { return compileMutating(p) })
			return b, nil
		},
		bind: func(obj runtime.Object) (string, binding, error) {
			b, ok := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
			if !ok {
				return "", binding{}, fmt.Errorf("unexpected binding %T", obj)
			}
			return b.Spec.PolicyName, newBinding(b.Name, b.Spec.ParamRef, b.Spec.MatchResources), nil
		},
	}
}

// compileMutating compiles a policy's expressions. What does not compile is an
// error of the requests that it would have to change.
func compileMutating(p *admissionregistrationv1.MutatingAdmissionPolicy) mutator {
	spec := &p.Spec
	uses := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	compiler, err := expression.WithVariables(variables(spec.Variables), uses)
	if err != nil {
		return mutator{err: err}
	}
	m := mutator{
		conditions: conditions(compiler, spec.MatchConditions, uses, spec.FailurePolicy, p.Name),
		again:      spec.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy,
	}
	uses.HasPatchTypes = true
	for _, change := range spec.Mutations {
		switch {
		case change.PatchType == admissionregistrationv1.PatchTypeJSONPatch && change.JSONPatch != nil:
			m.patchers = append(m.patchers, patch.NewJSONPatcher(compiler.Mutation(&patch.JSONPatchCondition{Expression: change.JSONPatch.Expression}, uses)))
		case change.PatchType == admissionregistrationv1.PatchTypeApplyConfiguration && change.ApplyConfiguration != nil:
			m.patchers = append(m.patchers, patch.NewApplyConfigurationPatcher(compiler.Mutation(&patch.ApplyConfigurationCondition{Expression: change.ApplyConfiguration.Expression}, uses)))
		}
	}
	return m
}

// Admit implements admission.MutationInterface. Which policies the request is
// for is decided of the object as it comes; each then sees what those before it
// have made of it.
func (m *Mutating) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if exempt(a) {
		return nil
	}
	policies, err := m.source.all(ctx, m.Objects)
	if err != nil || len(policies) == 0 {
		return err
	}
	c := &change{
		Config: m.Config, ctx: expression.Share(ctx), attributes: a, interfaces: o,
		versions: match.NewCurrent(a, o), may: caching.NewCachingAuthorizer(m.Authorizer),
	}
	turns := c.turns(policies)
	if len(turns) > 0 {
		c.rounds = reinvoke.Begin[whose](a, MutatingName)
		err = c.take(turns)
		c.rounds.End(a.GetObject())
	}
	if err != nil {
		return err
	}
	return c.answer()
}

// change is a request whose object policies change.
type change struct {
	Config
	ctx        context.Context
	attributes admission.Attributes
	interfaces admission.ObjectInterfaces
	versions   *match.Current
	rounds     *reinvoke.Rounds[whose]
	may        authorizer.Authorizer
	namespace  *corev1.Namespace
	failures   []failure
}

// turn is a policy's turn to change the object, with one parameter of one
// binding.
type turn struct {
	policy  *bound[mutator]
	binding *binding
	as      match.As
	param   runtime.Object
}

// whose turn it is.
type whose struct{ policy, binding, namespace, param string }

func (t *turn) whose() (whose, error) {
	w := whose{policy: t.policy.name, binding: t.binding.name}
	if t.param == nil {
		return w, nil
	}
	m, err := meta.Accessor(t.param)
	if err != nil {
		return w, apierrors.NewInternalError(err)
	}
	w.namespace, w.param = m.GetNamespace(), m.GetName()
	return w, nil
}

// failure is why a policy did not do what it should.
type failure struct {
	policy, binding string // binding may be ""
	err             error
	reason          metav1.StatusReason
}

func (f failure) message() string {
	if f.binding == "" {
		return fmt.Sprintf("policy %q denied request: %v", f.policy, f.err)
	}
	return fmt.Sprintf("policy '%s' with binding '%s' denied request: %v", f.policy, f.binding, f.err)
}

// failed remembers a failure, unless those of the policy are to be ignored.
func (c *change) failed(p *bound[mutator], binding string, err error, reason metav1.StatusReason) {
	if p.failure != admissionregistrationv1.Ignore {
		c.failures = append(c.failures, failure{p.name, binding, err, reason})
	}
}

// turns are those that the request is for.
func (c *change) turns(policies []*bound[mutator]) []turn {
	var turns []turn
	for _, p := range policies {
		as, err := p.matches(c.ctx, c.Objects, c.attributes, c.interfaces)
		if as == nil && err == nil {
			continue
		}
		var from *paramSource
		if err == nil {
			from, err = c.paramsOf(p.param)
		}
		if err != nil {
			c.failed(p, "", fmt.Errorf("failed to configure policy: %w", err), "")
			continue
		}
		for i := range p.bindings {
			b := &p.bindings[i]
			params, err := c.paramsFor(b, from)
			if err != nil {
				c.failed(p, b.name, fmt.Errorf("failed to configure binding: %w", err), "")
			}
			for _, param := range params {
				turns = append(turns, turn{p, b, *as, param})
			}
		}
	}
	return turns
}

// paramsFor are a binding's parameters; none when it is not for the request.
func (c *change) paramsFor(b *binding, from *paramSource) ([]runtime.Object, error) {
	matches, err := b.matches(c.ctx, c.Objects, c.attributes, c.interfaces)
	if !matches || err != nil {
		return nil, err
	}
	return c.params(c.ctx, from, b.params, c.attributes.GetNamespace())
}

// take lets each take their turn, and gives the request's own object what
// comes of it.
func (c *change) take(turns []turn) (err error) {
	if c.namespace, err = match.Namespace(c.ctx, c.Objects, c.attributes); err != nil {
		return err
	}
	for i := range turns {
		if err := c.takeOne(&turns[i]); err != nil {
			return err
		}
	}
	if err := c.versions.Finish(); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to convert object: %w", err))
	}
	return nil
}

func (c *change) takeOne(t *turn) error {
	compiled := t.policy.compiled()
	if compiled.err != nil {
		c.failed(t.policy, t.binding.name, compiled.err, metav1.StatusReasonInvalid)
		return nil //nolint:nilerr // failed has it
	}
	versioned, err := c.versions.VersionedAttribute(t.as.Kind)
	if err != nil {
		return err
	}
	if compiled.conditions != nil {
		result := compiled.conditions.Match(c.ctx, versioned, t.param, c.may)
		if result.Error != nil {
			c.failed(t.policy, t.binding.name, result.Error, metav1.StatusReasonInvalid)
		}
		if result.Error != nil || !result.Matches {
			return nil //nolint:nilerr // failed has it
		}
	}
	who, err := t.whose()
	if err != nil || c.rounds.Skips(who, compiled.again) {
		return err
	}
	before := versioned.VersionedObject
	if before != nil {
		for _, patcher := range compiled.patchers {
			if err := c.patch(t, patcher, versioned); err != nil {
				return err
			}
		}
	}
	changed := !apiequality.Semantic.DeepEqual(before, versioned.VersionedObject)
	if changed {
		steps.Add(c.ctx, fmt.Sprintf("%s/%s/%s", MutatingName, t.policy.name, t.binding.name))
	}
	c.rounds.Asked(who, changed, compiled.again)
	return nil
}

// patch makes one change. An error is the answer to the request, whatever the
// policy says of failures.
func (c *change) patch(t *turn, patcher patch.Patcher, a *admission.VersionedAttributes) error {
	begun := time.Now()
	patched, err := c.patched(t, patcher, a)
	took := time.Since(begun)
	if err == nil {
		celmetrics.Metrics.ObserveAdmission(c.ctx, took, t.policy.name, t.binding.name, celmetrics.MutationNoError)
		a.Dirty, a.VersionedObject = true, patched
		return nil
	}
	celmetrics.Metrics.ObserveRejection(c.ctx, took, t.policy.name, t.binding.name, mutating.ErrorType(err))
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return status
	}
	c.failed(t.policy, t.binding.name, err, metav1.StatusReasonInvalid)
	return nil
}

// typed is what the interfaces of a kind also tell.
type typed interface {
	TypeConverter() (managedfields.TypeConverter, error)
}

func (c *change) patched(t *turn, patcher patch.Patcher, a *admission.VersionedAttributes) (runtime.Object, error) {
	kind, ok := c.interfaces.(typed)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("nothing is known about the fields of %v", a.VersionedKind))
	}
	types, err := kind.TypeConverter()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	patched, err := patcher.Patch(c.ctx, patch.Request{
		MatchedResource: t.as.Resource, VersionedAttributes: c.bare(a), ObjectInterfaces: c.interfaces, Namespace: c.namespace, TypeConverter: types,
		OptionalVariables: cel.OptionalVariableBindings{VersionedParams: t.param, Authorizer: c.may},
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	if _, untyped := a.VersionedObject.(*unstructured.Unstructured); !untyped {
		if patched, err = c.interfaces.GetObjectConvertor().ConvertToVersion(patched, a.VersionedKind.GroupVersion()); err != nil {
			return nil, err
		}
	}
	c.interfaces.GetObjectDefaulter().Default(patched)
	initializers.Detach(patched)
	initializers.CarriedBy(a.VersionedObject).Attach(patched)
	return patched, nil
}

// bare is the request without what its object waits for: expressions see it, and
// nothing that they answer can change it.
func (c *change) bare(a *admission.VersionedAttributes) *admission.VersionedAttributes {
	obj := initializers.Bare(a.VersionedObject)
	if obj == a.VersionedObject {
		return a
	}
	expression.SeenAs(c.ctx, obj, a.VersionedObject)
	without := *a
	without.VersionedObject = obj
	return &without
}

// answer is what all failures come to. Compat: the reason may say Invalid, the
// code says Forbidden.
func (c *change) answer() error {
	if len(c.failures) == 0 {
		return nil
	}
	err := admission.NewForbidden(c.attributes, errors.New("admission request denied by policy"))
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return err
	}
	first := c.failures[0]
	status.ErrStatus.Message = first.message()
	if first.reason != "" {
		status.ErrStatus.Reason = first.reason
	}
	for _, f := range c.failures {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: f.message()})
	}
	return status
}
