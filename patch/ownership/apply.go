package ownership

import (
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	before := owners.get(self)
	obj, after, err := m.merged(live, applied, owners, self, force)
	if err != nil {
		return nil, nil, err
	}
	if o := after.get(self); o != nil {
		if left := o.fields.Difference(unowned); left.Empty() {
			after = after.without(self)
		} else {
			after = after.with(o.owning(m.asBefore(before, left)))
		}
	}
	if obj == nil {
		return unchanged(live), after, nil
	}
	if o := after.get(self); o != nil {
		stamped := *o
		stamped.time = now()
		after = after.with(&stamped)
	}
	return obj, after, nil
}

// asBefore is a set that an owner has from now on: the one that it had, if that
// is equal.
func (m *Manager) asBefore(before *owner, fields *fieldpath.Set) *set {
	if before != nil && before.fields.Equals(fields) {
		return before.fields
	}
	return m.nothing.plus(fields)
}

// unchanged is an object as it is, without its record.
func unchanged(obj runtime.Object) runtime.Object {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return withoutRecord(u).DeepCopy()
	}
	obj = obj.DeepCopyObject()
	if a, err := meta.Accessor(obj); err == nil {
		a.SetManagedFields(nil)
	}
	return obj
}

// merged is the stored object with the applied one merged into it, nil when that
// changes nothing, and the record after. Nothing may be twice in what is
// applied.
func (m *Manager) merged(live, applied runtime.Object, owners record, self who, force bool) (runtime.Object, record, error) {
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
	want, err := m.wanted(applied)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to create typed patch object (%v): %w", describe(applied), err)
	}
	obj, after, err := m.mergePart(shown, applied, want, owners, self, force)
	if !errors.Is(err, errOdd) {
		return obj, after, err
	}
	have, err := m.Types.ObjectToTyped(shown, typed.AllowDuplicates)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to create typed live object (%v): %w", describe(shown), err)
	}
	all, after, err := m.mergeAll(have, want.value, owners, self, force)
	if err != nil || all == nil {
		return nil, after, err
	}
	obj, err = m.stored(all, applied)
	return obj, after, err
}

// wanted is what is applied, and the fields that it names, nil if they cannot be told.
type wanted struct {
	value  *typed.TypedValue
	fields *fieldpath.Set
}

func (m *Manager) wanted(applied runtime.Object) (wanted, error) {
	manifest, isMap := applied.(*unstructured.Unstructured)
	if s, err := m.shape(); err == nil && isMap {
		if fields, ok := s.named(manifest.Object); ok {
			return wanted{typed.AsTypedUnvalidated(value.NewValueInterface(manifest.Object), s.schema, s.ref), fields}, nil //nolint:staticcheck // it is valid
		}
	}
	want, err := m.Types.ObjectToTyped(applied)
	if err != nil {
		return wanted{}, err
	}
	fields, err := want.ToFieldSet()
	if err != nil {
		fields = nil
	}
	return wanted{want, fields}, nil
}

// mergePart merges with a look at those parts only that the applied object
// names. An odd error says that it takes a look at all.
func (m *Manager) mergePart(shown, applied runtime.Object, want wanted, owners record, self who, force bool) (runtime.Object, record, error) {
	if want.fields == nil || !owners.allIn(m.version) {
		return nil, nil, errOdd
	}
	c := m.newComparison()
	var err error
	if c.shape, err = m.shape(); err != nil {
		return nil, nil, errOdd
	}
	owners, err = c.claim(owners, want.fields, self)
	if err != nil {
		return nil, nil, errOdd
	}
	if len(owners) == 1 && isBlank(shown) {
		obj, err := asApplied(shown, applied)
		if err != nil {
			return nil, nil, errOdd
		}
		obj, err = m.defaulted(obj, applied)
		return obj, owners, err
	}
	g, err := m.newGraft(shown, applied, want.value)
	if err != nil {
		return nil, nil, errOdd
	}
	differs, err := g.differs()
	if err != nil {
		return nil, nil, errOdd
	}
	c.found(m.version, differs)
	owners, changed, err := c.settle(owners, self)
	if err != nil {
		return nil, nil, err
	}
	if !force && len(changed) > 0 {
		return nil, nil, conflictsOf(changed)
	}
	if !g.changes() {
		return nil, owners, nil
	}
	obj, err := g.grown()
	if err != nil {
		return nil, nil, errOdd
	}
	obj, err = m.defaulted(obj, applied)
	return obj, owners, err
}

// claim is the record with the applier as the owner of all it wants; odd when it
// has given up something.
func (c *comparison) claim(owners record, wanted *fieldpath.Set, self who) (record, error) {
	owners, err := c.fit(owners)
	if err != nil {
		return nil, err
	}
	if reset := c.Resets[c.version]; reset != nil {
		wanted = reset.Filter(wanted)
	}
	before := owners.get(self)
	if before != nil && !before.within(wanted) {
		return nil, errOdd
	}
	return owners.with(self.owns(wanted, c.version, before)), nil
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

// mergeAll merges two whole values. It can tell what has to go: what the applier
// has given up and nobody else owns, be it by another name in another version.
func (m *Manager) mergeAll(have, want *typed.TypedValue, owners record, self who, force bool) (*typed.TypedValue, record, error) {
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
	return m.defaulted(obj, applied)
}

// defaulted fills in an object's defaults and brings it into the version that
// objects are kept in. It may change what it is given.
func (m *Manager) defaulted(obj, applied runtime.Object) (runtime.Object, error) {
	m.Scheme.Default(obj)
	obj, err := m.convert(obj, m.hub)
	if err != nil {
		return nil, fmt.Errorf("failed to convert to unversioned (%v): %w", describe(applied), err)
	}
	return obj, nil
}
