package initializer

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

// Terms are what an initializer is given: how long, and what then.
type Terms struct {
	Policy  v1alpha1.FailurePolicyType
	Timeout time.Duration // 0 is for ever
	// Account is whom the initializer runs as, "namespace/name"; empty when
	// nobody has said.
	Account string
}

// end is when an object that an initializer has had since then is overdue.
func (t Terms) end(since time.Time) (time.Time, bool) {
	if t.Timeout <= 0 {
		return time.Time{}, false
	}
	return since.Add(t.Timeout), true
}

// Step is what the server does to an object that waits.
type Step struct {
	UID types.UID
	Do  Deed
	// Name is the initializer concerned.
	Name string
	// Locked says that its time is not over, but that it waits for the object
	// itself.
	Locked bool
}

// Deed is a kind of step.
type Deed string

// What the server does.
const (
	// Skip takes the name off, because its time is over.
	Skip Deed = "skip"
	// Expire fails the object, because the time of the name is over.
	Expire Deed = "expire"
	// Release takes the name off, because no configuration has it any more.
	Release Deed = "release"
	// Remove removes an object that has failed.
	Remove Deed = "remove"
)

// orphanAfter is how long a name may be in no configuration before the objects
// that got it from one are let go: a configuration may be on its way back.
const orphanAfter = 30 * time.Second

// deadlockAfter is how long initializers may wait for each other before it is
// called a deadlock.
const deadlockAfter = 10 * time.Second

// Facts are what a plan is made from.
type Facts struct {
	// Records are of the objects that wait.
	Records []*Record
	// Terms are those of the names that configurations have.
	Terms map[string]Terms
	// Gone is since when names that objects wait for are in no configuration.
	Gone map[string]time.Time
	// Default are the terms of names that no configuration has ever had.
	Default Terms
	// Acted is when an initializer last did.
	Acted func(name string) time.Time
	Now   time.Time
}

// Plan is what the server does about the objects that wait.
type Plan struct {
	Steps []Step
	// Overdue are objects that are past their time, with or without a step.
	Overdue []*Record
	// Deadlocked are the names whose own pods wait for each other.
	Deadlocked []string
	// Next is when there may be more to do; zero when nothing is awaited but
	// changes.
	Next time.Time
}

// MakePlan looks at all that waits. Records of one UID get one step at most.
func MakePlan(f Facts) Plan {
	var p Plan
	locked := f.deadlocked(&p)
	for _, r := range f.Records {
		if step := f.step(r, &p, locked[r.UID]); step != nil {
			p.Steps = append(p.Steps, *step)
		}
	}
	return p
}

// at moves the time of the next look forward.
func (p *Plan) at(t time.Time) {
	if p.Next.IsZero() || t.Before(p.Next) {
		p.Next = t
	}
}

// terms are those of a name, and whether a configuration has it.
func (f *Facts) terms(name string) (Terms, bool) {
	t, known := f.Terms[name]
	if !known {
		t = f.Default
	}
	return t, known
}

func (f *Facts) step(r *Record, p *Plan, locked bool) *Step {
	if r.Failed || len(r.Pending) == 0 {
		return &Step{UID: r.UID, Do: Remove}
	}
	for _, name := range r.Pending {
		since, gone := f.Gone[name]
		if !gone || !slices.Contains(r.Assigned, name) {
			continue
		}
		if end := since.Add(orphanAfter); f.Now.Before(end) {
			p.at(end)
		} else {
			return &Step{UID: r.UID, Do: Release, Name: name}
		}
	}
	head := r.Head()
	terms, _ := f.terms(head)
	end, ends := terms.end(r.HeadSince)
	overdue := ends && !f.Now.Before(end)
	switch {
	case overdue:
		p.Overdue = append(p.Overdue, r)
	case !locked:
		if ends {
			p.at(end)
		}
		return nil
	}
	switch terms.Policy {
	case v1alpha1.Ignore:
		return &Step{UID: r.UID, Do: Skip, Name: head, Locked: !overdue}
	case v1alpha1.Fail:
		return &Step{UID: r.UID, Do: Expire, Name: head, Locked: !overdue}
	default:
		return nil
	}
}

// deadlocked finds initializers whose own pods wait for each other while none
// of them acts, and which objects are to be let go because of it: the oldest
// pod of each circle.
func (f *Facts) deadlocked(p *Plan) map[types.UID]bool {
	by := map[string][]string{} // who runs as an account
	for name, t := range f.Terms {
		if t.Account != "" {
			by[t.Account] = append(by[t.Account], name)
		}
	}
	if len(by) == 0 {
		return nil
	}
	waits := map[string]map[string]*Record{} // an initializer, whom its pods wait for
	for _, r := range f.Records {
		if r.Account == "" || r.Failed || len(r.Pending) == 0 {
			continue
		}
		for _, name := range by[r.Account] {
			if f.Acted(name).After(r.HeadSince) {
				continue // it has other pods, which work
			}
			if waits[name] == nil {
				waits[name] = map[string]*Record{}
			}
			if have := waits[name][r.Head()]; have == nil || r.HeadSince.Before(have.HeadSince) {
				waits[name][r.Head()] = r
			}
		}
	}
	locked := map[types.UID]bool{}
	for name := range waits {
		circle := circleOf(name, waits)
		if circle == nil {
			continue
		}
		latest := slices.MaxFunc(circle, func(a, b *Record) int { return a.HeadSince.Compare(b.HeadSince) })
		if end := latest.HeadSince.Add(deadlockAfter); f.Now.Before(end) {
			p.at(end)
			continue
		}
		p.Deadlocked = append(p.Deadlocked, name)
		oldest := slices.MinFunc(circle, func(a, b *Record) int {
			return cmp.Or(a.HeadSince.Compare(b.HeadSince), cmp.Compare(a.UID, b.UID))
		})
		locked[oldest.UID] = true
	}
	slices.Sort(p.Deadlocked)
	return locked
}

// circleOf are the pods on a way from a name back to itself, nil when there is
// none.
func circleOf(name string, waits map[string]map[string]*Record) []*Record {
	seen := map[string]bool{}
	var walk func(at string) []*Record
	walk = func(at string) []*Record {
		for to, r := range waits[at] {
			if to == name {
				return []*Record{r}
			}
			if seen[to] {
				continue
			}
			seen[to] = true
			if rest := walk(to); rest != nil {
				return append(rest, r)
			}
		}
		return nil
	}
	return walk(name)
}
