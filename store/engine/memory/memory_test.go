package memory_test

import (
	"testing"

	"setpoint.dev/setpoint/store/engine"
	"setpoint.dev/setpoint/store/engine/enginetest"
	"setpoint.dev/setpoint/store/engine/memory"
)

func TestEngine(t *testing.T) {
	enginetest.Run(t, func(*testing.T, string) engine.Engine { return memory.New() }, false)
}
