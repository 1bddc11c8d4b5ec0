// Package enginetest is the suite that every engine passes.
//
// Run opens engines and asks of them every sentence of the contract in package
// engine. Most answers are compared with those of a model that keeps all that
// was committed and is simple enough to be checked by reading.
//
// Where the contract leaves room, the suite reads it so:
//
//   - An iteration begins when it is ranged over. What is committed while it
//     runs, also by the body of the loop, is not part of it.
//   - When Compact overtakes an iteration, that ends with ErrCompacted or goes
//     on to yield what it would have; it leaves nothing out in silence.
//   - A state may be read at the floor, and the log after it; both are
//     ErrCompacted one revision before. Revision 0 of Scan is now and never
//     compacted, of Log it is the beginning and as old as any.
//   - A revision above Current reads as Current.
//   - The floor stops at Current, whatever Compact is asked.
//   - Once Compact has returned nil, Versions and Get know of no version that a
//     Scan from the floor on or a Log after it cannot meet. So a deletion at or
//     below the floor is gone together with what it deleted.
//   - A table that is compacted until nothing is left is still listed, with its
//     floor.
//   - Bounds of Scan are any strings: the successor of a key is the key with a
//     NUL byte behind it.
//   - No bytes are no bytes: nil may come back as empty and the other way round.
//     A deletion that was committed without a value comes back without one.
//   - Dropping a plane drops its floors and leaves Current.
//   - Current does not fall when a reserve is lower than the one before.
//   - Recover on an engine that has nothing to settle returns nil.
package enginetest

import (
	"testing"

	"setpoint.dev/setpoint/store/engine"
)

// Run checks an engine against the contract in package engine.
//
// open opens an engine on a folder, which exists and is empty or holds what an
// earlier engine that open returned left there when it was closed, or what
// Backup wrote. The suite closes what it opens; open fails the test when it
// cannot open.
//
// durable says whether closing and opening again on the same folder keeps the
// data. Without it the suite opens each folder once.
func Run(t *testing.T, open func(t *testing.T, dir string) engine.Engine, durable bool) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.durable && !durable {
				t.Skip("the engine keeps nothing after Close")
			}
			s := newSubject(t, open)
			c.run(s)
			if s.closed || t.Failed() {
				return
			}
			s.check()
			if durable {
				s.reopen()
				s.check()
			}
		})
	}
	t.Run("Backup writes a consistent copy that can be opened", func(t *testing.T) {
		backup(newSubject(t, open), durable)
	})
	randomRuns(t, open, durable)
}

// testCase checks a sentence of the contract. After it, Run compares the
// engine with the model once more, and again after a restart when there can be
// one.
type testCase struct {
	name    string
	durable bool // makes sense only for engines that keep data
	run     func(*subject)
}

var cases = []testCase{
	// commit.go
	{name: "an engine begins empty at revision 0", run: begin},
	{name: "Commit writes the group in order", run: commitOrder},
	{name: "reads see every transaction whose Commit returned", run: commitVisible},
	{name: "a transaction of a thousand changes is there whole", run: commitMany},
	{name: "nothing is kept of what a transaction asserts", run: commitAsserts},
	{name: "Current is the last commit or the last reserve", run: current},
	{name: "a reserve holds after a restart", durable: true, run: reserveRestart},
	{name: "what was committed is there after a restart", durable: true, run: commitRestart},
	{name: "a Commit whose ctx has ended does what it says", run: commitCanceled},
	{name: "Recover without need changes nothing", run: recoverHealthy},

	// scan.go
	{name: "tables of several planes are apart", run: tablesApart},
	{name: "Scan yields objects in key order from and to any bound", run: scanRange},
	{name: "Scan yields objects as they were at a revision", run: scanAt},
	{name: "Scan leaves out deleted objects", run: scanDeleted},
	{name: "an object created again begins a new life", run: scanRecreated},
	{name: "Load is Scan over all tables cut into parts", run: loadParts},
	{name: "Load ends with the error of fn", run: loadError},

	// history.go
	{name: "Versions come oldest first with deletions", run: versions},
	{name: "Get returns the version written at a revision", run: get},
	{name: "Log keeps the order of the transaction", run: logOrder},
	{name: "Log goes on after each revision", run: logResume},

	// bytes.go
	{name: "byte slices are the reader's to keep", run: bytesKept},
	{name: "no bytes are no bytes, nil or empty", run: bytesEmpty},
	{name: "the revision's text may be anywhere in the value", run: bytesRevAt},
	{name: "a delete may go without a value", run: bytesDelete},
	{name: "a value may have a mebibyte", run: bytesLarge},

	// compact.go
	{name: "below the floor is ErrCompacted", run: compactFloor},
	{name: "Compact removes what no read can see", run: compactRemoves},
	{name: "Compact never loses live objects", run: compactLive},
	{name: "Compact again changes nothing and lowers no floor", run: compactAgain},
	{name: "Compact past Current stops there", run: compactFuture},
	{name: "Compact goes on where ctx stopped it", run: compactCanceled},
	{name: "Compact leaves other tables alone", run: compactOthers},
	{name: "floors hold after a restart", durable: true, run: compactRestart},
	{name: "Drop removes a plane with all its tables", run: drop},
	{name: "a plane may come back after Drop", run: dropReturn},
	{name: "Drop holds after a restart", durable: true, run: dropRestart},

	// iterate.go
	{name: "an iteration sees the moment it began", run: iterateMoment},
	{name: "an iteration overtaken by Compact leaves nothing out", run: iterateOvertaken},
	{name: "a reader may stop early", run: iterateStop},
	{name: "an iteration ends with ctx", run: iterateCanceled},
	{name: "readers beside the committer see whole transactions", run: concurrent},
	{name: "after Close calls return ErrClosed", run: closed},
	{name: "calls under way finish or return ErrClosed", run: closeUnderWay},
}
