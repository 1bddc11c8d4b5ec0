package kinds

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// MetricsGroup is the group of what nodes and pods use.
const MetricsGroup = metrics.GroupName

// metricsGroup is what metrics-server serves elsewhere. Nothing of it is stored:
// nodes are asked.
func metricsGroup() group {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	read := []string{"get", "list"}
	return group{name: MetricsGroup, versions: []string{v1beta1.SchemeGroupVersion.Version}, scheme: scheme, rows: []row{
		{name: "nodes", kind: "NodeMetrics", verbs: read, columns: usageColumns{}},
		{name: "pods", kind: "PodMetrics", verbs: read, namespaced: true, columns: usageColumns{}},
	}}
}

// usageColumns are metrics-server's: what is used, and over which time.
type usageColumns struct{}

// ConvertToTable implements rest.TableConvertor.
func (usageColumns) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
		{Name: "cpu", Type: "string", Format: "quantity", Description: "What is used of processors"},
		{Name: "memory", Type: "string", Format: "quantity", Description: "What is used of memory"},
		{Name: "Window", Type: "string", Format: "duration", Description: "The time that it is about"},
	}}
	describeTable(t, obj)
	var err error
	t.Rows, err = metatable.MetaToTableRow(obj, func(obj runtime.Object, _ metav1.Object, name, _ string) ([]any, error) {
		used, window, err := usageOf(obj)
		if err != nil {
			return nil, err
		}
		return []any{name, used.Cpu().String(), used.Memory().String(), window.Duration.String()}, nil
	})
	return t, err
}

// usageOf is what a node uses, or the containers of a pod together.
func usageOf(obj runtime.Object) (corev1.ResourceList, metav1.Duration, error) {
	switch m := obj.(type) {
	case *metrics.NodeMetrics:
		return m.Usage, m.Window, nil
	case *metrics.PodMetrics:
		sum := corev1.ResourceList{}
		for _, c := range m.Containers {
			for name, q := range c.Usage {
				all := sum[name]
				all.Add(q)
				sum[name] = all
			}
		}
		return sum, m.Window, nil
	default:
		return nil, metav1.Duration{}, fmt.Errorf("%T is not what is used", obj)
	}
}
