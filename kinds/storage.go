package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/storage/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
)

func storageGroup() group {
	return group{name: "storage.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "csidrivers", kind: "CSIDriver", strategy: csidriver.Strategy, returnsDeleted: true},
		{name: "csinodes", kind: "CSINode", strategy: csinode.Strategy, returnsDeleted: true},
		{name: "csistoragecapacities", kind: "CSIStorageCapacity", strategy: csistoragecapacity.Strategy, plain: true},
		{name: "storageclasses", kind: "StorageClass", short: "sc", strategy: storageclass.Strategy, returnsDeleted: true},
		{
			name: "volumeattachments", kind: "VolumeAttachment",
			strategy: volumeattachment.Strategy, status: volumeattachment.StatusStrategy, returnsDeleted: true,
		},
		{
			name: "volumeattributesclasses", kind: "VolumeAttributesClass", short: "vac",
			strategy: volumeattributesclass.Strategy, returnsDeleted: true,
		},
	}}
}
