package policy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generated "k8s.io/kubernetes/pkg/generated/openapi"

	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/kinds"
)

// Checked is the table whose objects a Checker checks.
const Checked = "validatingadmissionpolicies.admissionregistration.k8s.io"

// checkWithin bounds a write, and tryAgain is when one that failed is tried
// again.
const (
	checkWithin = 10 * time.Second
	tryAgain    = 5 * time.Second
)

// Checker writes into the status of ValidatingAdmissionPolicies what is wrong
// with the types in their expressions, once for each generation. It is told when
// policies change, looks at all of them then, and does nothing else.
type Checker struct {
	Objects view.Objects
	Kinds   func() *kinds.List
	// Send sends a request to this server's own API.
	Send   func(ctx context.Context, method, path, media string, body any) error
	Logger *slog.Logger

	changed chan struct{}
}

// NewChecker returns a checker.
func NewChecker(c Checker) *Checker {
	c.changed = make(chan struct{}, 1)
	return &c
}

// Changed says that policies have changed. It does not wait.
func (c *Checker) Changed() {
	select {
	case c.changed <- struct{}{}:
	default: // it is known
	}
}

// Run checks until ctx ends.
func (c *Checker) Run(ctx context.Context) error {
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		case <-retry:
		}
		retry = nil
		if err := c.checkAll(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Warn("the types in policies are not checked yet", "error", err)
			retry = time.After(tryAgain)
		}
	}
}

func (c *Checker) checkAll(ctx context.Context) error {
	policies, err := view.List[*admissionregistrationv1.ValidatingAdmissionPolicy](ctx, c.Objects, validatingSource().policies, "")
	if err != nil {
		return err
	}
	var builtin *resolver.DefinitionsSchemaResolver // large, and kept no longer than it is needed
	for _, p := range policies {
		if p.Generation <= p.Status.ObservedGeneration {
			continue
		}
		if builtin == nil {
			builtin = resolver.NewDefinitionsSchemaResolver(generated.GetOpenAPIDefinitions, legacyscheme.Scheme)
		}
		checker := &validating.TypeChecker{SchemaResolver: schemas{ctx, c, builtin}, RestMapper: mapper{c: c}}
		if err := c.tell(ctx, p, checker.Check(p)); err != nil {
			return fmt.Errorf("policy %s: %w", p.Name, err)
		}
	}
	return nil
}

// tell writes warnings into a policy's status, as upstream's controller does.
func (c *Checker) tell(ctx context.Context, p *admissionregistrationv1.ValidatingAdmissionPolicy, warnings []admissionregistrationv1.ExpressionWarning) error {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	path := fmt.Sprintf("/apis/%s/validatingadmissionpolicies/%s/status?force=true&fieldManager=validatingadmissionpolicy-status", admissionregistrationv1.SchemeGroupVersion, p.Name)
	return c.Send(ctx, http.MethodPatch, path, string(types.ApplyYAMLPatchType), map[string]any{
		"apiVersion": admissionregistrationv1.SchemeGroupVersion.String(), "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": p.Name},
		"status": admissionregistrationv1.ValidatingAdmissionPolicyStatus{
			ObservedGeneration: p.Generation, TypeChecking: &admissionregistrationv1.TypeChecking{ExpressionWarnings: warnings},
		},
	})
}

// mapper tells which kinds resources are of. It implements the part of
// meta.RESTMapper that is asked.
type mapper struct {
	meta.RESTMapper
	c *Checker
}

// KindsFor implements meta.RESTMapper.
func (m mapper) KindsFor(of schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	r := m.c.Kinds().Find(of.Group, of.Version, of.Resource)
	if r == nil {
		return nil, &meta.NoResourceMatchError{PartialResource: of}
	}
	return []schema.GroupVersionKind{r.GroupVersionKind(of.Version)}, nil
}

// schemas finds the schemas of kinds, built-in and custom.
type schemas struct {
	ctx     context.Context
	c       *Checker
	builtin resolver.SchemaResolver
}

// ResolveSchema implements resolver.SchemaResolver.
func (s schemas) ResolveSchema(of schema.GroupVersionKind) (*spec.Schema, error) {
	r := find(s.c.Kinds(), of)
	if r == nil || r.Custom == nil {
		return s.builtin.ResolveSchema(of)
	}
	definition, err := view.Get[*apiextensionsv1.CustomResourceDefinition](s.ctx, s.c.Objects, apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"), metav1.NamespaceNone, r.Table)
	if err != nil {
		return nil, err
	}
	described, err := builder.BuildOpenAPIV3(definition, of.Version, builder.Options{})
	if err != nil {
		return nil, err
	}
	for name, one := range described.Components.Schemas {
		if strings.HasSuffix(name, "."+of.Version+"."+of.Kind) && one.Extensions["x-kubernetes-group-version-kind"] != nil {
			return resolver.PopulateRefs(func(ref string) (*spec.Schema, bool) {
				found, ok := described.Components.Schemas[strings.TrimPrefix(ref, "#/components/schemas/")]
				return found, ok
			}, name)
		}
	}
	return nil, fmt.Errorf("cannot resolve %v: %w", of, resolver.ErrSchemaNotFound)
}
