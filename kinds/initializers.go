package kinds

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	initializers "setpoint.dev/setpoint/api/initializers/v1alpha1"
	"setpoint.dev/setpoint/api/initializers/validation"
)

func init() { utilruntime.Must(initializers.AddToScheme(legacyscheme.Scheme)) }

// initializerRow is the kind of Kubernetes 1.7 to 1.13, in the version that it
// was served in.
func initializerRow() row {
	return row{
		name: initializers.Resource, kind: initializers.Kind, versions: []string{initializers.GroupVersion.Version},
		strategy: initializerStrategy{}, status: initializerStatusStrategy{}, columns: initializerColumns{},
	}
}

// initializerStrategy writes all but the status. Compat: an update has to name a
// revision, and creates nothing.
type initializerStrategy struct{}

func (initializerStrategy) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	return legacyscheme.Scheme.ObjectKinds(obj)
}

func (initializerStrategy) Recognizes(kind schema.GroupVersionKind) bool {
	return legacyscheme.Scheme.Recognizes(kind)
}

func (initializerStrategy) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}
func (initializerStrategy) NamespaceScoped() bool          { return false }
func (initializerStrategy) AllowCreateOnUpdate() bool      { return false }
func (initializerStrategy) AllowUnconditionalUpdate() bool { return false }
func (initializerStrategy) Canonicalize(runtime.Object)    {}

func (initializerStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	c := obj.(*initializers.InitializerConfiguration)
	c.Generation, c.Status = 1, initializers.InitializerConfigurationStatus{}
}

func (initializerStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, was := obj.(*initializers.InitializerConfiguration), old.(*initializers.InitializerConfiguration)
	c.Generation, c.Status = was.Generation, was.Status
	if !apiequality.Semantic.DeepEqual(c.Initializers, was.Initializers) {
		c.Generation++
	}
}

func (initializerStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.Validate(obj.(*initializers.InitializerConfiguration))
}

func (initializerStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateUpdate(obj.(*initializers.InitializerConfiguration), old.(*initializers.InitializerConfiguration))
}

func (initializerStrategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

func (initializerStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

func (initializerStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetIn("status")
}

// initializerStatusStrategy writes the status alone.
type initializerStatusStrategy struct{ initializerStrategy }

func (initializerStatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	c, was := obj.(*initializers.InitializerConfiguration), old.(*initializers.InitializerConfiguration)
	c.Generation, c.Initializers = was.Generation, was.Initializers
}

func (initializerStatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateStatus(obj.(*initializers.InitializerConfiguration), old.(*initializers.InitializerConfiguration))
}

func (initializerStatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return resetIn("initializers")
}

func resetIn(name string) map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(initializers.GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie(name)),
	}
}

// initializerColumns tell how many initializers there are, and how many objects
// wait for them.
type initializerColumns struct{}

func (initializerColumns) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	doc := metav1.ObjectMeta{}.SwaggerDoc()
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: doc["name"]},
		{Name: "Initializers", Type: "integer", Description: "How many initializers the configuration has."},
		{Name: "Pending", Type: "integer", Description: "How many objects wait for one of them."},
		{Name: "Age", Type: "string", Description: doc["creationTimestamp"]},
	}}
	describeTable(t, obj)
	var err error
	t.Rows, err = metatable.MetaToTableRow(obj, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		c, ok := obj.(*initializers.InitializerConfiguration)
		if !ok {
			return nil, fmt.Errorf("%T is not an InitializerConfiguration", obj)
		}
		var pending int64
		for _, s := range c.Status.Initializers {
			pending += s.Pending
		}
		return []any{name, int64(len(c.Initializers)), pending, age}, nil
	})
	return t, err
}

// describeTable gives a table what its objects' metadata says of it.
func describeTable(t *metav1.Table, of runtime.Object) {
	if l, err := meta.ListAccessor(of); err == nil {
		t.ResourceVersion = l.GetResourceVersion()
		t.Continue = l.GetContinue()
		t.RemainingItemCount = l.GetRemainingItemCount()
	} else if o, err := meta.CommonAccessor(of); err == nil {
		t.ResourceVersion = o.GetResourceVersion()
	}
}
