package ownership

import (
	"maps"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// shape is a type in a schema.
type shape struct {
	schema *smdschema.Schema
	ref    smdschema.TypeRef
}

func (s shape) equals(t shape) bool { return s.schema == t.schema && s.ref.Equals(&t.ref) }

// shapeOf is the type of a value.
func shapeOf(v *typed.TypedValue) shape { return shape{v.Schema(), v.TypeRef()} }

// findShape finds the type that objects have in the version of requests.
func (m *Manager) findShape() (shape, error) {
	obj, err := m.empty(m.Kind)
	if err != nil {
		return shape{}, err
	}
	v, err := m.Types.ObjectToTyped(obj)
	if err != nil {
		return shape{}, err
	}
	return shapeOf(v), nil
}

// empty is an object with nothing in it.
func (m *Manager) empty(kind schema.GroupVersionKind) (runtime.Object, error) {
	obj, err := m.Scheme.New(kind)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return obj, nil
}

// bare is an object in the version of requests and without its record, which
// nobody owns. It shares with the object what it can.
func (m *Manager) bare(obj runtime.Object) (runtime.Object, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		obj = withoutRecord(u)
	}
	shown, err := m.convert(obj, m.Kind.GroupVersion())
	if err != nil {
		return nil, err
	}
	if _, ok := shown.(*unstructured.Unstructured); ok {
		return shown, nil
	}
	if shown == obj { // it was in that version
		shown = obj.DeepCopyObject()
	}
	a, err := meta.Accessor(shown)
	if err != nil {
		return nil, err
	}
	a.SetManagedFields(nil)
	return shown, nil
}

// withoutRecord is an object without its record; the rest is shared.
func withoutRecord(u *unstructured.Unstructured) *unstructured.Unstructured {
	metadata, ok := u.Object["metadata"].(map[string]any)
	if _, has := metadata["managedFields"]; !ok || !has {
		return u
	}
	object, kept := make(map[string]any, len(u.Object)), make(map[string]any, len(metadata))
	maps.Copy(object, u.Object)
	for k, v := range metadata {
		if k != "managedFields" {
			kept[k] = v
		}
	}
	object["metadata"] = kept
	return &unstructured.Unstructured{Object: object}
}

// unsafeConvertor converts without a copy of what stays as it is.
type unsafeConvertor interface {
	UnsafeConvertToVersion(runtime.Object, runtime.GroupVersioner) (runtime.Object, error)
}

// convert converts an object that is only going to be read.
func (m *Manager) convert(obj runtime.Object, to schema.GroupVersion) (runtime.Object, error) {
	if unsafe, ok := m.Scheme.(unsafeConvertor); ok {
		return unsafe.UnsafeConvertToVersion(obj, to)
	}
	return m.Scheme.ConvertToVersion(obj, to)
}

// versions shows values in other versions, each once. It is for one write.
type versions struct {
	*Manager
	shown map[seen]*typed.TypedValue
}

type seen struct {
	value   *typed.TypedValue
	version fieldpath.APIVersion
}

// Convert implements merge.Converter.
func (v *versions) Convert(value *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	key := seen{value, version}
	if known := v.shown[key]; known != nil {
		return known, nil
	}
	converted, err := v.in(value, version)
	if err != nil {
		return value, err
	}
	if v.shown == nil {
		v.shown = map[seen]*typed.TypedValue{}
	}
	v.shown[key] = converted
	return converted, nil
}

func (v *versions) in(value *typed.TypedValue, version fieldpath.APIVersion) (*typed.TypedValue, error) {
	to, err := schema.ParseGroupVersion(string(version))
	if err != nil {
		return nil, err
	}
	if isIn(value, to) {
		return value, nil
	}
	obj, err := v.Types.TypedToObject(value)
	if err != nil {
		return nil, err
	}
	hub := v.hub
	if !v.Untyped {
		hub.Group = obj.GetObjectKind().GroupVersionKind().Group
	}
	if obj, err = v.Scheme.ConvertToVersion(obj, hub); err != nil {
		return nil, err
	}
	if obj, err = v.Scheme.ConvertToVersion(obj, to); err != nil {
		return nil, err
	}
	return v.Types.ObjectToTyped(obj)
}

// isIn says that a value calls itself one of a version.
func isIn(value *typed.TypedValue, version schema.GroupVersion) bool {
	if v := value.AsValue(); v != nil && v.IsMap() {
		if said, ok := v.AsMap().Get("apiVersion"); ok && said.IsString() {
			gv, err := schema.ParseGroupVersion(said.AsString())
			return err == nil && gv == version
		}
	}
	return false
}

// IsMissingVersionError implements merge.Converter.
func (v *versions) IsMissingVersionError(err error) bool {
	return runtime.IsNotRegisteredError(err) || reflect.TypeOf(err) == noType
}

// noType is the type of the error of a kind that is not in the schemas. It has
// no name outside its package.
var noType = func() reflect.Type {
	none, err := managedfields.NewTypeConverter(nil, false)
	if err != nil {
		return nil
	}
	_, err = none.ObjectToTyped(&unstructured.Unstructured{Object: map[string]any{}})
	return reflect.TypeOf(err)
}()

// hasRecord says that an object has a record, be it empty.
func hasRecord(obj runtime.Object) bool {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		metadata, _ := u.Object["metadata"].(map[string]any)
		_, has := metadata["managedFields"]
		return has
	}
	a, err := meta.Accessor(obj)
	return err == nil && len(a.GetManagedFields()) > 0
}
