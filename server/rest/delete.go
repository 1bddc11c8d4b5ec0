package rest

import (
	"errors"
	"net/http"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	upstream "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/store"
)

func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{}
	body, err := c.body()
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		info, err := metaCodec().InputOf(c.r)
		if err != nil {
			return nil, err
		}
		// Compat: clients may send the options in any group's version.
		kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
		obj, err := metaCodec().DecodeInto(info, body, kind, o)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		decoded, ok := obj.(*metav1.DeleteOptions)
		if !ok {
			return nil, apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
		}
		o = decoded
	} else if err := c.options(o); err != nil {
		return nil, err
	}
	o.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("DeleteOptions")) // for admission
	return o, invalidOptions("DeleteOptions", metav1validation.ValidateDeleteOptions(o))
}

func (c *call) delete() error {
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if err := c.checkDelete(c.info.Name, options); err != nil {
		return err
	}
	deleted, stored, err := c.deleteObject(options)
	if err != nil {
		return err
	}
	code := http.StatusOK
	// Compat: only this way of asking for dependents to go first is answered
	// with 202.
	if !deleted && options.OrphanDependents != nil && !*options.OrphanDependents { //nolint:staticcheck // old clients use it
		code = http.StatusAccepted
	}
	if !deleted || c.resource.ReturnsDeleted {
		return c.respond(code, stored)
	}
	obj, err := c.stored(stored)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	c.writeStatus(code, &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: m.GetName(), Group: c.resource.Group, Kind: c.resource.Name, UID: m.GetUID(),
	}})
	return nil
}

// checkDelete asks the kind about a deletion before anything is done.
func (c *call) checkDelete(name string, options *metav1.DeleteOptions) error {
	if c.resource.CheckDelete == nil {
		return nil
	}
	text, err := c.resource.CheckDelete(c.ctx, name, options)
	if text != "" {
		warning.AddWarning(c.ctx, "", text)
	}
	return err
}

// deleteObject deletes the object that the request names, or marks it as being
// deleted where a grace period or finalizers keep it. It returns the object as
// it is then, or was last.
func (c *call) deleteObject(options *metav1.DeleteOptions) (deleted bool, stored *store.Object, err error) {
	for range commitTries {
		deleted, stored, err = c.deleteOnce(options)
		if !isConflict(err) {
			return deleted, stored, err
		}
	}
	return false, nil, apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New(optimisticLock))
}

func (c *call) deleteOnce(options *metav1.DeleteOptions) (bool, *store.Object, error) {
	have, obj, err := c.load()
	if err != nil {
		return false, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return false, nil, err
	}
	was := obj.DeepCopyObject()
	options = options.DeepCopy() // BeforeDelete fills in the grace period
	graceful, pending, err := upstream.BeforeDelete(c.resource.Delete, c.ctx, obj, options)
	if err != nil {
		return false, nil, err
	}
	if pending {
		return false, have, nil
	}
	dryRun := isDryRun(options.DryRun)
	if err := c.admitDeletion(was, options, dryRun); err != nil {
		return false, nil, err
	}
	m.SetFinalizers(c.deletionFinalizers(m, options))
	kept := len(m.GetFinalizers()) > 0
	if l := c.resource.Linger; l != nil && (m.GetDeletionTimestamp() == nil || l.Held(obj)) {
		kept = true
		if m.GetDeletionTimestamp() == nil {
			now := metav1.NewTime(time.Now())
			m.SetDeletionTimestamp(&now)
			l.Mark(obj)
		}
	} else if kept && !graceful {
		markDeleting(m)
	}
	if kept || graceful && *options.GracePeriodSeconds > 0 {
		stored, err := c.rewrite(obj, have, dryRun)
		return false, stored, err
	}
	stored, err := c.remove(obj, have, dryRun)
	return true, stored, err
}

// admitDeletion lets admission refuse the deletion of an object. Compat: where a
// subresource deletes, admission has been asked about that.
func (c *call) admitDeletion(old runtime.Object, options *metav1.DeleteOptions, dryRun bool) error {
	if c.sub != nil {
		return nil
	}
	name := c.info.Name
	if c.info.Verb == "deletecollection" {
		name = "" // Compat: admission is told what the request names
	}
	a := admission.NewAttributesRecord(nil, old, c.kind, c.info.Namespace, name, c.kind.GroupVersion().WithResource(c.resource.Name), c.info.Subresource, admission.Delete, options, dryRun, c.user)
	if err := c.mutate(a); err != nil {
		return err
	}
	return c.validate(a)
}

// deletionFinalizers are the object's finalizers once a deletion has begun:
// the propagation that is asked for, or is the kind's habit, is one of them.
func (c *call) deletionFinalizers(m metav1.Object, options *metav1.DeleteOptions) []string {
	habit := upstream.DeleteDependents
	if s, ok := c.resource.Delete.(upstream.GarbageCollectionDeleteStrategy); ok {
		habit = s.DefaultGarbageCollectionPolicy(c.ctx)
	}
	finalizers := m.GetFinalizers()
	had := func(f string) bool { return slices.Contains(finalizers, f) }
	orphan, foreground := false, false
	switch {
	case habit == upstream.Unsupported:
	case options.OrphanDependents != nil: //nolint:staticcheck // old clients use it
		orphan = *options.OrphanDependents //nolint:staticcheck // old clients use it
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	case had(metav1.FinalizerOrphanDependents):
		orphan = true
	case had(metav1.FinalizerDeleteDependents):
		foreground = true
	default:
		orphan = habit == upstream.OrphanDependents
	}
	kept := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	return kept
}

// markDeleting says on the object that its deletion has begun.
func markDeleting(m metav1.Object) {
	now := metav1.NewTime(time.Now())
	if m.GetDeletionTimestamp() == nil && m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	if t := m.GetDeletionTimestamp(); t == nil || t.After(now.Time) {
		m.SetDeletionTimestamp(&now)
	}
	m.SetDeletionGracePeriodSeconds(new(int64))
}

// rewrite stores obj in place of have, unless they are the same.
func (c *call) rewrite(obj runtime.Object, have *store.Object, dryRun bool) (*store.Object, error) {
	if old, err := c.stored(have); err != nil || apiequality.Semantic.DeepEqual(obj, old) {
		return have, err
	}
	op, err := c.op(obj, store.At(have.Rev))
	if err != nil {
		return nil, err
	}
	if dryRun {
		return c.pretend(op, obj)
	}
	return c.commit(op, "")
}

// remove deletes have, whose last state is obj.
func (c *call) remove(obj runtime.Object, have *store.Object, dryRun bool) (*store.Object, error) {
	op, err := c.op(obj, store.At(have.Rev))
	if err != nil {
		return nil, err
	}
	if dryRun {
		return c.pretend(op, obj)
	}
	along, err := c.joinRemoval(have)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	beside, err := c.forget(m.GetUID())
	if err != nil {
		return nil, err
	}
	op.Delete = true
	rev, err := c.write("", op, append(along, beside...)...)
	if err != nil {
		return nil, err
	}
	return store.Finish(op, rev), nil
}

func (c *call) deleteCollection() error {
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	query, err := c.listOptions()
	if err != nil {
		return err
	}
	if err := c.checkDelete("", options); err != nil {
		return err
	}
	query.uninitialized = true // all of them go
	page, err := c.page(query)
	if err != nil {
		return err
	}
	for _, o := range page.objects {
		one := *c
		info := *c.info.RequestInfo
		info.Namespace, info.Name = c.resource.SplitKey(o.Key())
		named := *c.info
		named.RequestInfo = &info
		one.info = &named
		// Compat: the answer is the list as it was before.
		if _, _, err := one.deleteObject(options.DeepCopy()); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return c.respondList(page)
}
