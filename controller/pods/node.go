package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// byNode is the name of the index of pods by their node.
const byNode = "setpoint.dev/node"

// IndexByNode has an informer's pods found by the node that they are on. It may
// be asked for again.
func IndexByNode(informer cache.SharedIndexInformer) cache.Indexer {
	if _, has := informer.GetIndexer().GetIndexers()[byNode]; !has {
		err := informer.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
			if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName != "" {
				return []string{p.Spec.NodeName}, nil
			}
			return nil, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index by node: %v", err)) // the informer has been stopped, and so have we
		}
	}
	return informer.GetIndexer()
}

// On are the pods on a node.
func On(in cache.Indexer, node string) []*corev1.Pod {
	found, _ := in.ByIndex(byNode, node) // the index is there
	all := make([]*corev1.Pod, 0, len(found))
	for _, obj := range found {
		if p, ok := obj.(*corev1.Pod); ok {
			all = append(all, p)
		}
	}
	return all
}
