package ownership

import (
	"encoding/json"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
)

// recordOf reads an object's record. Asked for is what a reset says as well.
func recordOf(obj metav1.Object) (r record, reset bool, err error) {
	if list, ok := untypedRecord(obj); ok {
		if r, ok = decodeUntyped(list); ok {
			return r, false, nil
		}
	}
	entries := obj.GetManagedFields()
	if isReset(entries) {
		return nil, true, nil
	}
	r, err = decode(entries)
	return r, false, err
}

// untypedRecord is the record of an object without a Go type, as it has it.
func untypedRecord(obj metav1.Object) ([]any, bool) {
	u, _ := obj.(*unstructured.Unstructured)
	metadata, _ := untypedMetadata(u)
	list, ok := metadata["managedFields"].([]any)
	return list, ok
}

func untypedMetadata(u *unstructured.Unstructured) (map[string]any, bool) {
	if u == nil {
		return nil, false
	}
	metadata, ok := u.Object["metadata"].(map[string]any)
	return metadata, ok
}

// Apart takes the record off an object without a Go type, if nothing is wrong
// with it: whoever looks at such an object reads all of it. It returns what
// gives it back, nil where the record has stayed.
func Apart(obj runtime.Object) (put func()) {
	u, _ := obj.(*unstructured.Unstructured)
	metadata, _ := untypedMetadata(u)
	list, ok := metadata["managedFields"].([]any)
	if !ok {
		return nil
	}
	entries := make([]metav1.ManagedFieldsEntry, len(list))
	for i, item := range list {
		m, _ := item.(map[string]any)
		if entries[i], ok = entryOf(m); !ok {
			return nil
		}
	}
	if len(metav1validation.ValidateManagedFields(entries, nil)) > 0 {
		return nil
	}
	delete(metadata, "managedFields")
	return func() {
		if metadata, ok := untypedMetadata(u); ok {
			metadata["managedFields"] = list
		}
	}
}

// decodeUntyped reads a record that is there as fields. What is not as records
// are written is left to those who read everything.
func decodeUntyped(list []any) (record, bool) {
	r := make(record, 0, len(list)+1)
	var text []byte
	for _, item := range list {
		m, _ := item.(map[string]any)
		e, known := entryOf(m)
		fields, isMap := m["fieldsV1"].(map[string]any)
		if !known || !isMap {
			return nil, false
		}
		if text, isMap = appendFields(text[:0], fields); !isMap {
			return nil, false
		}
		o, err := decodeOwner(&e, text)
		if err != nil {
			return nil, false
		}
		o.source = fields
		r = r.with(o)
	}
	return r, len(r) > 0
}

// entryOf reads an entry but for its fields. It is known when everything in it
// is what it should be.
func entryOf(m map[string]any) (e metav1.ManagedFieldsEntry, known bool) {
	known = true
	text := func(name string) string {
		v, has := m[name]
		s, ok := v.(string)
		known = known && (ok || !has)
		return s
	}
	e = metav1.ManagedFieldsEntry{
		Manager: text("manager"), Operation: metav1.ManagedFieldsOperationType(text("operation")), APIVersion: text("apiVersion"),
		FieldsType: text("fieldsType"), Subresource: text("subresource"),
	}
	if at := text("time"); at != "" {
		t, err := time.Parse(time.RFC3339, at)
		e.Time = &metav1.Time{Time: t.Local()}
		known = known && err == nil
	} else if _, has := m["time"]; has {
		known = false
	}
	return e, known
}

// appendFields writes a tree of fields down, in the order of their names. It is
// not ok if there is something else in it.
func appendFields(text []byte, fields map[string]any) ([]byte, bool) {
	names := make([]string, 0, 16)
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	text = append(text, '{')
	for i, name := range names {
		below, ok := fields[name].(map[string]any)
		if !ok {
			return text, false
		}
		if i > 0 {
			text = append(text, ',')
		}
		text = append(appendText(text, name), ':')
		if len(below) == 0 {
			text = append(text, "{}"...)
		} else if text, ok = appendFields(text, below); !ok {
			return text, false
		}
	}
	return append(text, '}'), true
}

// appendText writes a text down as JSON has it.
func appendText(to []byte, s string) []byte {
	start := len(to)
	to = append(to, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\':
			to = append(to, '\\', c)
		case c < ' ', c > '~':
			quoted, _ := json.Marshal(s) // a text can always be
			return append(to[:start], quoted...)
		default:
			to = append(to, c)
		}
	}
	return append(to, '"')
}

// setRecord gives an object its record.
func setRecord(obj metav1.Object, r record) error {
	if u, ok := obj.(*unstructured.Unstructured); ok && len(r) > 0 {
		metadata, hasMeta := untypedMetadata(u)
		if list, ok := r.encodeUntyped(); ok && hasMeta {
			metadata["managedFields"] = list
			return nil
		}
	}
	entries, err := r.encode()
	if err == nil {
		obj.SetManagedFields(entries)
	}
	return err
}

// encodeUntyped writes a record down as fields. It is not ok for what is not as
// records are.
func (r record) encodeUntyped() ([]any, bool) {
	r.sort()
	list := make([]any, len(r))
	for i, o := range r {
		tree, err := o.fields.asTree()
		if err != nil || o.time != nil && o.time.IsZero() {
			return nil, false
		}
		if o.source != nil && same(o.source, tree) {
			tree = o.source
		} else {
			tree = runtime.DeepCopyJSON(tree)
		}
		m := map[string]any{"operation": string(o.operation), "apiVersion": string(o.version), "fieldsType": "FieldsV1", "fieldsV1": tree}
		if o.manager != "" {
			m["manager"] = o.manager
		}
		if o.subresource != "" {
			m["subresource"] = o.subresource
		}
		if o.time != nil {
			m["time"] = o.time.UTC().Format(time.RFC3339)
		}
		list[i] = m
	}
	return list, true
}

// asTree is the set as fields of an object. It is shared.
func (s *set) asTree() (map[string]any, error) {
	if tree := s.tree.Load(); tree != nil {
		return *tree, nil
	}
	text, err := s.written()
	if err != nil {
		return nil, err
	}
	tree := map[string]any{}
	if err := json.Unmarshal([]byte(text), &tree); err != nil {
		return nil, err
	}
	s.tree.Store(&tree)
	return tree, nil
}

// Differ says that two objects without Go types differ by more than their
// records. Of others it says nothing, which is false.
func Differ(a, b runtime.Object) bool {
	x, isMap := a.(*unstructured.Unstructured)
	y, areMaps := b.(*unstructured.Unstructured)
	return isMap && areMaps && !same(withoutRecord(x).Object, withoutRecord(y).Object)
}
