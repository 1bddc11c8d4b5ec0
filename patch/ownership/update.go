package ownership

import (
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// unowned are the fields that nobody owns: who the object is, and what only the
// server writes.
var unowned = fieldpath.NewSet(
	fieldpath.MakePathOrDie("apiVersion"),
	fieldpath.MakePathOrDie("kind"),
	fieldpath.MakePathOrDie("metadata"),
	fieldpath.MakePathOrDie("metadata", "name"),
	fieldpath.MakePathOrDie("metadata", "namespace"),
	fieldpath.MakePathOrDie("metadata", "creationTimestamp"),
	fieldpath.MakePathOrDie("metadata", "selfLink"),
	fieldpath.MakePathOrDie("metadata", "uid"),
	fieldpath.MakePathOrDie("metadata", "clusterName"),
	fieldpath.MakePathOrDie("metadata", "generation"),
	fieldpath.MakePathOrDie("metadata", "managedFields"),
	fieldpath.MakePathOrDie("metadata", "resourceVersion"),
)

var recordPath = fieldpath.MakePathOrDie("metadata", "managedFields")

// wrote returns the record after manager has written obj in place of live: what
// differs is theirs, what is gone is nobody's.
func (m *Manager) wrote(live, obj runtime.Object, owners record, manager string) (record, error) {
	c, err := m.compared(live, obj)
	if err != nil {
		return nil, err
	}
	owners, own, err := c.resettle(owners)
	if err != nil {
		return nil, fmt.Errorf("failed to update ManagedFields (%v): %w", describe(obj), err)
	}
	taken := own.Modified.Union(own.Added)
	if reset := m.Resets[m.version]; reset != nil {
		taken = reset.Filter(taken)
	}
	if taken = taken.Difference(unowned); taken.Empty() {
		return owners.capped(), nil
	}
	if manager == "" {
		manager = "unknown"
	}
	self := &owner{who: whoIs(manager, metav1.ManagedFieldsOperationUpdate, m.version, m.Subresource), version: m.version, time: now()}
	before := m.nothing
	if had := owners.get(self.who); had != nil {
		before = had.fields
	}
	self.fields = before.plus(taken)
	self.fields.isIn(c.shape) // as are the fields that they had, and those that were found
	return owners.with(self).capped(), nil
}

// resettle takes what has changed or is gone from everybody, and returns what
// differs in the version of the request.
func (c *comparison) resettle(owners record) (record, *typed.Comparison, error) {
	owners, err := c.fit(owners)
	if err != nil {
		return nil, nil, err
	}
	if owners, _, err = c.settle(owners, who{}); err != nil {
		return nil, nil, err
	}
	own, err := c.in(c.version)
	return owners, own, err
}

// comparison is what differs between the stored and the new object, in every
// version that somebody asks for. It is for one write.
type comparison struct {
	*Manager
	versions  versions
	shape     shape
	live, obj *typed.TypedValue // nil as long as nobody needs them
	typed     func() error      // makes these two
	hadRecord bool
	byVersion map[fieldpath.APIVersion]*typed.Comparison
}

func (m *Manager) newComparison() *comparison {
	return &comparison{Manager: m, versions: versions{Manager: m}, typed: func() error { return nil }, byVersion: map[fieldpath.APIVersion]*typed.Comparison{}}
}

// compared compares two objects, in the version of requests.
func (m *Manager) compared(live, obj runtime.Object) (*comparison, error) {
	after, err := m.bare(obj)
	if err != nil {
		return nil, fmt.Errorf("failed to convert new object (%v) to proper version (%v): %w", describe(obj), m.version, err)
	}
	before, err := m.bare(live)
	if err != nil {
		return nil, fmt.Errorf("failed to convert live object (%v) to proper version: %w", describe(live), err)
	}
	c := m.newComparison()
	c.hadRecord = hasRecord(live)
	c.typed = func() (err error) {
		if c.obj, err = m.Types.ObjectToTyped(after, typed.AllowDuplicates); err != nil {
			return fmt.Errorf("failed to convert new object (%v) to smd typed: %w", describe(after), err)
		}
		if c.live, err = m.Types.ObjectToTyped(before, typed.AllowDuplicates); err != nil {
			return fmt.Errorf("failed to convert live object (%v) to smd typed: %w", describe(before), err)
		}
		return nil
	}
	if found, err := m.differences(before, after); err == nil {
		c.found(m.version, found)
		c.shape, err = m.shape()
		return c, err
	}
	if err := c.both(); err != nil {
		return nil, err
	}
	c.shape = shapeOf(c.live)
	return c, nil
}

// differences compares two objects without a look at what is equal. An error
// says no more than that it has to be done the long way.
func (m *Manager) differences(before, after runtime.Object) (*typed.Comparison, error) {
	s, err := m.shape()
	if err != nil {
		return nil, err
	}
	d := newDiffer()
	was, isMap := before.(*unstructured.Unstructured)
	is, areMaps := after.(*unstructured.Unstructured)
	if isMap && areMaps {
		if !s.valid(was.Object) {
			return nil, errOdd
		}
		return d.found, d.compare(s, was.Object, is.Object)
	}
	l, r := reflect.ValueOf(before), reflect.ValueOf(after)
	if isMap || areMaps || l.Type() != r.Type() {
		return nil, errOdd
	}
	check, t := m.checked.of(s, l.Type()), s.granular(l, r)
	if t == nil || !check.valid(l) || !check.valid(r) {
		return nil, errOdd
	}
	return d.found, d.structs(s, t, l.Elem(), r.Elem())
}

// found notes what differs in a version, without what cannot be owned in it.
func (c *comparison) found(version fieldpath.APIVersion, differs *typed.Comparison) *typed.Comparison {
	differs = differs.FilterFields(c.Resets[version])
	c.byVersion[version] = differs
	return differs
}

// both makes sure that there are values of both objects.
func (c *comparison) both() error {
	if c.live != nil && c.obj != nil {
		return nil
	}
	return c.typed()
}

var errMissing = errors.New("no such version")

// in is what differs in a version, without what cannot be owned in it;
// errMissing when there is no such version any more.
func (c *comparison) in(version fieldpath.APIVersion) (*typed.Comparison, error) {
	if known := c.byVersion[version]; known != nil {
		return known, nil
	}
	if err := c.both(); err != nil {
		return nil, err
	}
	live, obj := c.live, c.obj
	if version != c.version {
		var err error
		if live, err = c.converted(live, version); err != nil {
			return nil, err
		}
		if obj, err = c.converted(obj, version); err != nil {
			return nil, err
		}
	}
	differs, err := live.Compare(obj)
	if err != nil {
		return nil, fmt.Errorf("failed to compare objects: %w", err)
	}
	return c.found(version, differs), nil
}

func (c *comparison) converted(value *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	shown, err := c.versions.Convert(value, version)
	switch {
	case err == nil:
		return shown, nil
	case c.versions.IsMissingVersionError(err):
		return nil, errMissing
	default:
		return nil, fmt.Errorf("failed to convert to version %s: %w", version, err)
	}
}

// fit is the record by today's schemas. Owners in versions that there are no
// more are dropped.
func (c *comparison) fit(owners record) (record, error) {
	kept := make(record, 0, len(owners)+1)
	for _, o := range owners {
		at, err := c.shapeIn(o.version)
		if errors.Is(err, errMissing) {
			continue
		} else if err != nil {
			return nil, err
		}
		fields, err := o.fields.in(at)
		if err != nil {
			return nil, err
		}
		kept = append(kept, o.owning(fields))
	}
	return kept, nil
}

// shapeIn is the type of the stored object in a version.
func (c *comparison) shapeIn(version fieldpath.APIVersion) (shape, error) {
	if version == c.version {
		return c.shape, nil
	}
	if err := c.both(); err != nil {
		return shape{}, err
	}
	live, err := c.converted(c.live, version)
	if err != nil {
		return shape{}, err
	}
	return shapeOf(live), nil
}

// owning is the owner with another set of fields.
func (o *owner) owning(fields *set) *owner {
	if fields == o.fields {
		return o
	}
	changed := *o
	changed.fields, changed.source = fields, nil
	return &changed
}

// settle takes from everybody but self what the new object changes or no longer
// has, and drops who owns nothing. It also returns what it took because it
// changed.
func (c *comparison) settle(owners record, self who) (record, []taken, error) {
	kept := make(record, 0, len(owners)+1)
	var all []taken
	for _, o := range owners {
		if o.who != self {
			found, err := c.in(o.version)
			if errors.Is(err, errMissing) {
				continue
			} else if err != nil {
				return nil, nil, err
			}
			var changed *fieldpath.Set
			if o, changed = c.lose(o, found); changed != nil {
				all = append(all, taken{o.who, changed})
			}
		}
		if !o.fields.Empty() {
			kept = append(kept, o)
		}
	}
	return kept, all, nil
}

// taken are fields that an owner had and somebody else has changed.
type taken struct {
	from   who
	fields *fieldpath.Set
}

// lose takes from an owner what has changed or is gone, and says what has
// changed, nil for nothing.
func (c *comparison) lose(o *owner, found *typed.Comparison) (left *owner, changed *fieldpath.Set) {
	fields := o.fields.Set
	if changed = fields.Intersection(found.Modified.Union(found.Added)); changed.Empty() {
		changed = nil
	} else {
		fields = fields.Difference(changed)
	}
	if gone := fields.Intersection(found.Removed); !gone.Empty() {
		fields = fields.Difference(gone)
	}
	if c.hadRecord && fields.Has(recordPath) { // the new object has none
		fields = fields.Difference(fieldpath.NewSet(recordPath))
	}
	if fields == o.fields.Set {
		return o, nil
	}
	return o.owning(newSet(fields)), changed
}
