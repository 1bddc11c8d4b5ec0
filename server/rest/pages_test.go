package rest

import (
	"testing"
	"time"

	"setpoint.dev/setpoint/store"
)

func TestListsAreOverAfterAWhile(t *testing.T) {
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := begin.Add
	var p pages
	p.begun(10, at(0))
	p.begun(12, at(10*time.Second))
	for _, c := range []struct {
		name string
		rev  int64
		at   time.Duration
		over bool
	}{
		{"at once", 10, 0, false},
		{"in time", 10, pageLife, false},
		{"too late", 10, pageLife + time.Second, true},
		{"one before it", 9, pageLife + time.Second, true},
		{"one after it", 11, pageLife + time.Second, false},
		{"the next, in time", 12, pageLife + 10*time.Second, false},
		{"the next, too late", 12, pageLife + 11*time.Second, true},
		{"never begun here", 13, pageLife + time.Hour, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if over := p.over(store.Revision(c.rev), at(c.at)); over != c.over {
				t.Errorf("over: %v", over)
			}
		})
	}
	// Where nothing changes, a list that begins anew has its time.
	p.begun(12, at(2*time.Hour))
	if p.over(12, at(2*time.Hour+time.Minute)) {
		t.Error("a list that began a minute ago is over")
	}
	for i := range 100_000 {
		p.begun(store.Revision(int64(100+i)), at(3*time.Hour+time.Duration(i)*time.Millisecond))
	}
	if len(p.marks) > 400 {
		t.Errorf("%d marks", len(p.marks))
	}
}
