package storageversion

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// said is what a migration says of a definition.
type said struct {
	Conditions     []condition `json:"conditions"`
	StoredVersions []string    `json:"storedVersions,omitempty"`
}

type condition struct {
	Type               apiextensionsv1.CustomResourceDefinitionConditionType `json:"type"`
	Status             apiextensionsv1.ConditionStatus                       `json:"status"`
	LastTransitionTime metav1.Time                                           `json:"lastTransitionTime"`
	Reason             string                                                `json:"reason"`
	Message            string                                                `json:"message"`
	ObservedGeneration int64                                                 `json:"observedGeneration"`
}

func begun(name string) said {
	return said{Conditions: []condition{{Status: apiextensionsv1.ConditionTrue, Reason: "MigrationRunning", Message: fmt.Sprintf("Migration %s is running", name)}}}
}

// ended is said at the end: with success no object is stored in another version
// than today's, if the definition is still the one that the migration began with.
func ended(d *apiextensionsv1.CustomResourceDefinition, success bool) said {
	c := condition{Status: apiextensionsv1.ConditionFalse, Reason: "MigrationFailed", Message: "The migration has failed"}
	if !success {
		return said{Conditions: []condition{c}}
	}
	c.Reason, c.Message = "MigrationSucceeded", "The migration has succeeded"
	same := false
	for _, was := range d.Status.Conditions {
		same = same || was.Type == apiextensionsv1.StorageMigrating && was.ObservedGeneration == d.Generation
	}
	if !same {
		c.Message += " but the stored versions have not been updated due to a generation mismatch"
		return said{Conditions: []condition{c}}
	}
	c.Message += " and the stored versions have been updated"
	s := said{Conditions: []condition{c}}
	for _, v := range d.Spec.Versions {
		if v.Storage {
			s.StoredVersions = []string{v.Name}
		}
	}
	return s
}

// definition is that of a custom resource, as stored now; nil for others.
func (c *controller) definition(ctx context.Context, of metav1.GroupResource) (*apiextensionsv1.CustomResourceDefinition, error) {
	api, err := c.actor.API.Dynamic()
	if err != nil {
		return nil, err
	}
	found, err := api.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Get(ctx, of.Resource+"."+of.Group, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, err
	}
	d := &apiextensionsv1.CustomResourceDefinition{}
	return d, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, d)
}

// tell writes into a definition's status, unless it has changed since it was
// read: what is said holds for this generation alone.
func (c *controller) tell(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, s said) error {
	for i := range s.Conditions {
		it := &s.Conditions[i]
		it.Type, it.ObservedGeneration, it.LastTransitionTime = apiextensionsv1.StorageMigrating, d.Generation, metav1.NewTime(time.Now())
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": apiextensionsv1.SchemeGroupVersion.String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": d.Name, "resourceVersion": d.ResourceVersion}, "status": s,
	})
	if err != nil {
		return err
	}
	api, err := c.actor.API.Dynamic()
	if err != nil {
		return err
	}
	force := true
	_, err = api.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).
		Patch(ctx, d.Name, "application/apply-patch+yaml", body, metav1.PatchOptions{FieldManager: runner, Force: &force}, "status")
	return err
}
