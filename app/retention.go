package app

import (
	"time"

	"setpoint.dev/setpoint/store"
)

// retention says how long the past is kept: of what is written by the clock
// briefly, of what people declare for long.
func retention(table string) store.Retention {
	switch table {
	case "events", "leases.coordination.k8s.io", "waiting.initializers.setpoint.dev":
		return store.Retention{Age: time.Hour, Changes: 50_000}
	default:
		return store.Retention{Age: 30 * 24 * time.Hour, Changes: 500_000}
	}
}
