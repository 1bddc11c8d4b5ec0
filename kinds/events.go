package kinds

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/apis/events/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/core/event"
)

// Events of this group are those of core by another name: one table, stored as
// core's.
func eventsGroup() group {
	return group{name: "events.k8s.io", versions: []string{"v1"}, rows: []row{
		{
			name: "events", kind: "Event", short: "ev", strategy: event.Strategy, attrs: event.GetAttrs, ttl: eventTTL,
			storage: schema.GroupVersion{Group: "", Version: "v1"},
		},
	}}
}
