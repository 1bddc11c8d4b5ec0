package initializer

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/steps"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

var path = field.NewPath("metadata", "initializers")

// create gives a new object its initializers, or looks at those that it brings
// along.
func (p *Plugin) create(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if _, err := meta.Accessor(a.GetObject()); err != nil {
		return nil //nolint:nilerr // what has no metadata waits for nothing
	}
	if err := p.template(ctx, a); err != nil {
		return err
	}
	given, err := of(a)
	if err != nil {
		return err
	}
	if given != nil {
		return p.given(ctx, a, given)
	}
	inherited, err := p.inherited(ctx, a)
	if err != nil {
		return err
	}
	if inherited != nil {
		if inherited.Empty() {
			return nil
		}
		return initializers.Set(a.GetObject(), inherited)
	}
	if mirrors(a) || slices.Contains(p.cfg.ExemptNamespaces, a.GetNamespace()) || exempt(a) {
		return nil
	}
	names, err := p.assign(ctx, a, o)
	if err != nil || len(names) == 0 {
		return err
	}
	wait := &initializers.Initializers{}
	for _, name := range names {
		wait.Pending = append(wait.Pending, initializers.Initializer{Name: name})
	}
	steps.Add(ctx, PluginName)
	if told, ok := ctx.Value(assignedKey{}).(*[]string); ok {
		*told = names
	}
	return initializers.Set(a.GetObject(), wait)
}

type assignedKey struct{}

// TellAssigned returns a context in which the plugin says what names configurations
// have given the new object of a request. Others are those of its creator, or of
// its template.
func TellAssigned(ctx context.Context) (context.Context, *[]string) {
	told := new([]string)
	return context.WithValue(ctx, assignedKey{}, told), told
}

// given looks at the initializers that a new object brings along. Who may
// initialize may choose them, or choose none.
func (p *Plugin) given(ctx context.Context, a admission.Attributes, given *initializers.Initializers) error {
	allowed, reason, err := p.may(ctx, a)
	if err != nil {
		return err
	}
	if !allowed {
		return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), fmt.Errorf("create with initializers denied: %s", reason))
	}
	if given.Result != nil {
		return invalid(a, field.ErrorList{field.Forbidden(path.Child("result"), "must not be set on an object that is created")})
	}
	if given.Empty() {
		return initializers.Set(a.GetObject(), nil)
	}
	return invalid(a, validate(path, given))
}

// validate looks at the form of the list at a path.
func validate(at *field.Path, list *initializers.Initializers) field.ErrorList {
	var errs field.ErrorList
	for i, in := range list.Pending {
		errs = append(errs, validation.IsFullyQualifiedName(at.Child("pending").Index(i).Child("name"), in.Name)...)
	}
	if r := list.Result; r != nil && r.Status != metav1.StatusFailure {
		errs = append(errs, field.Invalid(at.Child("result", "status"), r.Status, "must be 'Failure'"))
	}
	return errs
}

func invalid(a admission.Attributes, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
}

// assign returns the names of the initializers that a new object waits for.
func (p *Plugin) assign(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) ([]string, error) {
	list, err := p.list(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if len(list.entries) == 0 {
		return nil, nil
	}
	versions := match.NewVersions(a, o)
	var names []string
	for _, e := range list.entries {
		wanted, err := p.wants(ctx, e, a, o, versions)
		if err != nil {
			return nil, err
		}
		if wanted {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

// wants says whether an object is given to an initializer.
func (p *Plugin) wants(ctx context.Context, e *entry, a admission.Attributes, o admission.ObjectInterfaces, versions *match.Versions) (bool, error) {
	as, err := e.matcher.Match(ctx, p.cfg.Objects, a, o)
	if as == nil || err != nil {
		return false, err
	}
	if itself(e.terms.Account, a) {
		return false, nil
	}
	if len(e.MatchConditions) > 0 {
		versioned, err := versions.VersionedAttribute(as.Kind)
		if err != nil {
			return false, err
		}
		if matched, err := e.conditions.Match(ctx, versioned, p.cfg.Authorizer); !matched || err != nil {
			return false, err
		}
	}
	return p.available(ctx, e, a)
}

// available says whether an object is given to an initializer that has asked
// for it: whom nobody is known to answer for, its policy decides about.
func (p *Plugin) available(ctx context.Context, e *entry, a admission.Attributes) (bool, error) {
	why, err := p.absence(ctx, e, a)
	if why == "" || err != nil {
		return err == nil, err
	}
	switch e.terms.Policy {
	case v1alpha1.Wait:
		return true, nil
	case v1alpha1.Ignore:
		warning.AddWarning(ctx, "", fmt.Sprintf("initializer %q was skipped: %s", e.Name, why))
		return false, nil
	default:
		unavailable := apierrors.NewServiceUnavailable(fmt.Sprintf("initializer %q of configuration %q is not available: %s", e.Name, e.configuration, why))
		unavailable.ErrStatus.Details = &metav1.StatusDetails{
			Name: a.GetName(), Group: a.GetResource().Group, Kind: a.GetResource().Resource, RetryAfterSeconds: retryAfter,
		}
		return false, unavailable
	}
}

// retryAfter is after how many seconds a client may ask again whose object
// needs an initializer that is not there.
const retryAfter = 5

// absence says why nobody would act on an object; empty when somebody may.
func (p *Plugin) absence(ctx context.Context, e *entry, a admission.Attributes) (string, error) {
	if e.Controller != nil && e.Controller.Lease != nil {
		return p.expired(ctx, e)
	}
	since := p.cfg.Health.Stalled(e.Name)
	if since.IsZero() || e.terms.Policy == v1alpha1.Wait {
		return "", nil
	}
	waits := p.cfg.Waiting != nil && p.cfg.Waiting.Next(ctx, e.Name)
	if a.IsDryRun() || !p.cfg.Health.Probe(e.Name, waits, time.Now()) {
		return "it has let an object wait beyond its time and has not acted since " + since.UTC().Format(time.RFC3339), nil
	}
	return "", nil
}

var leases = coordinationv1.SchemeGroupVersion.WithResource("leases")

// expired says why an initializer's lease does not speak for it.
func (p *Plugin) expired(ctx context.Context, e *entry) (string, error) {
	ref := e.Controller.Lease
	lease, err := view.Get[*coordinationv1.Lease](ctx, p.cfg.Objects, leases, ref.Namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("there is no lease %s/%s", ref.Namespace, ref.Name), nil
	case err != nil:
		return "", apierrors.NewInternalError(err)
	case !Holds(lease, time.Now()):
		return fmt.Sprintf("its lease %s/%s has expired", ref.Namespace, ref.Name), nil
	}
	return "", nil
}

// Holds says that a lease is held by somebody who has renewed it in time.
func Holds(lease *coordinationv1.Lease, now time.Time) bool {
	spec := lease.Spec
	if spec.RenewTime == nil || spec.LeaseDurationSeconds == nil || spec.HolderIdentity == nil || *spec.HolderIdentity == "" {
		return false
	}
	return now.Before(spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second))
}

// mirrors says that a pod shows what runs already. Compat: it waits for nobody.
func mirrors(a admission.Attributes) bool {
	if a.GetResource().GroupResource() != pods {
		return false
	}
	m, err := meta.Accessor(a.GetObject())
	if err != nil {
		return false
	}
	_, is := m.GetAnnotations()[corev1.MirrorPodAnnotationKey]
	return is
}
