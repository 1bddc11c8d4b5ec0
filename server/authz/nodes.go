package authz

import (
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
)

// Nodes knows which objects concern which node: a node may read the secrets of
// its pods, and no others. It is upstream's graph, told of changes by Observe.
type Nodes struct{ graph *node.Graph }

// NewNodes returns a Nodes that has seen nothing.
func NewNodes() *Nodes { return &Nodes{node.NewGraph()} }

// Observed are the resources whose changes Observe is to be told of.
func Observed() []string {
	return []string{
		"pods", "persistentvolumes", "volumeattachments.storage.k8s.io",
		"resourceslices.resource.k8s.io", "podcertificaterequests.certificates.k8s.io",
	}
}

// Observe takes note of a change: from old, nil when the object is new, to
// obj, nil when it is gone. Changes of one object come in order; kinds that
// say nothing about nodes are ignored. Objects must not change afterwards.
func (n *Nodes) Observe(old, obj runtime.Object) {
	if obj == nil {
		n.forget(old)
		return
	}
	switch obj := obj.(type) {
	case *corev1.Pod:
		was, _ := old.(*corev1.Pod)
		if obj.Spec.NodeName != "" && !sameReferences(was, obj) {
			n.graph.AddPod(obj)
		}
	case *corev1.PersistentVolume:
		n.graph.AddPV(obj)
	case *storagev1.VolumeAttachment:
		was, _ := old.(*storagev1.VolumeAttachment)
		if was == nil || was.Spec.NodeName != obj.Spec.NodeName {
			n.graph.AddVolumeAttachment(obj.Name, obj.Spec.NodeName)
		}
	case *resourcev1.ResourceSlice:
		if old == nil && obj.Spec.NodeName != nil { // the node is immutable
			n.graph.AddResourceSlice(obj.Name, *obj.Spec.NodeName)
		}
	case *certificatesv1beta1.PodCertificateRequest:
		if old == nil { // the spec is immutable
			n.graph.AddPodCertificateRequest(obj)
		}
	}
}

func (n *Nodes) forget(old runtime.Object) {
	switch old := old.(type) {
	case *corev1.Pod:
		if old.Spec.NodeName != "" {
			n.graph.DeletePod(old.Name, old.Namespace)
		}
	case *corev1.PersistentVolume:
		n.graph.DeletePV(old.Name)
	case *storagev1.VolumeAttachment:
		n.graph.DeleteVolumeAttachment(old.Name)
	case *resourcev1.ResourceSlice:
		n.graph.DeleteResourceSlice(old.Name)
	case *certificatesv1beta1.PodCertificateRequest:
		n.graph.DeletePodCertificateRequest(old)
	}
}

// sameReferences says whether a pod still refers to the same objects. Most
// changes of a pod are of its status and leave them alone; the references of
// its spec are immutable but for ephemeral containers.
func sameReferences(old, pod *corev1.Pod) bool {
	return old != nil && old.UID == pod.UID && old.Spec.NodeName == pod.Spec.NodeName &&
		len(old.Spec.EphemeralContainers) == len(pod.Spec.EphemeralContainers) &&
		equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) &&
		equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus)
}
