// Package validation says what is wrong with an InitializerConfiguration.
//
// In comes a configuration with its defaults, out go field errors, in the words
// of Kubernetes 1.9 where it had them. Floor is the list of kinds that no
// initializer ever acts on.
package validation

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	upstream "k8s.io/kubernetes/pkg/apis/admissionregistration/validation"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// Validate says what is wrong with a configuration.
func Validate(c *v1alpha1.InitializerConfiguration) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&c.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	for i := range c.Initializers {
		errs = append(errs, validateInitializer(&c.Initializers[i], field.NewPath("initializers").Index(i))...)
	}
	return errs
}

// ValidateUpdate says what is wrong with a change.
func ValidateUpdate(c, old *v1alpha1.InitializerConfiguration) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&c.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	return append(errs, Validate(c)...)
}

// ValidateStatus says what is wrong with a change of the status.
func ValidateStatus(c, old *v1alpha1.InitializerConfiguration) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&c.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
	path := field.NewPath("status", "initializers")
	seen := map[string]bool{}
	for i, s := range c.Status.Initializers {
		switch at := path.Index(i).Child("name"); {
		case s.Name == "":
			errs = append(errs, field.Required(at, ""))
		case seen[s.Name]:
			errs = append(errs, field.Duplicate(at, s.Name))
		}
		seen[s.Name] = true
		errs = append(errs, metav1validation.ValidateConditions(s.Conditions, path.Index(i).Child("conditions"))...)
	}
	return errs
}

// MaxTimeout is the longest that an initializer may take, in seconds.
const MaxTimeout = 600

func validateInitializer(in *v1alpha1.Initializer, path *field.Path) field.ErrorList {
	errs := utilvalidation.IsFullyQualifiedName(path.Child("name"), in.Name)
	for i := range in.Rules {
		errs = append(errs, validateRule(&in.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, oneOf(path.Child("failurePolicy"), in.FailurePolicy, v1alpha1.Fail, v1alpha1.Ignore, v1alpha1.Wait)...)
	errs = append(errs, oneOf(path.Child("matchPolicy"), in.MatchPolicy, admissionv1.Equivalent, admissionv1.Exact)...)
	if t := in.TimeoutSeconds; t != nil && (*t < 1 || *t > MaxTimeout) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, fmt.Sprintf("the timeout value must be between 1 and %d seconds", MaxTimeout)))
	}
	if s := in.NamespaceSelector; s != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path.Child("namespaceSelector"))...)
	}
	if s := in.ObjectSelector; s != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, path.Child("objectSelector"))...)
	}
	errs = append(errs, validateMatchConditions(in.MatchConditions, path.Child("matchConditions"))...)
	if c := in.Controller; c != nil {
		errs = append(errs, validateReference(c.ServiceAccount, path.Child("controller", "serviceAccount"))...)
		errs = append(errs, validateReference(c.Lease, path.Child("controller", "lease"))...)
	}
	return errs
}

func oneOf[T ~string](path *field.Path, have *T, known ...T) field.ErrorList {
	if have == nil || slices.Contains(known, *have) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *have, known)}
}

func validateReference(r *v1alpha1.Reference, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	check := func(at, value string, valid apivalidation.ValidateNameFunc) {
		if value == "" {
			errs = append(errs, field.Required(path.Child(at), ""))
			return
		}
		for _, wrong := range valid(value, false) {
			errs = append(errs, field.Invalid(path.Child(at), value, wrong))
		}
	}
	check("namespace", r.Namespace, apivalidation.ValidateNamespaceName)
	check("name", r.Name, apivalidation.NameIsDNSSubdomain)
	return errs
}

const all = "*"

func validateRule(r *v1alpha1.Rule, path *field.Path) field.ErrorList {
	errs := validateNames(r.APIGroups, path.Child("apiGroups"), "API groups", true)
	errs = append(errs, validateNames(r.APIVersions, path.Child("apiVersions"), "API versions", false)...)
	at := path.Child("resources")
	errs = append(errs, validateNames(r.Resources, at, "resources", false)...)
	for i, resource := range r.Resources {
		if strings.Contains(resource, "/") {
			errs = append(errs, field.Invalid(at.Index(i), resource, "must not specify subresources"))
			continue
		}
		if group, named := exempted(r.APIGroups, resource); named {
			errs = append(errs, field.Invalid(at.Index(i), resource, fmt.Sprintf("%s must not wait for initializers: the control plane needs them to make progress", kind(group, resource))))
		}
	}
	return append(errs, oneOf(path.Child("scope"), r.Scope, admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope)...)
}

func kind(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

// validateNames checks one list of a rule. Only a group may be "", the core
// group's name.
func validateNames(names []string, path *field.Path, what string, mayBeEmpty bool) field.ErrorList {
	if len(names) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(names) > 1 && slices.Contains(names, all) {
		errs = append(errs, field.Invalid(path, names, "if '*' is present, must not specify other "+what))
	}
	for i, name := range names {
		if name == "" && !mayBeEmpty {
			errs = append(errs, field.Required(path.Index(i), ""))
		}
	}
	return errs
}

// exempted finds a kind of the floor that a rule names, in one of its groups.
func exempted(groups []string, resource string) (group string, named bool) {
	if resource == all {
		return "", false
	}
	for _, group := range groups {
		if group != all {
			if Exempt(group, resource) {
				return group, true
			}
			continue
		}
		for _, f := range Floor {
			if f.Resource == resource {
				return f.Group, true
			}
		}
	}
	return "", false
}

// validateMatchConditions asks upstream about expressions, in the only way that
// it can be asked: about those of a webhook.
func validateMatchConditions(conditions []admissionv1.MatchCondition, path *field.Path) field.ErrorList {
	if len(conditions) == 0 {
		return nil
	}
	var hook admissionregistration.ValidatingWebhook
	for _, c := range conditions {
		hook.MatchConditions = append(hook.MatchConditions, admissionregistration.MatchCondition{Name: c.Name, Expression: c.Expression})
	}
	asked := field.NewPath("webhooks").Index(0).Child("matchConditions").String()
	var errs field.ErrorList
	for _, e := range upstream.ValidateValidatingWebhookConfiguration(&admissionregistration.ValidatingWebhookConfiguration{Webhooks: []admissionregistration.ValidatingWebhook{hook}}) {
		if rest, is := strings.CutPrefix(e.Field, asked); is {
			e.Field = path.String() + rest
			errs = append(errs, e)
		}
	}
	return errs
}
