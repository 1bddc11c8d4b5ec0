package expression

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/lazy"
	"k8s.io/apiserver/pkg/cel/library"

	"setpoint.dev/setpoint/api/initializers"
)

// evaluation is the evaluation of expressions that see the same things. It
// implements interpreter.Activation: names are resolved when they are looked at.
type evaluation struct {
	ctx        context.Context
	shared     *Shared
	attributes *admission.VersionedAttributes
	request    *admissionv1.AdmissionRequest
	optional   cel.OptionalVariableBindings
	namespace  *corev1.Namespace
	compiled   []variable

	variables  ref.Val // made when first looked at
	authorizer ref.Val
	resource   ref.Val
	spent      int64 // on variables, since the last evaluation
}

func newEvaluation(ctx context.Context, a *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, optional cel.OptionalVariableBindings, namespace *corev1.Namespace, compiled []variable) *evaluation {
	shared, ok := ctx.Value(sharedKey{}).(*Shared)
	if !ok {
		shared = &Shared{}
	}
	return &evaluation{ctx: ctx, shared: shared, attributes: a, request: request, optional: optional, namespace: namespace, compiled: compiled}
}

// Parent implements interpreter.Activation.
func (e *evaluation) Parent() interpreter.Activation { return nil }

// ResolveName implements interpreter.Activation.
func (e *evaluation) ResolveName(name string) (any, bool) {
	switch name {
	case cel.ObjectVarName:
		return e.shared.object(e.attributes.VersionedObject), true
	case cel.OldObjectVarName:
		return e.shared.object(e.attributes.VersionedOldObject), true
	case cel.ParamsVarName:
		return e.shared.object(e.optional.VersionedParams), true
	case cel.NamespaceVarName:
		return e.shared.namespaceOf(e.namespace), true
	case cel.RequestVarName:
		return e.shared.requestOf(e.request), true
	case cel.VariableVarName:
		if e.variables == nil {
			e.variables = e.lazyVariables()
		}
		return e.variables, true
	case cel.AuthorizerVarName:
		if e.authorizer == nil && e.optional.Authorizer != nil {
			e.authorizer = library.NewAuthorizerVal(e.attributes.GetUserInfo(), e.optional.Authorizer)
		}
		return e.authorizer, e.authorizer != nil
	case cel.RequestResourceAuthorizerVarName:
		if e.resource == nil && e.optional.Authorizer != nil {
			e.resource = library.NewResourceAuthorizerVal(e.attributes.GetUserInfo(), e.optional.Authorizer, e.attributes)
		}
		return e.resource, e.resource != nil
	}
	return nil, false
}

var variablesType = apiservercel.NewObjectType("kubernetes.variables", nil)

// lazyVariables are the variables, each evaluated when first looked at.
func (e *evaluation) lazyVariables() ref.Val {
	all := lazy.NewMapValue(variablesType)
	for _, v := range e.compiled {
		all.Append(v.name, func(*lazy.MapValue) ref.Val { return e.variable(v) })
	}
	return all
}

func (e *evaluation) variable(v variable) ref.Val {
	if v.result.Error != nil {
		return types.NewErr("composited variable %q fails to compile: %v", v.name, v.result.Error)
	}
	value, details, err := v.result.Program.ContextEval(e.ctx, e)
	if details == nil {
		return types.NewErr("unable to get evaluation details of variable %q", v.name)
	}
	cost := costOf(details)
	if cost < 0 {
		return types.NewErr("unable to calculate cost of variable %q", v.name)
	}
	e.spent += min(cost, math.MaxInt64-e.spent)
	if err != nil {
		return types.NewErr("composited variable %q fails to evaluate: %v", v.name, err)
	}
	return value
}

// costOf is what an evaluation has cost, -1 when that is not known.
func costOf(details *celgo.EvalDetails) int64 {
	cost := details.ActualCost()
	switch {
	case cost == nil:
		return -1
	case *cost > math.MaxInt64:
		return math.MaxInt64
	}
	return int64(*cost)
}

// evaluate evaluates one expression with what is left of the budget, and
// returns what is left then. An error says that no further expression can be
// evaluated. Compat: texts are upstream's.
func (e *evaluation) evaluate(compiled cel.CompilationResult, budget int64) (cel.EvaluationResult, int64, error) {
	outcome := cel.EvaluationResult{ExpressionAccessor: compiled.ExpressionAccessor}
	switch {
	case compiled.ExpressionAccessor == nil:
		return outcome, budget, nil
	case compiled.Error != nil:
		outcome.Error = &apiservercel.Error{
			Type: apiservercel.ErrorTypeInvalid, Detail: fmt.Sprintf("compilation error: %v", compiled.Error), Cause: compiled.Error,
		}
		return outcome, budget, nil //nolint:nilerr // it is the outcome
	case compiled.Program == nil:
		outcome.Error = &apiservercel.Error{Type: apiservercel.ErrorTypeInternal, Detail: "unexpected internal error compiling expression"}
		return outcome, budget, nil
	}
	begun := time.Now()
	value, details, err := compiled.Program.ContextEval(e.ctx, e)
	outcome.Elapsed = time.Since(begun)
	spent := e.spent
	e.spent = 0
	if spent > budget {
		return outcome, -1, outOfBudget()
	}
	budget -= spent
	unknown := fmt.Sprintf("runtime cost could not be calculated for expression: %v, no further expression will be run", compiled.ExpressionAccessor.GetExpression())
	if details == nil {
		return outcome, -1, &apiservercel.Error{Type: apiservercel.ErrorTypeInternal, Detail: unknown}
	}
	cost := costOf(details)
	if cost < 0 {
		return outcome, -1, &apiservercel.Error{Type: apiservercel.ErrorTypeInvalid, Detail: unknown, Cause: apiservercel.ErrOutOfBudget}
	}
	if cost > budget {
		return outcome, -1, outOfBudget()
	}
	if err != nil {
		outcome.Error = &apiservercel.Error{
			Type: apiservercel.ErrorTypeInvalid, Detail: fmt.Sprintf("expression '%v' resulted in error: %v", compiled.ExpressionAccessor.GetExpression(), err),
		}
	} else {
		outcome.EvalResult = value
	}
	return outcome, budget - cost, nil
}

func outOfBudget() error {
	return &apiservercel.Error{
		Type:   apiservercel.ErrorTypeInvalid,
		Detail: "validation failed due to running out of cost budget, no further validation rules will be run",
		Cause:  apiservercel.ErrOutOfBudget,
	}
}

// Shared is what expressions about one request look at, in CEL's form, each
// made once. It is not safe for concurrent use.
type Shared struct {
	objects    map[runtime.Object]any
	namespaces map[string]any // by revision
	requests   map[requestKey]any
}

type sharedKey struct{}

// requestKey tells what a request looks like to those that match it as the
// same.
type requestKey struct{ resource, kind any }

// Share returns a context in which expressions about one request share what
// they look at. Objects must not be changed while it is used.
func Share(ctx context.Context) context.Context {
	return context.WithValue(ctx, sharedKey{}, &Shared{})
}

// object is an object as expressions see it; nil when there is none, and an
// error where it cannot be.
func (s *Shared) object(obj runtime.Object) any {
	if obj == nil || reflect.ValueOf(obj).IsNil() {
		return nil
	}
	if have, ok := s.objects[obj]; ok {
		return have
	}
	if s.objects == nil {
		s.objects = map[runtime.Object]any{}
	}
	s.objects[obj] = shown(obj)
	return s.objects[obj]
}

// SeenAs makes expressions see obj as they see another: for a copy that lacks
// what only they are shown.
func SeenAs(ctx context.Context, obj, other runtime.Object) {
	if s, ok := ctx.Value(sharedKey{}).(*Shared); ok {
		value := s.object(other)
		s.objects[obj] = value
	}
}

// shown is an object with all that clients see of it.
func shown(obj runtime.Object) any {
	whole, err := initializers.Shown(obj)
	if err != nil {
		return types.NewErr("%v", err)
	}
	return untyped(whole)
}

func (s *Shared) namespaceOf(namespace *corev1.Namespace) any {
	if namespace == nil {
		return nil
	}
	if have, ok := s.namespaces[namespace.ResourceVersion]; ok {
		return have
	}
	if s.namespaces == nil {
		s.namespaces = map[string]any{}
	}
	s.namespaces[namespace.ResourceVersion] = untyped(cel.CreateNamespaceObject(namespace))
	return s.namespaces[namespace.ResourceVersion]
}

func (s *Shared) requestOf(request *admissionv1.AdmissionRequest) any {
	key := requestKey{request.Resource, request.Kind}
	if have, ok := s.requests[key]; ok {
		return have
	}
	if s.requests == nil {
		s.requests = map[requestKey]any{}
	}
	s.requests[key] = untyped(request)
	return s.requests[key]
}

func untyped(obj any) any {
	made, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return types.NewErr("%v", err)
	}
	return made
}
