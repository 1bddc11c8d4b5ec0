package initializers

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Taken is what an object carried before it was taken off.
type Taken struct {
	texts []string // by place; nil when there were none
	there bool     // in an object without a Go type
	value any
}

// CarriedBy is what an object carries. The object stays as it is.
func CarriedBy(obj runtime.Object) Taken {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		about, _ := u.Object["metadata"].(map[string]any)
		var t Taken
		t.value, t.there = about[field]
		return t
	}
	spots := Spots(obj)
	if spots == nil {
		return Taken{}
	}
	places := Places(obj)
	t := Taken{texts: make([]string, len(places))}
	for i := range places {
		for _, spot := range spots {
			if spot.meta == places[i].in(reflect.ValueOf(obj).Elem()) {
				t.texts[i] = spot.Text
			}
		}
	}
	return t
}

// Any says that something was carried.
func (t Taken) Any() bool { return t.there || t.texts != nil }

// Detach takes off what an object carries, so that others see the object without.
// An annotation that only looks like it goes, too: it is nobody's to set.
func Detach(obj runtime.Object) Taken {
	t := CarriedBy(obj)
	if u, ok := obj.(*unstructured.Unstructured); ok {
		about, _ := u.Object["metadata"].(map[string]any)
		delete(about, field)
		if annotations, _ := about["annotations"].(map[string]any); annotations[Carried] != nil {
			delete(annotations, Carried)
		}
		return t
	}
	if t.Any() {
		spots := Spots(obj)
		for i := range spots {
			spots[i].Clean()
		}
	}
	return t
}

// Bare is an object without what it carries: a copy where it carries something,
// and otherwise itself.
func Bare(obj runtime.Object) runtime.Object {
	if obj == nil || !CarriedBy(obj).Any() {
		return obj
	}
	bare := obj.DeepCopyObject()
	Detach(bare)
	return bare
}

// Attach gives an object of the same kind, in any version, what was taken off.
func (t Taken) Attach(obj runtime.Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if !t.there {
			return
		}
		about, ok := u.Object["metadata"].(map[string]any)
		if !ok {
			about = map[string]any{}
			u.Object["metadata"] = about
		}
		about[field] = t.value
		return
	}
	if t.texts == nil {
		return
	}
	for i, p := range Places(obj) {
		p.Put(obj, t.texts[i])
	}
}

// Cut takes the field out of plain values of a kind: a manifest, or a patch. What
// it returns has, by place, the value of those that were there; kind is an object
// of the kind in the version that the values are of.
func Cut(fields map[string]any, kind runtime.Object) map[int]any {
	places := Places(kind)
	if _, untyped := kind.(*unstructured.Unstructured); untyped {
		places = []Place{{Path: []string{"metadata"}}}
	}
	var found map[int]any
	for i, p := range places {
		at := fields
		for _, name := range p.Path {
			at, _ = at[name].(map[string]any)
		}
		value, there := at[field]
		if !there {
			continue
		}
		delete(at, field)
		if found == nil {
			found = map[int]any{}
		}
		found[i] = value
	}
	return found
}

// Merged is what an object carries after a change to some places: what change
// makes, of the value that was there before, nil for none, and the one that was
// sent. A value of nil is the field sent as null.
func (t Taken) Merged(obj runtime.Object, sent map[int]any, change func(had, sent any) (any, error)) (Taken, []error, error) {
	_, untyped := obj.(*unstructured.Unstructured)
	places := Places(obj)
	if !untyped && len(sent) > 0 {
		t.texts = append(make([]string, 0, len(places)), t.texts...)
		t.texts = append(t.texts, make([]string, len(places)-len(t.texts))...)
	}
	var wrong []error
	for n, value := range sent {
		var had any
		switch {
		case untyped:
			had = t.value
		case t.texts[n] != "":
			if err := json.Unmarshal([]byte(t.texts[n]), &had); err != nil {
				return t, nil, err
			}
		}
		made, err := change(had, value)
		if err != nil {
			return t, nil, err
		}
		text, unknown, err := normal(made)
		if err != nil {
			return t, nil, fmt.Errorf("metadata.%s: %w", field, err)
		}
		if untyped {
			t.value, t.there = nil, true
			if err := json.Unmarshal([]byte(text), &t.value); err != nil {
				return t, nil, err
			}
			continue
		}
		metadata := strings.Join(places[n].Path, ".")
		for _, e := range unknown {
			wrong = append(wrong, Within(e, metadata))
		}
		if text == null && n > 0 {
			text = "" // in a template it says nothing
		}
		t.texts[n] = text
	}
	return t, wrong, nil
}

// normal is a value as an object carries it.
func normal(value any) (text string, unknown []error, err error) {
	if value == nil {
		return null, nil, nil
	}
	b, err := json.Marshal(value)
	if err != nil {
		return "", nil, err
	}
	i, unknown, err := Read(b)
	if err != nil {
		return "", nil, err
	}
	b, err = json.Marshal(i)
	return string(b), unknown, err
}
