package snapshot

import (
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	volume "k8s.io/component-helpers/storage/volume"
)

// Objects are what pods name, or what names pods: they are looked up, and are as
// new as the informers that they come from. Claims and volumes are also as new as
// what has been decided about them.
type Objects struct {
	Namespaces             corelisters.NamespaceLister
	Services               corelisters.ServiceLister
	ReplicationControllers corelisters.ReplicationControllerLister
	ReplicaSets            appslisters.ReplicaSetLister
	StatefulSets           appslisters.StatefulSetLister
	Budgets                policylisters.PodDisruptionBudgetLister
	Classes                storagelisters.StorageClassLister
	Drivers                storagelisters.CSIDriverLister
	DriverNodes            storagelisters.CSINodeLister
	Capacities             storagelisters.CSIStorageCapacityLister

	claims      corelisters.PersistentVolumeClaimLister
	volumes     cache.Indexer
	attachments cache.Indexer

	mu      sync.Mutex // guards the fields below
	assumed map[string]metav1.Object
}

const (
	byClass = "setpoint/class"
	byNode  = "setpoint/node"
)

// NewObjects returns the objects of informers that have not been started.
func NewObjects(f informers.SharedInformerFactory) (*Objects, error) {
	core, apps, storage := f.Core().V1(), f.Apps().V1(), f.Storage().V1()
	o := &Objects{
		Namespaces: core.Namespaces().Lister(), Services: core.Services().Lister(), ReplicationControllers: core.ReplicationControllers().Lister(),
		ReplicaSets: apps.ReplicaSets().Lister(), StatefulSets: apps.StatefulSets().Lister(), Budgets: f.Policy().V1().PodDisruptionBudgets().Lister(),
		Classes: storage.StorageClasses().Lister(), Drivers: storage.CSIDrivers().Lister(), DriverNodes: storage.CSINodes().Lister(), Capacities: storage.CSIStorageCapacities().Lister(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Informer().GetIndexer(), attachments: storage.VolumeAttachments().Informer().GetIndexer(),
		assumed: map[string]metav1.Object{},
	}
	index := func(to cache.Indexer, name string, of func(any) string) error {
		return to.AddIndexers(cache.Indexers{name: func(obj any) ([]string, error) { return []string{of(obj)}, nil }})
	}
	if err := index(o.volumes, byClass, func(obj any) string { return volume.GetPersistentVolumeClass(obj.(*corev1.PersistentVolume)) }); err != nil {
		return nil, err
	}
	return o, index(o.attachments, byNode, func(obj any) string { return obj.(*storagev1.VolumeAttachment).Spec.NodeName })
}

// Claim is the claim of a name.
func (o *Objects) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	c, err := o.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	return newer(o, "claim/"+namespace+"/"+name, c), nil
}

// Volume is the volume of a name.
func (o *Objects) Volume(name string) (*corev1.PersistentVolume, error) {
	obj, has, err := o.volumes.GetByKey(name)
	if err != nil || !has {
		return nil, apierrors.NewNotFound(corev1.Resource("persistentvolume"), name)
	}
	return newer(o, "volume/"+name, obj.(*corev1.PersistentVolume)), nil
}

// VolumesOf are the volumes of a storage class.
func (o *Objects) VolumesOf(class string) []*corev1.PersistentVolume {
	found, _ := o.volumes.ByIndex(byClass, class) // the index is there
	all := make([]*corev1.PersistentVolume, 0, len(found))
	for _, obj := range found {
		v := obj.(*corev1.PersistentVolume)
		all = append(all, newer(o, "volume/"+v.Name, v))
	}
	return all
}

// Attachments are the volumes that are attached to a node, or are to be.
func (o *Objects) Attachments(node string) []*storagev1.VolumeAttachment {
	found, _ := o.attachments.ByIndex(byNode, node) // the index is there
	all := make([]*storagev1.VolumeAttachment, 0, len(found))
	for _, obj := range found {
		all = append(all, obj.(*storagev1.VolumeAttachment))
	}
	return all
}

// NamespaceLabels are those of a namespace, none when it is not known.
func (o *Objects) NamespaceLabels(name string) labels.Set {
	if ns, err := o.Namespaces.Get(name); err == nil {
		return ns.Labels
	}
	return nil
}

// Assume says what has been decided about a claim or a volume, until the API
// shows something newer or Forget is called.
func (o *Objects) Assume(obj metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.assumed[assumedKey(obj)] = obj
}

// Forget takes back what was assumed about a claim or a volume.
func (o *Objects) Forget(obj metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.assumed, assumedKey(obj))
}

func assumedKey(obj metav1.Object) string {
	if obj.GetNamespace() == "" {
		return "volume/" + obj.GetName()
	}
	return "claim/" + obj.GetNamespace() + "/" + obj.GetName()
}

// newer is what is assumed about an object, for as long as nothing newer is
// known.
func newer[T metav1.Object](o *Objects, key string, seen T) T {
	o.mu.Lock()
	defer o.mu.Unlock()
	obj, has := o.assumed[key]
	if !has {
		return seen
	}
	if obj.GetUID() != seen.GetUID() || revision(obj) < revision(seen) {
		delete(o.assumed, key)
		return seen
	}
	return obj.(T)
}

func revision(obj metav1.Object) uint64 {
	rev, _ := strconv.ParseUint(obj.GetResourceVersion(), 10, 64) // an object that is not stored has none
	return rev
}
