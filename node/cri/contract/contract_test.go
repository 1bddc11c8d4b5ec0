package contract_test

import (
	"testing"

	"setpoint.dev/setpoint/node/cri/contract"
	"setpoint.dev/setpoint/node/nodetest"
)

func TestContainerd(t *testing.T) {
	r := nodetest.Containerd(t)
	contract.Run(t, contract.Subject{
		Endpoint: "unix://" + r.Socket, Name: "containerd", Image: "busybox:1.36",
		Restart: func(t *testing.T) {
			t.Helper()
			if err := r.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := r.Start(); err != nil {
				t.Fatal(err)
			}
		},
		Lacks: map[string]string{
			"stop signal":             "containerd 1.6 knows no stop signals of containers",
			"end without the runtime": "containerd 1.6 does not always know how a container ended meanwhile",
			"events":                  "containerd 1.6 serves no events",
			"pod stats":               "containerd 1.6 measures only pods below a control group that was named",
			"exec timeout ends all":   "containerd 1.6 leaves what a program started that took too long",
		},
	})
}
