package rest

import (
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/metrics/pkg/apis/metrics"
)

// used answers what nodes and pods use.
func (c *call) used() error {
	if c.Usage == nil {
		return apierrors.NewServiceUnavailable("nothing is known of what is used: " + c.notRunning())
	}
	if c.info.Verb == "get" {
		return c.usedByOne()
	}
	q, err := c.listOptions()
	if err != nil {
		return err
	}
	list, err := c.usage(func(m metav1.Object) bool {
		return q.labels.Matches(labels.Set(m.GetLabels())) && q.fields.Matches(fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()})
	})
	if err != nil {
		return err
	}
	return c.respondInternalList(list, metav1.ListMeta{})
}

// usedByOne answers what one of them uses. Compat: one of which nothing is known is
// told of in metrics-server's words.
func (c *call) usedByOne() error {
	list, err := c.usage(func(m metav1.Object) bool { return m.GetName() == c.info.Name })
	if err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		name := c.info.Name
		if c.resource.Namespaced {
			name = c.info.Namespace + "/" + name
		}
		return apierrors.NewNotFound(metrics.Resource(c.resource.Singular), name)
	}
	body, err := c.encodeObject(items[0])
	if err != nil {
		return err
	}
	c.writeBody(http.StatusOK, body)
	return nil
}

// usage is what those use that are wanted.
func (c *call) usage(want func(metav1.Object) bool) (runtime.Object, error) {
	switch c.resource.Kind {
	case "NodeMetrics":
		return c.Usage.Nodes(c.ctx, want)
	case "PodMetrics":
		return c.Usage.Pods(c.ctx, c.info.Namespace, want)
	default:
		return nil, fmt.Errorf("nobody knows of %s", c.resource.Kind)
	}
}
