package embedded_test

import (
	"testing"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/embedded"
	"setpoint.dev/setpoint/store/engine/enginetest"
)

func TestEngine(t *testing.T) {
	enginetest.Run(t, func(t *testing.T, dir string) engine.Engine {
		e, err := embedded.Open(t.Context(), embedded.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}, true)
}
