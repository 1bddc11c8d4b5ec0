package storageversion

import (
	"fmt"
	"strings"
	"testing"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/controller/plantest"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func migration(name string, hour int, resource string, conditions ...migrationv1.MigrationConditionType) *migrationv1.StorageVersionMigration {
	m := &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(hour) * time.Hour))},
		Spec:       migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: resource}},
	}
	for _, c := range conditions {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{Type: string(c), Status: metav1.ConditionTrue})
	}
	return m
}

func TestOrder(t *testing.T) {
	const running, succeeded, failed = migrationv1.MigrationRunning, migrationv1.MigrationSucceeded, migrationv1.MigrationFailed
	leaving := migration("leaving", 0, "things")
	leaving.DeletionTimestamp = &metav1.Time{Time: noon}
	plantest.Cases(t, "order.txt", map[string][]*migrationv1.StorageVersionMigration{
		"none":                             nil,
		"of another resource":              {migration("other", 0, "others")},
		"the oldest begins":                {migration("b", 2, "things"), migration("a", 1, "things"), migration("c", 1, "things")},
		"one runs, the others wait":        {migration("a", 1, "things"), migration("b", 2, "things", running)},
		"over, and does not say so":        {migration("a", 1, "things", running, succeeded), migration("b", 1, "things", running, failed), migration("c", 2, "things")},
		"over":                             {migration("a", 1, "things", succeeded), migration("b", 1, "things", failed)},
		"being deleted":                    {leaving},
		"two run, which nobody asked for":  {migration("b", 2, "things", running), migration("a", 1, "things", running)},
		"one runs, one is over, one waits": {migration("a", 1, "things", running, failed), migration("b", 2, "things", running), migration("c", 3, "things")},
	}, func(all []*migrationv1.StorageVersionMigration) string {
		p := order(metav1.GroupResource{Resource: "things"}, all)
		var b strings.Builder
		for _, m := range p.end {
			fmt.Fprintf(&b, "end %s\n", m.Name)
		}
		if p.run != nil {
			fmt.Fprintf(&b, "run %s\n", p.run.Name)
		}
		if p.begin != nil {
			fmt.Fprintf(&b, "begin %s\n", p.begin.Name)
		}
		return b.String()
	})
}

func TestWhatIsSaidInTheEnd(t *testing.T) {
	definition := func(seen int64) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Generation: 2},
			Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}},
			Status: apiextensionsv1.CustomResourceDefinitionStatus{
				StoredVersions: []string{"v1", "v2"},
				Conditions:     []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.StorageMigrating, ObservedGeneration: seen}},
			},
		}
	}
	type end struct {
		seen    int64
		success bool
	}
	plantest.Cases(t, "end.txt", map[string]end{
		"succeeded": {2, true}, "succeeded, but changed meanwhile": {1, true}, "failed": {2, false},
	}, func(e end) string {
		s := ended(definition(e.seen), e.success)
		return fmt.Sprintf("%s %s: %s\nstored %v\n", s.Conditions[0].Status, s.Conditions[0].Reason, s.Conditions[0].Message, s.StoredVersions)
	})
}
