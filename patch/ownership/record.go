package ownership

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// maxUpdaters is how many owners by update a record names; the oldest are
// joined beyond that.
const maxUpdaters = 10

// ancient is the name that joined owners get.
const ancient = "ancient-changes"

// record says who owns what. No two owners are the same one. Owners are shared
// between records and replaced, not changed.
type record []*owner

// owner is one entry of a record.
type owner struct {
	who
	version fieldpath.APIVersion // that fields are named in
	time    *metav1.Time
	fields  *set
	source  map[string]any // what fields were read from; nil for nothing that can be used again
}

// who is what tells owners apart.
type who struct {
	manager     string
	operation   metav1.ManagedFieldsOperationType
	version     fieldpath.APIVersion // "" for who applies: it is one owner in all versions
	subresource string
}

// whoIs is who writes in a version, by an operation, through a subresource.
func whoIs(manager string, operation metav1.ManagedFieldsOperationType, version fieldpath.APIVersion, subresource string) who {
	w := who{plain(manager), operation, "", plain(subresource)}
	if operation != metav1.ManagedFieldsOperationApply {
		w.version = fieldpath.APIVersion(plain(string(version)))
	}
	return w
}

// plain is a text as JSON can say it.
func plain(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

func (w who) applies() bool { return w.operation == metav1.ManagedFieldsOperationApply }

// id is the text that upstream knows an owner by; ties are broken by its order.
func (w who) id() string {
	// It cannot fail: all of it is text.
	text, _ := json.Marshal(&metav1.ManagedFieldsEntry{
		Manager: w.manager, Operation: w.operation, APIVersion: string(w.version), Subresource: w.subresource,
	})
	return string(text)
}

// Kept is an object's record as it was at some time, to see later whether
// somebody has put another in its place. Entries that are changed where they
// are go unnoticed.
type Kept struct {
	entries []metav1.ManagedFieldsEntry
	fields  []any // those of an object without a Go type, as it has them
	read    bool
}

// Keep remembers an object's record.
func Keep(obj metav1.Object) Kept {
	if fields, ok := untypedRecord(obj); ok {
		return Kept{fields: fields}
	}
	return Kept{entries: slices.Clone(obj.GetManagedFields()), read: true}
}

// In says that an object has the very record that is kept.
func (k Kept) In(obj metav1.Object) bool {
	if !k.read {
		fields, ok := untypedRecord(obj)
		return ok && len(fields) == len(k.fields) && (len(fields) == 0 || &fields[0] == &k.fields[0])
	}
	return slices.Equal(obj.GetManagedFields(), k.entries)
}

// Restore gives an object the record that is kept.
func (k Kept) Restore(obj metav1.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if metadata, has := untypedMetadata(u); ok && has && !k.read {
		metadata["managedFields"] = k.fields
		return
	}
	obj.SetManagedFields(k.entries)
}

// decode reads a record.
func decode(entries []metav1.ManagedFieldsEntry) (record, error) {
	r := make(record, 0, len(entries)+1)
	for i := range entries {
		text := []byte("{}")
		if fields := entries[i].FieldsV1; fields != nil {
			text = fields.GetRawBytes()
		}
		o, err := decodeOwner(&entries[i], text)
		if err != nil {
			if said := managedfields.ValidateManagedFields(entries); said != nil {
				err = said
			}
			return nil, err
		}
		r = r.with(o)
	}
	return r, nil
}

// decodeOwner reads an entry whose fields are written as this text.
func decodeOwner(e *metav1.ManagedFieldsEntry, text []byte) (*owner, error) {
	applies := e.Operation == metav1.ManagedFieldsOperationApply
	if !applies && e.Operation != metav1.ManagedFieldsOperationUpdate || e.APIVersion == "" || e.FieldsType != "FieldsV1" {
		return nil, errors.New("not an entry of managed fields")
	}
	fields, err := parse(text)
	if err != nil {
		return nil, err
	}
	version := fieldpath.APIVersion(e.APIVersion)
	return &owner{who: whoIs(e.Manager, e.Operation, version, e.Subresource), version: version, time: e.Time, fields: fields}, nil
}

// find is where an owner is, -1 if nowhere.
func (r record) find(w who) int {
	return slices.IndexFunc(r, func(o *owner) bool { return o.who == w })
}

// get is an owner's entry, nil if there is none.
func (r record) get(w who) *owner {
	if i := r.find(w); i >= 0 {
		return r[i]
	}
	return nil
}

// with is the record with an owner in it, in place of what it was.
func (r record) with(o *owner) record {
	if i := r.find(o.who); i >= 0 {
		r[i] = o
		return r
	}
	return append(r, o)
}

// without is the record without an owner.
func (r record) without(w who) record {
	return slices.DeleteFunc(r, func(o *owner) bool { return o.who == w })
}

// sort puts owners in the order that records have them in.
func (r record) sort() {
	slices.SortFunc(r, func(a, b *owner) int {
		return firstOf(strings.Compare(string(a.operation), string(b.operation)), a.age(b), strings.Compare(a.manager, b.manager),
			strings.Compare(string(a.version), string(b.version)), strings.Compare(a.subresource, b.subresource))
	})
}

// encode writes a record down.
func (r record) encode() ([]metav1.ManagedFieldsEntry, error) {
	if len(r) == 0 {
		return nil, nil
	}
	r.sort()
	entries := make([]metav1.ManagedFieldsEntry, len(r))
	for i, o := range r {
		fields, err := o.fields.encode()
		if err != nil {
			return nil, fmt.Errorf("failed to encode managed fields: %w", err)
		}
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: o.manager, Operation: o.operation, APIVersion: string(o.version), Subresource: o.subresource,
			Time: o.time, FieldsType: "FieldsV1", FieldsV1: fields,
		}
	}
	return entries, nil
}

// age compares when two owners last wrote, to the second; who does not say
// comes first.
func (o *owner) age(than *owner) int {
	seconds := func(t *metav1.Time) int64 {
		if t == nil {
			return 0
		}
		return t.Unix()
	}
	a, b := seconds(o.time), seconds(than.time)
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func firstOf(orders ...int) int {
	for _, o := range orders {
		if o != 0 {
			return o
		}
	}
	return 0
}

func now() *metav1.Time { return &metav1.Time{Time: time.Now().UTC()} }

// capped joins the oldest owners by update, each version's with their like,
// until there are maxUpdaters. Compat: the last one of a version is not joined
// with anything, and what was joined before is lost when it is not the oldest.
func (r record) capped() record {
	var updaters []*owner
	for _, o := range r {
		if !o.applies() {
			updaters = append(updaters, o)
		}
	}
	if len(updaters) <= maxUpdaters {
		return r
	}
	slices.SortFunc(updaters, func(a, b *owner) int { return firstOf(a.age(b), strings.Compare(a.id(), b.id())) })
	oldest := map[fieldpath.APIVersion]who{}
	for i, left := 0, len(updaters); i < len(updaters) && left > maxUpdaters; i++ {
		o := updaters[i]
		first, seen := oldest[o.version]
		if !seen {
			oldest[o.version] = o.who
			continue
		}
		bucket := whoIs(ancient, metav1.ManagedFieldsOperationUpdate, o.version, "")
		joined := r.get(bucket)
		if joined == nil {
			joined = r.get(first)
			r = r.without(first)
		}
		r = r.with(&owner{who: bucket, version: o.version, time: o.time, fields: newSet(o.fields.Union(joined.fields.Set))})
		r = r.without(o.who)
		left--
	}
	return r
}
