// Package expression evaluates CEL expressions about a request: conditions,
// validations, messages, annotations and patches.
//
// Expressions are compiled by upstream's compiler, and what is made of them
// stands where upstream's evaluators stand. What differs is what a request
// costs: an object becomes a CEL value once for all expressions of a request,
// and only if one of them looks at it.
package expression

import (
	"context"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// base is made when the first expression is compiled: most servers have none.
var base = sync.OnceValue(func() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
})

var plain = sync.OnceValue(func() cel.Compiler { return cel.NewCompiler(base()) })

// Compiler compiles expressions that may use the same variables.
type Compiler struct {
	compiler  cel.Compiler
	variables []variable
}

// variable is a named expression that others may use.
type variable struct {
	name   string
	result cel.CompilationResult
}

// Plain compiles expressions without variables.
func Plain() *Compiler { return &Compiler{compiler: plain()} }

// WithVariables compiles expressions that may use variables, and variables that
// may use those before them.
func WithVariables(of []cel.NamedExpressionAccessor, uses cel.OptionalVariableDeclarations) (*Compiler, error) {
	composed, err := cel.NewCompositedCompiler(base())
	if err != nil {
		return nil, err
	}
	c := &Compiler{compiler: composed.Compiler}
	for _, v := range of {
		c.variables = append(c.variables, variable{v.GetName(), composed.CompileAndStoreVariable(v, uses, environment.StoredExpressions)})
	}
	return c, nil
}

// Conditions compiles expressions. One that does not compile is an error when
// it is evaluated; one that is nil is not evaluated.
func (c *Compiler) Conditions(of []cel.ExpressionAccessor, uses cel.OptionalVariableDeclarations) cel.ConditionEvaluator {
	e := &conditions{variables: c.variables, results: make([]cel.CompilationResult, len(of))}
	for i, one := range of {
		if one != nil {
			e.results[i] = c.compiler.CompileCELExpression(one, uses, environment.StoredExpressions)
			e.some = true
		}
	}
	return e
}

// Mutation compiles an expression that makes a patch.
func (c *Compiler) Mutation(of cel.ExpressionAccessor, uses cel.OptionalVariableDeclarations) cel.MutatingEvaluator {
	return &mutation{variables: c.variables, result: c.compiler.CompileCELExpression(of, uses, environment.StoredExpressions)}
}

// conditions are compiled expressions. They implement cel.ConditionEvaluator.
type conditions struct {
	variables []variable
	results   []cel.CompilationResult
	some      bool // of the results are there
}

// ForInput implements cel.ConditionEvaluator.
func (c *conditions) ForInput(ctx context.Context, a *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, optional cel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64) ([]cel.EvaluationResult, int64, error) {
	outcomes := make([]cel.EvaluationResult, len(c.results))
	if !c.some {
		return outcomes, budget, nil
	}
	e := newEvaluation(ctx, a, request, optional, namespace, c.variables)
	for i, result := range c.results {
		var err error
		if outcomes[i], budget, err = e.evaluate(result, budget); err != nil {
			return nil, -1, err
		}
	}
	return outcomes, budget, nil
}

// CompilationErrors implements cel.ConditionEvaluator.
func (c *conditions) CompilationErrors() []error {
	var errs []error
	for _, result := range c.results {
		if result.Error != nil {
			errs = append(errs, result.Error)
		}
	}
	return errs
}

// mutation is one compiled expression. It implements cel.MutatingEvaluator.
type mutation struct {
	variables []variable
	result    cel.CompilationResult
}

// ForInput implements cel.MutatingEvaluator.
func (m *mutation) ForInput(ctx context.Context, a *admission.VersionedAttributes, request *admissionv1.AdmissionRequest, optional cel.OptionalVariableBindings, namespace *corev1.Namespace, budget int64) (cel.EvaluationResult, int64, error) {
	return newEvaluation(ctx, a, request, optional, namespace, m.variables).evaluate(m.result, budget)
}

// CompilationErrors implements cel.MutatingEvaluator.
func (m *mutation) CompilationErrors() []error {
	if m.result.Error == nil {
		return nil
	}
	return []error{m.result.Error}
}
