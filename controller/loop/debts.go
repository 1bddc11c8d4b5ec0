package loop

import (
	"sync"
	"time"
)

// debtor is a key of a loop that has written something.
type debtor struct {
	loop string
	key  any
}

// debts are what loops have written and informers have not shown yet. They
// outlive a controller that is started again: the informers do, too.
type debts struct {
	mu   sync.Mutex // guards the fields below
	owed map[debtor]debt
}

type debt struct {
	tables map[string]int64 // the revision that each must have reached
	since  time.Time
}

// lookAgain is how often informers are looked at that are behind, if no change
// has them looked at before; patience is when they are no longer waited for.
const (
	lookAgain = 20 * time.Millisecond
	patience  = 30 * time.Second
)

// owe says what a round has written.
func (d *debts) owe(who debtor, wrote map[string]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owed == nil {
		d.owed = map[debtor]debt{}
	}
	d.owed[who] = debt{tables: wrote, since: time.Now()}
}

// wait says how long to wait for informers that have not seen everything; 0
// when they have. reached is how far the informer of a table is, if there is
// one.
func (d *debts) wait(who debtor, reached func(table string) (int64, bool)) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	owed, has := d.owed[who]
	if !has {
		return 0
	}
	if time.Since(owed.since) < patience {
		for table, rev := range owed.tables {
			if at, read := reached(table); read && at < rev {
				return lookAgain
			}
		}
	}
	delete(d.owed, who)
	return 0
}
