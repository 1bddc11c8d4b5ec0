package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"setpoint.dev/setpoint/controller/plantest"
)

// amounts reads "pods=1 cpu=500m"; "" is nil.
func amounts(text string) corev1.ResourceList {
	if text == "" {
		return nil
	}
	of := corev1.ResourceList{}
	for word := range strings.FieldsSeq(text) {
		name, n, _ := strings.Cut(word, "=")
		of[corev1.ResourceName(name)] = resource.MustParse(n)
	}
	return of
}

func told(of corev1.ResourceList) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		n := of[name]
		words = append(words, fmt.Sprintf("%s=%s", name, n.String()))
	}
	return strings.Join(words, " ")
}

func TestPlan(t *testing.T) {
	type seen struct{ hard, statusHard, used, measured string }
	plantest.Cases(t, "plan.txt", map[string]seen{
		"new":                      {hard: "pods=5 secrets=3", measured: "pods=2 secrets=0"},
		"nothing to do":            {hard: "pods=5", statusHard: "pods=5", used: "pods=2", measured: "pods=2"},
		"less is used":             {hard: "pods=5", statusHard: "pods=5", used: "pods=2", measured: "pods=1"},
		"another limit":            {hard: "pods=6", statusHard: "pods=5", used: "pods=2", measured: "pods=2"},
		"a limit is gone":          {hard: "pods=5", statusHard: "pods=5 secrets=1", used: "pods=2 secrets=1", measured: "pods=2"},
		"one could not be counted": {hard: "pods=5 secrets=1", statusHard: "pods=5 secrets=1", used: "pods=2 secrets=1", measured: "pods=1"},
		"a kind that nobody knows": {hard: "count/things.example.org=5"},
		"measured more than asked": {hard: "pods=5", measured: "pods=2 secrets=1"},
	}, func(s seen) string {
		q := &corev1.ResourceQuota{
			Spec:   corev1.ResourceQuotaSpec{Hard: amounts(s.hard)},
			Status: corev1.ResourceQuotaStatus{Hard: amounts(s.statusHard), Used: amounts(s.used)},
		}
		next := plan(q, amounts(s.measured))
		if next == nil {
			return ""
		}
		return fmt.Sprintf("hard %s\nused %s\n", told(next.Status.Hard), told(next.Status.Used))
	})
}

func TestWhichResourcesALimitCounts(t *testing.T) {
	for hard, want := range map[string]string{
		"pods=1":                         "pods",
		"requests.cpu=1 limits.memory=1": "pods",
		"services.nodeports=1":           "services",
		"requests.storage=1":             "persistentvolumeclaims",
		"gold.storageclass.storage.k8s.io/requests.storage=1": "persistentvolumeclaims",
		"count/configmaps=1": "configmaps",
		"configmaps=1":       "configmaps",
		"count/deployments.apps=1 count/jobs.batch=1": "deployments.apps jobs.batch",
		"count/resourceclaims.resource.k8s.io=1":      "resourceclaims.resource.k8s.io",
	} {
		t.Run(hard, func(t *testing.T) {
			var names []string
			for _, r := range counted(amounts(hard)) {
				names = append(names, r.String())
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != want {
				t.Errorf("it counts %s, not %s", got, want)
			}
		})
	}
}
