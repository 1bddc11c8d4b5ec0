package profile_test

import (
	"fmt"
	"strings"
	"testing"

	"setpoint.dev/setpoint/scheduler/profile"
)

func TestRead(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for _, test := range []struct{ name, text, want string }{
		{"nothing is said", head, "default-scheduler: 13 filters, 0%"},
		{"two profiles", head + "percentageOfNodesToScore: 70\nprofiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 100}]", "a: 13 filters, 70%; b: 13 filters, 100%"},
		{"two of one name", head + "profiles: [{schedulerName: a}, {schedulerName: a}]", `there are two of the name "a"`},
		{"a filter is off", head + "profiles: [{plugins: {filter: {disabled: [{name: NodePorts}]}}}]", "default-scheduler: 12 filters, 0%"},
		{"all but two are off", head + `profiles: [{plugins: {multiPoint: {disabled: [{name: "*"}], enabled: [{name: NodeName}, {name: NodeResourcesFit, weight: 5}]}}}]`, "default-scheduler: 2 filters, 0%, nobody goes"},
		{"nobody goes", head + "profiles: [{plugins: {postFilter: {disabled: [{name: DefaultPreemption}]}}}]", "default-scheduler: 13 filters, 0%, nobody goes"},
		{"another plugin", head + "profiles: [{plugins: {score: {enabled: [{name: Mine}]}}}]", "there is no Mine here"},
		{"another point", head + "profiles: [{plugins: {permit: {enabled: [{name: Mine}]}}}]", "plugins.permit"},
		{"another kind", "apiVersion: v1\nkind: Pod\n", "not a kubescheduler.config.k8s.io/v1"},
		{"a field that is not there", head + "profile: []", "unknown field"},
		{"extenders", head + "extenders: [{urlPrefix: http://x}]", "extenders"},
		{"affinity that all pods have", head + "profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}}]}]", "default-scheduler: 13 filters, 0%, affinity"},
		{"spread that all pods have", head + "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}}]}]", "default-scheduler: 13 filters, 0%, 1 constraints"},
		{"arguments that are the defaults", head + "profiles: [{pluginConfig: [{name: DefaultPreemption, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: DefaultPreemptionArgs}}]}]", "default-scheduler: 13 filters, 0%"},
		{"arguments that are not", head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]", "its arguments are upstream's defaults here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all, err := profile.Read([]byte(test.text))
			var got []string
			for _, p := range all {
				text := fmt.Sprintf("%s: %d filters, %d%%", p.Name, len(p.Filters()), p.Percentage)
				if p.NoPreemption {
					text += ", nobody goes"
				}
				if p.Settings().Required != nil {
					text += ", affinity"
				}
				if p.Settings().OwnSpread {
					text += fmt.Sprintf(", %d constraints", len(p.Settings().Spread))
				}
				got = append(got, text)
			}
			text := strings.Join(got, "; ")
			if err != nil {
				text = err.Error()
			}
			if text != test.want && (err == nil || !strings.Contains(text, test.want)) {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
}
