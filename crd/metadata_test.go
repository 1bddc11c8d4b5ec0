package crd

import (
	"encoding/json"
	"reflect"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Plain metadata is what upstream makes of it, too.
func TestPlainMetadata(t *testing.T) {
	for _, c := range []struct {
		name, metadata string
		plain          bool
	}{
		{"names", `{"name":"a","generateName":"a-","namespace":"b","uid":"c","resourceVersion":"1","selfLink":"/x"}`, true},
		{"an empty name", `{"name":""}`, false},
		{"a name that is a number", `{"name":1}`, false},
		{"times", `{"creationTimestamp":"2024-01-02T03:04:05Z","deletionTimestamp":"2024-01-02T03:04:05Z","deletionGracePeriodSeconds":0}`, true},
		{"a time of a zone", `{"creationTimestamp":"2024-01-02T03:04:05+01:00"}`, false},
		{"a time with a fraction", `{"creationTimestamp":"2024-01-02T03:04:05.5Z"}`, false},
		{"no time", `{"creationTimestamp":null}`, false},
		{"the first time", `{"creationTimestamp":"0001-01-01T00:00:00Z"}`, false},
		{"a generation", `{"generation":3}`, true},
		{"no generation", `{"generation":0}`, false},
		{"a generation with a fraction", `{"generation":1.0}`, false},
		{"labels", `{"labels":{"a":"b","c":""},"annotations":{"d":"e"}}`, true},
		{"no labels", `{"labels":{}}`, false},
		{"a label that is a number", `{"labels":{"a":1}}`, false},
		{"a label that is null", `{"labels":{"a":null}}`, false},
		{"finalizers", `{"finalizers":["a/b",""]}`, true},
		{"no finalizers", `{"finalizers":[]}`, false},
		{"a finalizer that is null", `{"finalizers":[null]}`, false},
		{"owners", `{"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"b","uid":"c","controller":true,"blockOwnerDeletion":false}]}`, true},
		{"an owner that lacks something", `{"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"b"}]}`, false},
		{"an owner with more", `{"ownerReferences":[{"apiVersion":"v1","kind":"A","name":"b","uid":"c","more":1}]}`, false},
		{"a record", `{"managedFields":[{"manager":"a","operation":"Update","apiVersion":"v1","time":"2024-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:a":{}}},"subresource":"status"}]}`, true},
		{"a record of something else", `{"managedFields":[{"manager":"a","fieldsV1":{"f:spec":1}}]}`, false},
		{"an unknown field", `{"name":"a","nome":"b"}`, false},
		{"initializers", `{"name":"a","initializers":{"pending":[{"name":"x"}]}}`, false},
		{"nothing", `{}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m map[string]any
			if err := utiljson.Unmarshal([]byte(c.metadata), &m); err != nil {
				t.Fatal(err)
			}
			if got := plainMetadata(m); got != c.plain {
				t.Fatalf("plain: %v", got)
			}
			if !c.plain {
				return
			}
			object := map[string]any{"metadata": m}
			meta, _, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
			if err != nil || len(unknown) > 0 {
				t.Fatal(unknown, err)
			}
			if err := objectmeta.SetObjectMeta(object, meta); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(object["metadata"], any(m)) {
				got, _ := json.Marshal(object["metadata"])
				t.Errorf("upstream makes %s of %s", got, c.metadata)
			}
		})
	}
}
