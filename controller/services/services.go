// Package services is what the controllers of a service's endpoints have in
// common: which services a change to a pod concerns, which pods a service
// selects, and whether others than these controllers say where it is served.
//
// In come caches; nothing is written.
package services

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointutil "k8s.io/endpointslice/util"
)

// Concerned returns which services a change to a pod concerns: those that select
// it or did, where something has changed that endpoints tell.
func Concerned(all listers.ServiceLister) func(before, after *corev1.Pod) []cache.ObjectName {
	return func(before, after *corev1.Pod) []cache.ObjectName {
		found, err := endpointutil.GetServicesToUpdate(all, endpointutil.GetPodUpdateProjectionKey(before, after))
		if err != nil {
			return nil // a cache has no errors
		}
		keys := make([]cache.ObjectName, 0, len(found))
		for key := range found {
			if name, err := cache.ParseObjectName(key); err == nil {
				keys = append(keys, name)
			}
		}
		return keys
	}
}

// Selects says that a service's endpoints are the pods that it selects. Others
// are somebody else's to write down.
func Selects(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.Selector != nil
}

// Pods are those that a service selects.
func Pods(all listers.PodLister, s *corev1.Service) []*corev1.Pod {
	found, _ := all.Pods(s.Namespace).List(labels.Set(s.Spec.Selector).AsSelectorPreValidated()) // a cache has no errors
	return found
}

// Elects says that Endpoints are the lock of an election and no endpoints of a
// service.
func Elects(e *corev1.Endpoints) bool {
	_, is := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return is
}
