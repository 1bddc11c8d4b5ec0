package initializer

import (
	"fmt"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// Seen is what is known of all initializers at a time.
type Seen struct {
	Records []*Record
	Health  *Health
	// Lease says why the lease of an initializer does not speak for it; empty
	// when it does.
	Lease func(v1alpha1.Reference) string
	Now   time.Time
}

// Backlog is what waits for one initializer.
type Backlog struct {
	Pending int
	Oldest  time.Time // when its turn with the one that waits longest began
}

// Backlogs are what waits for whom; names that are not anybody's turn yet count
// as pending.
func Backlogs(records []*Record) map[string]Backlog {
	all := map[string]Backlog{}
	for _, r := range records {
		for i, name := range r.Pending {
			if slices.Index(r.Pending, name) != i {
				continue
			}
			b := all[name]
			b.Pending++
			if i == 0 && (b.Oldest.IsZero() || r.HeadSince.Before(b.Oldest)) {
				b.Oldest = r.HeadSince
			}
			all[name] = b
		}
	}
	return all
}

// Statuses are the status that each configuration should have. Times of
// conditions go on from the status that it has.
func Statuses(all []*v1alpha1.InitializerConfiguration, seen Seen) map[string]v1alpha1.InitializerConfigurationStatus {
	backlogs := Backlogs(seen.Records)
	first := map[string]string{} // names, and the configuration that has them
	statuses := map[string]v1alpha1.InitializerConfigurationStatus{}
	for _, c := range all {
		var status v1alpha1.InitializerConfigurationStatus
		for _, in := range c.Initializers {
			if slices.ContainsFunc(status.Initializers, func(s v1alpha1.InitializerStatus) bool { return s.Name == in.Name }) {
				continue // a name is told of once
			}
			owner, known := first[in.Name]
			if !known {
				first[in.Name], owner = c.Name, c.Name
			}
			status.Initializers = append(status.Initializers, seen.status(c, in, owner, backlogs[in.Name]))
		}
		statuses[c.Name] = status
	}
	return statuses
}

func (s Seen) status(c *v1alpha1.InitializerConfiguration, in v1alpha1.Initializer, owner string, backlog Backlog) v1alpha1.InitializerStatus {
	status := v1alpha1.InitializerStatus{Name: in.Name, ObservedGeneration: c.Generation}
	for _, have := range c.Status.Initializers {
		if have.Name == in.Name {
			status.Conditions = slices.Clone(have.Conditions)
		}
	}
	set := func(kind string, is bool, reason, message string) {
		condition := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: c.Generation, LastTransitionTime: metav1.NewTime(s.Now)}
		if is {
			condition.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if owner != c.Name || count(c, in.Name) > 1 {
		set(v1alpha1.DuplicateName, true, "NameTaken", fmt.Sprintf("the first initializer of this name, in configuration %q, is the one that is used", owner))
	} else {
		set(v1alpha1.DuplicateName, false, "NameIsUnique", "")
	}
	if owner != c.Name {
		set(v1alpha1.Ready, false, "NameTaken", "")
		return status
	}
	status.Pending = int64(backlog.Pending)
	if !backlog.Oldest.IsZero() {
		status.OldestPendingSeconds = max(int64(s.Now.Sub(backlog.Oldest).Seconds()), 0)
	}
	if last := s.Health.LastActed(in.Name); !last.IsZero() {
		status.LastCompletionTime = &metav1.Time{Time: last}
	}
	s.conditions(in, set)
	return status
}

func (s Seen) conditions(in v1alpha1.Initializer, set func(kind string, is bool, reason, message string)) {
	ready, reason, why := true, "NothingIsWrong", ""
	if since := s.Health.Stalled(in.Name); !since.IsZero() {
		ready, reason, why = false, "Stalled", "an object has waited beyond its time, and the initializer has not acted since"
		set(v1alpha1.Stalled, true, "Overdue", why)
	} else {
		set(v1alpha1.Stalled, false, "InTime", "")
	}
	if !s.Health.LockedUntil(in.Name, s.Now).IsZero() {
		ready, reason, why = false, "Deadlocked", "its pods wait for an initializer whose pods wait for it"
		set(v1alpha1.Deadlocked, true, "WaitingForEachOther", why)
	} else {
		set(v1alpha1.Deadlocked, false, "NotWaiting", "")
	}
	if in.Controller != nil && in.Controller.Lease != nil {
		if text := s.Lease(*in.Controller.Lease); text != "" {
			ready, reason, why = false, "LeaseExpired", text
		}
	}
	set(v1alpha1.Ready, ready, reason, why)
}

// Alarm is a condition of an initializer that somebody should hear of.
type Alarm struct {
	Name, Condition, Message string
}

// Alarms are the conditions that were not, and are now, that initializers are
// stalled or deadlocked.
func Alarms(have, now v1alpha1.InitializerConfigurationStatus) []Alarm {
	var alarms []Alarm
	for _, in := range now.Initializers {
		var before []metav1.Condition
		if i := slices.IndexFunc(have.Initializers, func(h v1alpha1.InitializerStatus) bool { return h.Name == in.Name }); i >= 0 {
			before = have.Initializers[i].Conditions
		}
		for _, kind := range []string{v1alpha1.Stalled, v1alpha1.Deadlocked} {
			if meta.IsStatusConditionTrue(in.Conditions, kind) && !meta.IsStatusConditionTrue(before, kind) {
				alarms = append(alarms, Alarm{in.Name, kind, meta.FindStatusCondition(in.Conditions, kind).Message})
			}
		}
	}
	return alarms
}

// count is how many initializers of a configuration have a name.
func count(c *v1alpha1.InitializerConfiguration, name string) int {
	n := 0
	for _, in := range c.Initializers {
		if in.Name == name {
			n++
		}
	}
	return n
}

// Differ says that a status tells something new, but for the time that has
// passed.
func Differ(have, now v1alpha1.InitializerConfigurationStatus) bool {
	return !apiequality.Semantic.DeepEqual(timeless(have), timeless(now))
}

func timeless(s v1alpha1.InitializerConfigurationStatus) []v1alpha1.InitializerStatus {
	all := slices.Clone(s.Initializers)
	for i := range all {
		all[i].OldestPendingSeconds, all[i].LastCompletionTime = 0, nil
		all[i].Conditions = slices.Clone(all[i].Conditions)
		for j := range all[i].Conditions {
			all[i].Conditions[j].LastTransitionTime = metav1.Time{}
		}
	}
	return all
}
