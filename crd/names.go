package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"setpoint.dev/setpoint/kinds"
)

// nameTable is a table that is no kind's: under group, sort and name it says which
// definition goes by that name. What is in there is taken, so that of two
// definitions that want one name at the same time one gets it.
const nameTable = "customresourcenames"

// Join decides which names a definition gets, and says what that makes of it:
// it has its names or not, it is established or not. All of that, and the
// APIServices of its versions, happens in the commit that stores it, so that a
// definition is served and told of as soon as it is stored.
func Join(ctx context.Context, w kinds.Write) ([]kinds.Companion, error) {
	old, _ := w.Old.(*internal.CustomResourceDefinition)
	if w.Object == nil {
		if old == nil {
			return nil, nil
		}
		return release(namesOf(old.Spec.Group, old.Status.AcceptedNames), nil), nil
	}
	crd, ok := w.Object.(*internal.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource definition", w.Object)
	}
	var had []string
	if old != nil {
		crd.Status.AcceptedNames = *old.Status.AcceptedNames.DeepCopy()
		had = namesOf(old.Spec.Group, old.Status.AcceptedNames)
	}
	if err := accept(ctx, crd, w.Stored); err != nil {
		return nil, err
	}
	judgeSchemas(crd)
	judgeApproval(crd)
	have := namesOf(crd.Spec.Group, crd.Status.AcceptedNames)
	var along []kinds.Companion
	for _, name := range have {
		if !slices.Contains(had, name) {
			along = append(along, kinds.Companion{Table: nameTable, Key: name, Value: []byte(crd.Name)})
		}
	}
	registers, err := registrations(ctx, crd, w.Stored)
	return append(append(along, release(had, have)...), registers...), err
}

// release gives names back, but those that are kept.
func release(had, kept []string) []kinds.Companion {
	var along []kinds.Companion
	for _, name := range had {
		if !slices.Contains(kept, name) {
			along = append(along, kinds.Companion{Table: nameTable, Key: name})
		}
	}
	return along
}

// Names are of two sorts: those of resources, in URLs and on the command line,
// and those of kinds.
const (
	resourceName = "resource"
	kindName     = "kind"
)

func nameKey(group, sort, name string) string { return group + "/" + sort + "/" + name }

// namesOf are the keys of all names, each once.
func namesOf(group string, n internal.CustomResourceDefinitionNames) []string {
	var keys []string
	add := func(sort string, all ...string) {
		for _, name := range all {
			if key := nameKey(group, sort, name); name != "" && !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	add(resourceName, n.Plural, n.Singular)
	add(resourceName, n.ShortNames...)
	add(kindName, n.Kind, n.ListKind)
	return keys
}

// accept gives a definition the names that it asks for and that no other has.
func accept(ctx context.Context, crd *internal.CustomResourceDefinition, stored kinds.Reader) error {
	want, have := &crd.Spec.Names, &crd.Status.AcceptedNames
	named := condition(internal.NamesAccepted, internal.ConditionTrue, "NoConflicts", "no conflicts found")
	// taken is an error when another definition goes by a name.
	taken := func(sort, name string) error {
		owner, err := stored.Get(ctx, nameTable, nameKey(crd.Spec.Group, sort, name))
		if err != nil || owner == nil || string(owner) == crd.Name {
			return err
		}
		return &takenError{name}
	}
	refuse := func(reason string, err error) {
		named = condition(internal.NamesAccepted, internal.ConditionFalse, reason, err.Error())
	}
	for _, n := range []struct {
		sort, want string
		have       *string
		reason     string
	}{
		{resourceName, want.Plural, &have.Plural, "PluralConflict"},
		{resourceName, want.Singular, &have.Singular, "SingularConflict"},
	} {
		if err := pick(n.sort, n.want, n.have, taken); err != nil {
			if !isTaken(err) {
				return err
			}
			refuse(n.reason, err)
		}
	}
	var conflicts []string
	for _, short := range want.ShortNames {
		if slices.Contains(have.ShortNames, short) {
			continue
		}
		if err := taken(resourceName, short); isTaken(err) {
			conflicts = append(conflicts, err.Error())
		} else if err != nil {
			return err
		}
	}
	switch len(conflicts) {
	case 0:
		have.ShortNames = want.ShortNames
	case 1:
		refuse("ShortNamesConflict", errors.New(conflicts[0]))
	default:
		refuse("ShortNamesConflict", fmt.Errorf("[%s]", strings.Join(conflicts, ", ")))
	}
	for _, n := range []struct {
		want   string
		have   *string
		reason string
	}{
		{want.Kind, &have.Kind, "KindConflict"},
		{want.ListKind, &have.ListKind, "ListKindConflict"},
	} {
		if err := pick(kindName, n.want, n.have, taken); err != nil {
			if !isTaken(err) {
				return err
			}
			refuse(n.reason, err)
		}
	}
	have.Categories = want.Categories
	internal.SetCRDCondition(crd, named)
	switch {
	case internal.IsCRDConditionTrue(crd, internal.Established):
	case named.Status == internal.ConditionTrue:
		internal.SetCRDCondition(crd, condition(internal.Established, internal.ConditionTrue, "InitialNamesAccepted", "the initial names have been accepted"))
	default:
		internal.SetCRDCondition(crd, condition(internal.Established, internal.ConditionFalse, "NotAccepted", "not all names are accepted"))
	}
	return nil
}

// pick makes want the name that is had, unless it is another's.
func pick(sort, want string, have *string, taken func(sort, name string) error) error {
	if want == *have {
		return nil
	}
	if err := taken(sort, want); err != nil {
		return err
	}
	*have = want
	return nil
}

// takenError says that another definition goes by a name.
type takenError struct{ name string }

func (e *takenError) Error() string { return fmt.Sprintf("%q is already in use", e.name) }

func isTaken(err error) bool {
	_, is := errors.AsType[*takenError](err)
	return is
}

func condition(t internal.CustomResourceDefinitionConditionType, s internal.ConditionStatus, reason, message string) internal.CustomResourceDefinitionCondition {
	return internal.CustomResourceDefinitionCondition{Type: t, Status: s, Reason: reason, Message: message}
}

// judgeSchemas says whether schemas are of the form that pruning and
// defaulting need. Only what was made as v1beta1 can have others.
func judgeSchemas(crd *internal.CustomResourceDefinition) {
	var errs field.ErrorList
	if keeps := crd.Spec.PreserveUnknownFields; keeps != nil && *keeps {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), *keeps, "must be false"))
	}
	for i, v := range crd.Spec.Versions {
		schema, err := internal.GetSchemaForVersion(crd, v.Name)
		if err != nil || schema == nil || schema.OpenAPIV3Schema == nil {
			continue
		}
		s, err := structuralschema.NewStructural(schema.OpenAPIV3Schema)
		if err != nil {
			internal.SetCRDCondition(crd, condition(internal.NonStructuralSchema, internal.ConditionUnknown, "StructuralError",
				fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err)))
			return
		}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		errs = append(errs, structuralschema.ValidateStructural(path, s)...)
	}
	if len(errs) == 0 {
		internal.RemoveCRDCondition(crd, internal.NonStructuralSchema)
		return
	}
	internal.SetCRDCondition(crd, condition(internal.NonStructuralSchema, internal.ConditionTrue, "Violations", errs.ToAggregate().Error()))
}

// judgeApproval says whether a group that belongs to Kubernetes was approved.
func judgeApproval(crd *internal.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	status, reason := internal.ConditionUnknown, "UnknownAnnotation"
	switch state {
	case apihelpers.APIApprovalInvalid:
		status, reason = internal.ConditionFalse, "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		status, reason = internal.ConditionFalse, "MissingAnnotation"
	case apihelpers.APIApproved:
		status, reason = internal.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		status, reason = internal.ConditionFalse, "UnapprovedAnnotation"
	}
	internal.SetCRDCondition(crd, condition(internal.KubernetesAPIApprovalPolicyConformant, status, reason, message))
}
