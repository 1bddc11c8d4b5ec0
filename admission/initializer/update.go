package initializer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// verb is the right to bring initializers along, and to write objects that
// wait for some.
const verb = "initialize"

// kept is what a client reads whose update has left out what it may not have
// known of.
const kept = "metadata.initializers absent from update: pending initializers kept"

// AuditKey is where the audit log says what was unusual about a write to a list
// of initializers.
const AuditKey = "initializers.setpoint.dev/change"

// update guards the list of an object that waits, and sees to it that one that
// does not will never again.
func (p *Plugin) update(ctx context.Context, a admission.Attributes) error {
	if _, err := meta.Accessor(a.GetObject()); err != nil || a.GetOldObject() == nil {
		return nil //nolint:nilerr // what has no metadata waits for nothing
	}
	old, err := initializers.Of(a.GetOldObject())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if a.GetSubresource() != "" {
		return p.part(a, old)
	}
	if err := p.template(ctx, a); err != nil {
		return err
	}
	now, err := of(a)
	if err != nil {
		return err
	}
	absent := now == nil && !patches(ctx)
	if now != nil && now.Empty() {
		// Compat: a manifest that brings an empty list along can be sent again.
		now = nil
		if err := initializers.Set(a.GetObject(), nil); err != nil {
			return err
		}
	}
	switch {
	case old == nil && now == nil:
		return nil
	case old == nil:
		return invalid(a, field.ErrorList{field.Invalid(path, nil, "field is immutable once initialization has completed")})
	}
	return p.write(ctx, a, old, now, absent)
}

// patches says that the request names what it changes: what it takes away it
// means to.
func patches(ctx context.Context) bool {
	info, ok := request.RequestInfoFrom(ctx)
	return ok && info.Verb == "patch"
}

// part keeps what an object waits for when a part of it is written.
func (p *Plugin) part(a admission.Attributes, old *initializers.Initializers) error {
	if old != nil && a.GetResource().GroupResource() == pods && a.GetSubresource() == "status" {
		return invalid(a, field.ErrorList{field.Forbidden(field.NewPath("status"), "must not update status when the object is uninitialized")})
	}
	now, err := of(a)
	if err != nil || apiequality.Semantic.DeepEqual(old, now) {
		return err
	}
	return initializers.Set(a.GetObject(), old)
}

// write looks at a write of an object that waits.
func (p *Plugin) write(ctx context.Context, a admission.Attributes, old, now *initializers.Initializers, absent bool) error {
	list, err := p.list(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	w := writer{p, ctx, a, list}
	if absent {
		keep, err := w.keeps(old)
		if err != nil {
			return err
		}
		if keep {
			now = old
			warning.AddWarning(ctx, "", kept)
			if err := initializers.Set(a.GetObject(), old); err != nil {
				return err
			}
		}
	}
	c := compare(Names(old), Names(now))
	if err := w.mayWrite(old, c); err != nil {
		return err
	}
	if p.cfg.StrictOwnership {
		if err := w.owns(c); err != nil {
			return err
		}
	}
	var errs field.ErrorList
	if now != nil {
		errs = validate(path, now)
	}
	if old.Result != nil && (now == nil || !apiequality.Semantic.DeepEqual(old.Result, now.Result)) {
		errs = append(errs, field.Invalid(path.Child("result"), nil, "field is immutable"))
	}
	if err := invalid(a, errs); err != nil {
		return err
	}
	if texts := c.warnings(); len(texts) > 0 {
		for _, text := range texts {
			warning.AddWarning(ctx, "", text)
		}
		audit.AddAuditAnnotation(ctx, AuditKey, strings.Join(texts, "; "))
	}
	return nil
}

// writer is who writes an object that waits.
type writer struct {
	*Plugin
	ctx  context.Context
	a    admission.Attributes
	list *List
}

// keeps says that a write that has left the list out is not meant to empty it:
// with one name left it completes the object, as it always has, unless that
// name has an owner who is somebody else.
func (w writer) keeps(old *initializers.Initializers) (bool, error) {
	if len(old.Pending) != 1 {
		return len(old.Pending) > 1, nil
	}
	name := old.Pending[0].Name
	if e := w.list.byName[name]; e == nil || e.terms.Account == "" {
		return false, nil
	}
	owns, _, err := w.owner(name)
	return !owns, err
}

// mayWrite says whether the user may write an object that waits: with the right
// to initialize such objects, or to be the initializers that they take off.
func (w writer) mayWrite(old *initializers.Initializers, c change) error {
	allowed, reason, err := w.may(w.ctx, w.a)
	if err != nil || allowed {
		return err
	}
	names := c.removed
	if len(names) == 0 && len(old.Pending) > 0 {
		names = []string{old.Pending[0].Name}
	}
	for _, name := range names {
		if is, _, err := w.is(name); err != nil {
			return err
		} else if !is {
			return w.denied("update to uninitialized resource denied: %s", reason)
		}
	}
	if len(names) == 0 {
		return w.denied("update to uninitialized resource denied: %s", reason)
	}
	return nil
}

// owns says whether the user may take off and move the names that they do.
func (w writer) owns(c change) error {
	for _, name := range slices.Concat(c.removed, c.moved) {
		owner, reason, err := w.owner(name)
		if err != nil {
			return err
		}
		if !owner {
			return w.denied("removing or moving initializer %q denied: %s", name, reason)
		}
	}
	return nil
}

// owner says that the user is the account of an initializer, or may act as it.
func (w writer) owner(name string) (bool, string, error) {
	if e := w.list.byName[name]; e != nil && e.terms.Account != "" && w.a.GetUserInfo() != nil && accountOfUser(w.a.GetUserInfo().GetName()) == e.terms.Account {
		return true, "", nil
	}
	return w.is(name)
}

// is says that the user may act as an initializer.
func (w writer) is(name string) (bool, string, error) {
	return w.authorize(w.ctx, authorizer.AttributesRecord{
		User: w.a.GetUserInfo(), Verb: verb, APIGroup: v1alpha1.GroupVersion.Group, APIVersion: v1alpha1.GroupVersion.Version,
		Resource: "initializers", Name: name, ResourceRequest: true,
	})
}

func (w writer) denied(format string, args ...any) error {
	return apierrors.NewForbidden(w.a.GetResource().GroupResource(), w.a.GetName(), fmt.Errorf(format, args...))
}

// may says whether the user may initialize the object, and why not.
func (p *Plugin) may(ctx context.Context, a admission.Attributes) (bool, string, error) {
	r := a.GetResource()
	return p.authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: verb, APIGroup: r.Group, APIVersion: r.Version, Resource: r.Resource,
		Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: true,
	})
}

func (p *Plugin) authorize(ctx context.Context, what authorizer.AttributesRecord) (bool, string, error) {
	decision, reason, err := p.cfg.Authorizer.Authorize(ctx, what)
	if decision == authorizer.DecisionAllow {
		return true, "", nil
	}
	if err != nil {
		return false, "", apierrors.NewInternalError(err)
	}
	return false, reason, nil
}
