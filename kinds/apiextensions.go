package kinds

import (
	"context"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// Definitions is the table of CustomResourceDefinitions.
const Definitions = "customresourcedefinitions.apiextensions.k8s.io"

func apiextensionsGroup(d Deps) group {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	g := group{name: apiextensions.GroupName, versions: []string{"v1", "v1beta1"}, scheme: scheme, rows: []row{{
		name: "customresourcedefinitions", kind: "CustomResourceDefinition", short: "crd crds", category: "api-extensions",
		strategy: newDefinitionStrategy(scheme), attrs: customresourcedefinition.GetAttrs,
		status: customresourcedefinition.NewStatusStrategy(scheme), plain: true, undescribed: []string{"v1beta1"}, join: d.joinDefinitions, settles: &Settled{Subresource: "status", Reset: resetDefinition},
		linger: &Linger{Mark: markDefinition, Held: func(runtime.Object) bool { return false }},
	}}}
	return g
}

// joinDefinitions asks JoinDefinitions about a definition in the words of v1.
func (d Deps) joinDefinitions(ctx context.Context, w Write) ([]Companion, error) {
	if crd, ok := w.Object.(*apiextensions.CustomResourceDefinition); ok && isV1beta1(ctx) {
		modernize(crd)
	}
	if d.JoinDefinitions == nil {
		return nil, nil
	}
	return d.JoinDefinitions(ctx, w)
}

// resetDefinition gives a definition the status that is stored.
func resetDefinition(obj, old runtime.Object) {
	crd := obj.(*apiextensions.CustomResourceDefinition)
	if was, ok := old.(*apiextensions.CustomResourceDefinition); ok {
		crd.Status = *was.Status.DeepCopy()
	} else {
		crd.Status = apiextensions.CustomResourceDefinitionStatus{StoredVersions: crd.Status.StoredVersions}
	}
}

// definitionStrategy is upstream's for CustomResourceDefinitions, and what was
// the rule while v1beta1 was served: such a definition need not have a schema,
// and its objects keep what no schema knows.
type definitionStrategy struct {
	strategy
}

func newDefinitionStrategy(scheme *runtime.Scheme) definitionStrategy {
	return definitionStrategy{customresourcedefinition.NewStrategy(scheme)}
}

// PrepareForCreate implements rest.RESTCreateStrategy. What Join has said of
// the names stays, which upstream finds out after the fact.
func (s definitionStrategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.prepare(obj, func() { s.strategy.PrepareForCreate(ctx, obj) })
}

// PrepareForUpdate implements rest.RESTUpdateStrategy, likewise.
func (s definitionStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	s.prepare(obj, func() { s.strategy.PrepareForUpdate(ctx, obj, old) })
}

// ValidateUpdate implements rest.RESTUpdateStrategy. What Join has said is not
// the client's.
func (s definitionStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	asked := *obj.(*apiextensions.CustomResourceDefinition)
	was := old.(*apiextensions.CustomResourceDefinition).Status
	asked.Status.AcceptedNames, asked.Status.Conditions = was.AcceptedNames, was.Conditions
	return s.strategy.ValidateUpdate(ctx, &asked, old)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (s definitionStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return ResetFields(s.strategy)
}

func (s definitionStrategy) prepare(obj runtime.Object, upstream func()) {
	crd := obj.(*apiextensions.CustomResourceDefinition)
	settled := crd.Status
	upstream()
	crd.Status.AcceptedNames, crd.Status.Conditions = settled.AcceptedNames, settled.Conditions
}

// Validate implements rest.RESTCreateStrategy. Compat: a definition of v1beta1
// is held to what is asked of one that is already stored, since before v1 a
// schema could be of any form, and groups of Kubernetes needed no approval.
func (s definitionStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	crd := *obj.(*apiextensions.CustomResourceDefinition)
	// What Join has said is not the client's.
	crd.Status.AcceptedNames, crd.Status.Conditions = apiextensions.CustomResourceDefinitionNames{}, nil
	errs := s.strategy.Validate(ctx, &crd)
	if !isV1beta1(ctx) {
		return errs
	}
	approval := field.NewPath("metadata", "annotations").Key(v1beta1.KubeAPIApprovedAnnotation).String()
	errs = slices.DeleteFunc(errs, func(e *field.Error) bool { return e.Field == approval && e.Type == field.ErrorTypeRequired })
	if len(errs) == 0 || isStructural(&crd.Spec) {
		return errs
	}
	named := crd.DeepCopy()
	named.ResourceVersion = "1" // an update has one
	kept := validation.ValidateCustomResourceDefinitionUpdate(ctx, named, named.DeepCopy())
	for _, e := range errs {
		if strings.HasPrefix(e.Field, "metadata") {
			kept = append(kept, e)
		}
	}
	return kept
}

// isStructural says that all schemas are of the form that v1 asks for, or have
// rules, which no others may have.
func isStructural(spec *apiextensions.CustomResourceDefinitionSpec) bool {
	schemas := []*apiextensions.CustomResourceValidation{spec.Validation}
	for _, v := range spec.Versions {
		schemas = append(schemas, v.Schema)
	}
	for _, v := range schemas {
		if v == nil || v.OpenAPIV3Schema == nil {
			continue
		}
		if validation.SchemaHas(v.OpenAPIV3Schema, func(s *apiextensions.JSONSchemaProps) bool { return len(s.XValidations) > 0 }) {
			return true
		}
		s, err := structuralschema.NewStructural(v.OpenAPIV3Schema)
		if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
			return false
		}
	}
	return true
}

func isV1beta1(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.APIGroup == apiextensions.GroupName && info.APIVersion == v1beta1.SchemeGroupVersion.Version
}

// modernize says in the words of v1 what v1beta1 says by leaving it out: where
// unknown fields are kept, the schema says so. A schema that v1 cannot have is
// left alone.
func modernize(crd *apiextensions.CustomResourceDefinition) {
	keeps := crd.Spec.PreserveUnknownFields == nil || *crd.Spec.PreserveUnknownFields
	if !keeps {
		return
	}
	no, yes := false, true
	open := func(v *apiextensions.CustomResourceValidation) *apiextensions.CustomResourceValidation {
		if v == nil || v.OpenAPIV3Schema == nil {
			return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}}
		}
		s := v.OpenAPIV3Schema.DeepCopy()
		s.XPreserveUnknownFields = &yes
		return &apiextensions.CustomResourceValidation{OpenAPIV3Schema: s}
	}
	next := crd.Spec.DeepCopy()
	next.PreserveUnknownFields = &no
	if next.Validation != nil || !slices.ContainsFunc(next.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return v.Schema != nil }) {
		next.Validation = open(next.Validation)
	} else {
		for i := range next.Versions {
			next.Versions[i].Schema = open(next.Versions[i].Schema)
		}
	}
	if isStructural(next) {
		crd.Spec = *next
	}
}

// markDefinition begins the removal of a definition: first go its objects.
func markDefinition(obj runtime.Object) {
	crd := obj.(*apiextensions.CustomResourceDefinition)
	if !apiextensions.CRDHasFinalizer(crd, apiextensions.CustomResourceCleanupFinalizer) {
		crd.Finalizers = append(crd.Finalizers, apiextensions.CustomResourceCleanupFinalizer)
	}
	apiextensions.SetCRDCondition(crd, apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.Terminating, Status: apiextensions.ConditionTrue, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
}
