package services

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

// Slices are those of a service that manager has made and nobody has deleted.
func Slices(all listers.EndpointSliceLister, service cache.ObjectName, manager string) []*discoveryv1.EndpointSlice {
	made := labels.Set{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: manager}
	found, _ := all.EndpointSlices(service.Namespace).List(made.AsSelectorPreValidated()) // a cache has no errors
	return slices.DeleteFunc(found, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil })
}

// SlicesConcerned returns which services a change to a slice concerns: those
// whose slice it is or was, if manager makes it or did.
func SlicesConcerned(manager string) func(before, after *discoveryv1.EndpointSlice) []cache.ObjectName {
	return func(before, after *discoveryv1.EndpointSlice) []cache.ObjectName {
		var keys []cache.ObjectName
		for _, s := range []*discoveryv1.EndpointSlice{before, after} {
			if s != nil && s.Labels[discoveryv1.LabelManagedBy] == manager && s.Labels[discoveryv1.LabelServiceName] != "" {
				keys = append(keys, cache.ObjectName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]})
			}
		}
		return slices.Compact(keys)
	}
}

// Changes are slices to write for one object.
type Changes struct{ Create, Update, Delete []*discoveryv1.EndpointSlice }

// Write writes changes that are for an object of a kind, such as a Service. With
// an error the rest is not written. Nothing more is where the namespace is
// going.
func (ch Changes) Write(ctx context.Context, client kubernetes.Interface, kind string, of metav1.Object) error {
	api := client.DiscoveryV1().EndpointSlices(of.GetNamespace())
	for _, s := range ch.Create {
		if _, err := api.Create(ctx, s, metav1.CreateOptions{}); err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil
			}
			return fmt.Errorf("failed to create EndpointSlice for %s %s/%s: %w", kind, of.GetNamespace(), of.GetName(), err)
		}
	}
	for _, s := range ch.Update {
		if _, err := api.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("failed to update %s EndpointSlice for %s %s/%s: %w", s.Name, kind, of.GetNamespace(), of.GetName(), err)
		}
	}
	for _, s := range ch.Delete {
		if err := api.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("failed to delete %s EndpointSlice for %s %s/%s: %w", s.Name, kind, of.GetNamespace(), of.GetName(), err)
		}
	}
	return nil
}
