package app

import (
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/server/fair"
)

// Fairness says how many requests may be under way. The priority levels share
// what both are together.
type Fairness struct {
	// Off lets all in at once.
	Off bool
	// Reads and Writes are how many of each; 0 means 400 and 200.
	Reads, Writes int
}

// Compat: as many as upstream.
const (
	reads  = 400
	writes = 200
)

func (f Fairness) seats() int {
	r, w := f.Reads, f.Writes
	if r == 0 {
		r = reads
	}
	if w == 0 {
		w = writes
	}
	return r + w
}

// newGate makes the gate; nil when there is to be none. All planes share main's:
// they are served by one machine.
func (a *App) newGate() (*fair.Gate, error) {
	if a.main != nil {
		return a.main.fair, nil
	}
	if a.cfg.Fairness.Off {
		return nil, nil //nolint:nilnil // none is what was asked for
	}
	self := client.New(client.Config{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.server.ServeHTTP(w, r) }),
		User:    &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, UserAgent: "kube-apiserver",
	})
	k, err := self.Kubernetes()
	if err != nil {
		return nil, err
	}
	return fair.New(k, a.cfg.Fairness.seats(), a.rest.Size, a.cfg.Logger), nil
}
