package conformance

import (
	"context"
	"strings"
	"testing"
	"time"

	"setpoint.dev/setpoint/app/apptest"
	"setpoint.dev/setpoint/server/aggregate/aggregatetest"
)

const oak = `
apiVersion: garden.example.com/v1
kind: Plant
metadata: {name: oak}
height: 3
`

// TestKubectlReachesOtherServers lets kubectl use kinds that an API server
// behind the control plane serves.
func TestKubectlReachesOtherServers(t *testing.T) {
	judge(t, func(t *testing.T, command []string) {
		p, s := apptest.Start(t), aggregatetest.Start(t)
		s.Register(t, p.Config)
		k := &kubectl{command, p.Kubeconfig, t.TempDir()}
		steps := []step{
			{run: "wait --for=condition=Available apiservice/v1.garden.example.com --timeout=110s", want: []string{"condition met"}},
			{run: "get apiservices", want: []string{"v1.garden.example.com", "default/garden", "v1.apps", "Local", "True"}},
			{run: "api-resources --api-group=garden.example.com", want: []string{"plants", "garden.example.com/v1", "true", "Plant"}},
			{run: "api-versions", want: []string{"garden.example.com/v1", "apps/v1"}},
			{run: "create --validate=false -f -", stdin: oak, want: []string{"plant.garden.example.com/oak created"}},
			{run: "get plants", want: []string{"NAME", "AGE", "oak"}},
			{run: "get plant oak -o jsonpath={.height}", want: []string{"3"}},
			{run: "get plants --as=bob", err: `plants.garden.example.com is forbidden: User "bob" cannot list resource "plants"`},
		}
		if !testing.Short() { // under -race the two documents take longer to join than kubectl waits on a busy machine
			steps = append(steps, step{run: "explain plant --output=plaintext-openapiv2 --request-timeout=55s", want: []string{"Plant", "height"}, code: -1})
		}
		k.day(t, steps)
		s.Down()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			a := k.run(t, nil, "", "get", "plants")
			if a.code != 0 && strings.Contains(a.err, "the server is currently unable to handle the request") {
				break
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("kubectl get of a server that is gone: %+v", a)
			}
		}
	})
}
