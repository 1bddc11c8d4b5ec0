package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"
)

// Compat: upstream serves it where --runtime-config and a feature gate ask for it.
func storagemigrationGroup() group {
	return group{name: "storagemigration.k8s.io", versions: []string{"v1beta1"}, rows: []row{
		{name: "storageversionmigrations", kind: "StorageVersionMigration", strategy: storagemigration.Strategy, status: storagemigration.StatusStrategy},
	}}
}
