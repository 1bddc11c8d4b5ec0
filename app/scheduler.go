package app

import (
	"fmt"
	"net/http"
	"os"

	"setpoint.dev/setpoint/scheduler"
	"setpoint.dev/setpoint/scheduler/place"
	"setpoint.dev/setpoint/scheduler/profile"
)

// Scheduler says whether pods are given nodes, and how.
type Scheduler struct {
	// On says that they are.
	On bool
	// ConfigFile is a KubeSchedulerConfiguration whose profiles say how; "" means
	// upstream's defaults.
	ConfigFile string
}

// profiles reads how pods are placed.
func (s Scheduler) profiles() ([]*place.Profile, error) {
	if s.ConfigFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(s.ConfigFile)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	profiles, err := profile.Read(data)
	if err != nil {
		return nil, fmt.Errorf("--scheduler-config: %w", err)
	}
	return profiles, nil
}

// buildScheduler makes the scheduler, if there is to be one.
func (a *App) buildScheduler() error {
	if !a.cfg.Scheduler.On {
		return nil
	}
	profiles, err := a.cfg.Scheduler.profiles()
	if err != nil {
		return err
	}
	a.scheduler = scheduler.New(scheduler.Config{Handler: a.server, Profiles: profiles, Logger: a.cfg.Logger})
	return nil
}

// servePlacements says why pods are where they are, or nowhere.
func (a *App) servePlacements(w http.ResponseWriter, r *http.Request) {
	if a.scheduler == nil {
		http.Error(w, "no scheduler runs here", http.StatusNotFound)
		return
	}
	a.scheduler.ServeHTTP(w, r)
}
