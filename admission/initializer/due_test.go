package initializer

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

func record(uid types.UID, since int, pending ...string) *Record {
	return &Record{UID: uid, Pending: pending, HeadSince: at(since), Assigned: pending}
}

func TestPlan(t *testing.T) {
	ten := func(p v1alpha1.FailurePolicyType) Terms { return Terms{Policy: p, Timeout: 10 * time.Second} }
	never := func(string) time.Time { return time.Time{} }
	for name, tc := range map[string]struct {
		facts Facts
		want  Plan
	}{
		"nothing waits": {facts: Facts{Now: at(0)}},
		"in time": {
			facts: Facts{Now: at(9), Records: []*Record{record("u", 0, "a")}, Terms: map[string]Terms{"a": ten(v1alpha1.Fail)}},
			want:  Plan{Next: at(10)},
		},
		"the first to be due says when to look again": {
			facts: Facts{Now: at(9), Records: []*Record{record("u", 5, "a"), record("v", 2, "a"), record("w", 7, "a")}, Terms: map[string]Terms{"a": ten(v1alpha1.Fail)}},
			want:  Plan{Next: at(12)},
		},
		"Fail": {
			facts: Facts{Now: at(10), Records: []*Record{record("u", 0, "a", "b")}, Terms: map[string]Terms{"a": ten(v1alpha1.Fail), "b": ten(v1alpha1.Ignore)}},
			want:  Plan{Steps: []Step{{UID: "u", Do: Expire, Name: "a"}}, Overdue: []*Record{record("u", 0, "a", "b")}},
		},
		"Ignore": {
			facts: Facts{Now: at(10), Records: []*Record{record("u", 0, "a")}, Terms: map[string]Terms{"a": ten(v1alpha1.Ignore)}},
			want:  Plan{Steps: []Step{{UID: "u", Do: Skip, Name: "a"}}, Overdue: []*Record{record("u", 0, "a")}},
		},
		"Wait": {
			facts: Facts{Now: at(100_000), Records: []*Record{record("u", 0, "a")}, Terms: map[string]Terms{"a": {Policy: v1alpha1.Wait}}},
		},
		"one that no configuration names has the server's terms": {
			facts: Facts{Now: at(10), Records: []*Record{{UID: "u", Pending: []string{"mine"}, HeadSince: at(0)}}, Default: ten(v1alpha1.Fail)},
			want:  Plan{Steps: []Step{{UID: "u", Do: Expire, Name: "mine"}}, Overdue: []*Record{{UID: "u", Pending: []string{"mine"}, HeadSince: at(0)}}},
		},
		"one that has failed goes": {
			facts: Facts{Now: at(0), Records: []*Record{{UID: "u", Failed: true}}},
			want:  Plan{Steps: []Step{{UID: "u", Do: Remove}}},
		},
		"an orphan is given time": {
			facts: Facts{Now: at(29), Records: []*Record{record("u", 0, "a", "b")}, Terms: map[string]Terms{"a": {Policy: v1alpha1.Wait}}, Gone: map[string]time.Time{"b": at(0)}},
			want:  Plan{Next: at(30)},
		},
		"an orphan is let go, also when it is not next": {
			facts: Facts{Now: at(30), Records: []*Record{record("u", 0, "a", "b")}, Terms: map[string]Terms{"a": {Policy: v1alpha1.Wait}}, Gone: map[string]time.Time{"b": at(0)}},
			want:  Plan{Steps: []Step{{UID: "u", Do: Release, Name: "b"}}},
		},
		"a name that the creator gave stays": {
			facts: Facts{Now: at(60), Records: []*Record{{UID: "u", Pending: []string{"a"}, HeadSince: at(0)}}, Gone: map[string]time.Time{"a": at(0)}, Default: Terms{Policy: v1alpha1.Wait}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.Acted = never
			if diff := cmp.Diff(tc.want, MakePlan(tc.facts)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInitializersThatWaitForEachOtherAreFound(t *testing.T) {
	terms := map[string]Terms{
		"a": {Policy: v1alpha1.Ignore, Timeout: time.Hour, Account: "ns/a"},
		"b": {Policy: v1alpha1.Fail, Timeout: time.Hour, Account: "ns/b"},
		"c": {Policy: v1alpha1.Fail, Timeout: time.Hour},
		"d": {Policy: v1alpha1.Wait, Account: "ns/d"},
	}
	pod := func(uid types.UID, account string, since int, pending string) *Record {
		r := record(uid, since, pending)
		r.Account = account
		return r
	}
	never := func(string) time.Time { return time.Time{} }
	both := []*Record{pod("pod-of-a", "ns/a", 0, "b"), pod("pod-of-b", "ns/b", 1, "a")}
	for name, tc := range map[string]struct {
		records    []*Record
		acted      func(string) time.Time
		now        int
		deadlocked []string
		steps      []Step
	}{
		"not at once":               {records: both, now: 10},
		"the older one is let go":   {records: both, now: 11, deadlocked: []string{"a", "b"}, steps: []Step{{UID: "pod-of-a", Do: Expire, Name: "b", Locked: true}}},
		"one that waits for itself": {records: []*Record{pod("pod-of-a", "ns/a", 0, "a")}, now: 10, deadlocked: []string{"a"}, steps: []Step{{UID: "pod-of-a", Do: Skip, Name: "a", Locked: true}}},
		"three in a circle": {
			records: []*Record{pod("pod-of-a", "ns/a", 0, "b"), pod("pod-of-b", "ns/b", 1, "d"), pod("pod-of-d", "ns/d", 2, "a")}, now: 12,
			deadlocked: []string{"a", "b", "d"}, steps: []Step{{UID: "pod-of-a", Do: Expire, Name: "b", Locked: true}},
		},
		"one that is waited for stays so": {
			records: []*Record{pod("pod-of-b", "ns/b", 0, "d"), pod("pod-of-d", "ns/d", 1, "b")}, now: 11, deadlocked: []string{"b", "d"},
		},
		"one that acts is not stuck":       {records: both, now: 11, acted: func(string) time.Time { return at(2) }},
		"one way is no circle":             {records: both[:1], now: 11},
		"pods of others are not concerned": {records: []*Record{pod("x", "ns/x", 0, "a"), pod("y", "ns/y", 0, "b")}, now: 11},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.acted == nil {
				tc.acted = never
			}
			p := MakePlan(Facts{Records: tc.records, Terms: terms, Now: at(tc.now), Acted: tc.acted})
			if diff := cmp.Diff(tc.deadlocked, p.Deadlocked); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tc.steps, p.Steps); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheTurnBeginsWhenTheNextOneChanges(t *testing.T) {
	r := &Record{}
	r.Wait([]string{"a", "b"}, at(0))
	r.Wait([]string{"a", "b", "c"}, at(1))
	if !r.HeadSince.Equal(at(0)) {
		t.Errorf("a's turn began at %v", r.HeadSince)
	}
	r.Wait([]string{"b", "c"}, at(2))
	if !r.HeadSince.Equal(at(2)) || r.Head() != "b" {
		t.Errorf("%s's turn began at %v", r.Head(), r.HeadSince)
	}
}
