package storageversion

import (
	"strings"

	migrationv1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// plan is what is next with the migrations of a resource.
type plan struct {
	// end are those that are over and do not say so yet.
	end []*migrationv1.StorageVersionMigration
	// run goes on; begin is to be the next when there is none.
	run, begin *migrationv1.StorageVersionMigration
}

// order plans the migrations of a resource.
func order(resource metav1.GroupResource, all []*migrationv1.StorageVersionMigration) plan {
	var p plan
	for _, m := range all {
		if m.Spec.Resource != resource || m.DeletionTimestamp != nil {
			continue
		}
		over := is(m, migrationv1.MigrationSucceeded) || is(m, migrationv1.MigrationFailed)
		switch running := is(m, migrationv1.MigrationRunning); {
		case running && over:
			p.end = append(p.end, m)
		case running && (p.run == nil || older(m, p.run)):
			p.run = m
		case !running && !over && (p.begin == nil || older(m, p.begin)):
			p.begin = m
		}
	}
	return p
}

func is(m *migrationv1.StorageVersionMigration, what migrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(what))
}

func older(a, b *migrationv1.StorageVersionMigration) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}

// younger says whether a revision is after another. What cannot be told is not.
func younger(revision, than string) bool {
	c, err := resourceversion.CompareResourceVersion(revision, than)
	return err == nil && c > 0
}
