package ownership

import (
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// beforeFirst owns what was there before the first apply to an object without a
// record.
const beforeFirst = "before-first-apply"

// apply carries an apply out: the new object without its record, and the record.
func (m *Manager) apply(live, applied runtime.Object, owners record, manager string, force bool) (runtime.Object, record, error) {
	if kind := applied.GetObjectKind().GroupVersionKind(); kind != m.Kind {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid object type: %v", kind))
	}
	obj, after, err := m.applyOnce(live, applied, slices.Clone(owners), manager, force)
	if c, isConflict := errors.AsType[conflicts](err); isConflict && manager == kubectl {
		allowed, unknown := m.lastApplied(live)
		if unknown != nil {
			return nil, nil, err
		}
		if c = c.beyond(allowed); len(c) > 0 {
			return nil, nil, c
		}
		obj, after, err = m.applyOnce(live, applied, owners, manager, true)
	}
	if err != nil {
		return nil, nil, err
	}
	if manager == kubectl {
		if err := keepLastApplied(obj, applied); err != nil {
			return nil, nil, err
		}
	}
	return obj, after, nil
}

func (m *Manager) applyOnce(live, applied runtime.Object, owners record, manager string, force bool) (runtime.Object, record, error) {
	if len(owners) == 0 {
		nothing, err := m.empty(m.Kind)
		if err == nil {
			owners, err = m.wrote(nothing, live, owners, beforeFirst)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("failed to create manager for existing fields: %w", err)
		}
	}
	if manager == "" {
		manager = "unknown"
	}
	self := whoIs(manager, metav1.ManagedFieldsOperationApply, m.version, m.Subresource)
	have, want, err := m.toMerge(live, applied)
	if err != nil {
		return nil, nil, err
	}
	merged, after, err := m.merge(have, want, owners, self, force)
	if err != nil {
		return nil, nil, err
	}
	if o := after.get(self); o != nil {
		if left := o.fields.Difference(unowned); left.Empty() {
			after = after.without(self)
		} else {
			after = after.with(o.owning(newSet(left)))
		}
	}
	if merged == nil {
		return withoutRecordOf(live.DeepCopyObject()), after, nil
	}
	if o := after.get(self); o != nil {
		stamped := *o
		stamped.time = now()
		after = after.with(&stamped)
	}
	obj, err := m.stored(merged, applied)
	return obj, after, err
}

func withoutRecordOf(obj runtime.Object) runtime.Object {
	if a, err := meta.Accessor(obj); err == nil {
		a.SetManagedFields(nil)
	}
	return obj
}

// toMerge are the stored object and the applied one as values. Nothing may be
// twice in what is applied.
func (m *Manager) toMerge(live, applied runtime.Object) (have, want *typed.TypedValue, err error) {
	a, err := meta.Accessor(applied)
	if err != nil {
		return nil, nil, fmt.Errorf("couldn't get accessor: %w", err)
	}
	if a.GetManagedFields() != nil {
		return nil, nil, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	shown, err := m.bare(live)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to convert live object (%v) to proper version: %w", describe(live), err)
	}
	if want, err = m.Types.ObjectToTyped(applied); err != nil {
		return nil, nil, fmt.Errorf("failed to create typed patch object (%v): %w", describe(applied), err)
	}
	if have, err = m.Types.ObjectToTyped(shown, typed.AllowDuplicates); err != nil {
		return nil, nil, fmt.Errorf("failed to create typed live object (%v): %w", describe(shown), err)
	}
	return have, want, nil
}

// merge is the stored object with the applied one merged into it, nil when that
// changes nothing, and the record after.
func (m *Manager) merge(have, want *typed.TypedValue, owners record, self who, force bool) (*typed.TypedValue, record, error) {
	if !owners.allIn(m.version) {
		return m.prune(have, want, owners, self, force)
	}
	c := m.newComparison()
	c.live, c.shape = have, shapeOf(have)
	fitting, err := c.fit(owners)
	if err != nil {
		return nil, nil, err
	}
	wanted, err := want.ToFieldSet()
	if err != nil {
		return nil, nil, fmt.Errorf("failed to get field set: %w", err)
	}
	if reset := m.Resets[m.version]; reset != nil {
		wanted = reset.Filter(wanted)
	}
	before := fitting.get(self)
	if before != nil && !before.within(wanted) {
		return m.prune(have, want, owners, self, force)
	}
	if c.obj, err = have.Merge(want); err != nil {
		return nil, nil, fmt.Errorf("failed to merge config: %w", err)
	}
	owners = fitting.with(self.owns(wanted, m.version, before))
	owners, changed, err := c.settle(owners, self)
	if err != nil {
		return nil, nil, err
	}
	if !force && len(changed) > 0 {
		return nil, nil, conflictsOf(changed)
	}
	if value.EqualsUsing(value.NewFreelistAllocator(), have.AsValue(), c.obj.AsValue()) {
		return nil, owners, nil
	}
	return c.obj, owners, nil
}

// owns is the entry of an owner after it has written, at the time of the one
// before.
func (w who) owns(fields *fieldpath.Set, version fieldpath.APIVersion, before *owner) *owner {
	o := &owner{who: w, version: version, fields: newSet(fields)}
	if before != nil {
		o.time = before.time
	}
	return o
}

// allIn says that everybody owns fields in this version.
func (r record) allIn(version fieldpath.APIVersion) bool {
	return !slices.ContainsFunc(r, func(o *owner) bool { return o.version != version })
}

// within says that all that is owned is in a set.
func (o *owner) within(fields *fieldpath.Set) bool { return o.fields.Difference(fields).Empty() }

// prune merges where the applier may have given up fields, or where somebody
// owns fields in another version: what nobody else owns has to go, and it may
// have another name there.
func (m *Manager) prune(have, want *typed.TypedValue, owners record, self who, force bool) (*typed.TypedValue, record, error) {
	updater := (&merge.UpdaterBuilder{Converter: &versions{Manager: m}, IgnoreFilter: m.Resets}).BuildUpdater()
	ids, fields := make(map[string]*owner, len(owners)), make(fieldpath.ManagedFields, len(owners))
	for _, o := range owners {
		id := o.id()
		ids[id], fields[id] = o, fieldpath.NewVersionedSet(o.fields.Set, o.version, o.applies())
	}
	ids[self.id()] = self.owns(nil, m.version, owners.get(self))
	merged, left, err := updater.Apply(have, want, m.version, fields, self.id(), force)
	if c, ok := errors.AsType[merge.Conflicts](err); ok {
		return nil, nil, conflictsWith(c, ids)
	}
	if err != nil {
		return nil, nil, err
	}
	after := make(record, 0, len(left))
	for id, s := range left {
		o := *ids[id]
		o.version = s.APIVersion()
		if o.fields.Set != s.Set() {
			o.fields = newSet(s.Set())
		}
		after = append(after, &o)
	}
	return merged, after, nil
}

// conflictsWith are conflicts with owners that are known by their id.
func conflictsWith(c merge.Conflicts, ids map[string]*owner) conflicts {
	var all conflicts
	for _, one := range c {
		all = append(all, conflict{ids[one.Manager].who, one.Manager, one.Path})
	}
	all.sort()
	return all
}

// stored is a merged value as an object that can be stored, without its record.
func (m *Manager) stored(merged *typed.TypedValue, applied runtime.Object) (runtime.Object, error) {
	obj, err := m.Types.TypedToObject(merged)
	if err != nil {
		return nil, fmt.Errorf("failed to convert new typed object (%v) to object: %w", describe(applied), err)
	}
	if obj, err = m.Scheme.ConvertToVersion(obj, m.Kind.GroupVersion()); err != nil {
		return nil, fmt.Errorf("failed to convert new object (%v) to proper version: %w", describe(applied), err)
	}
	m.Scheme.Default(obj)
	if obj, err = m.Scheme.ConvertToVersion(obj, m.hub); err != nil {
		return nil, fmt.Errorf("failed to convert to unversioned (%v): %w", describe(applied), err)
	}
	return obj, nil
}
