package kinds

import (
	"context"
	"fmt"

	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kube-aggregator/pkg/registry/apiservice"
)

func apiregistrationGroup() group {
	return group{name: "apiregistration.k8s.io", versions: []string{"v1"}, scheme: aggregator.Scheme, rows: []row{
		{
			name: "apiservices", kind: "APIService", category: "api-extensions",
			strategy: apiservice.NewStrategy(aggregator.Scheme), attrs: apiservice.GetAttrs,
			status: apiservice.NewStatusStrategy(aggregator.Scheme), columns: apiServiceColumns{},
		},
	}}
}

// apiServiceColumns are those of upstream, where they lie with the storage.
type apiServiceColumns struct{}

func (apiServiceColumns) ConvertToTable(_ context.Context, obj, _ runtime.Object) (*metav1.Table, error) {
	doc := metav1.ObjectMeta{}.SwaggerDoc()
	t := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: doc["name"]},
		{Name: "Service", Type: "string", Description: "The reference to the service that hosts this API endpoint."},
		{Name: "Available", Type: "string", Description: "Whether this service is available."},
		{Name: "Age", Type: "string", Description: doc["creationTimestamp"]},
	}}
	describeTable(t, obj)
	var err error
	t.Rows, err = metatable.MetaToTableRow(obj, func(obj runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		s, ok := obj.(*apiregistration.APIService)
		if !ok {
			return nil, fmt.Errorf("%T is not an APIService", obj)
		}
		served := "Local"
		if ref := s.Spec.Service; ref != nil {
			served = ref.Namespace + "/" + ref.Name
		}
		return []any{name, served, available(s), age}, nil
	})
	return t, err
}

func available(s *apiregistration.APIService) string {
	for _, c := range s.Status.Conditions {
		switch {
		case c.Type != apiregistration.Available:
		case c.Status == apiregistration.ConditionTrue || c.Reason == "":
			return string(c.Status)
		default:
			return fmt.Sprintf("%s (%s)", c.Status, c.Reason)
		}
	}
	return string(apiregistration.ConditionUnknown)
}
