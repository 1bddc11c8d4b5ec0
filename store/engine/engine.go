// Package engine is the contract between the store and what keeps its bytes.
//
// In come transactions, each a revision's worth of changes; out come the live
// objects, an object's versions, and each resource's log of changes. An engine
// does not know what an object is: keys, values, index data and provenance are
// bytes to it. It decides nothing either: the store checks preconditions and
// numbers revisions, the engine makes the result durable and finds it again.
//
// What always holds:
//
//   - Commit returns nil only when every transaction of the group would be
//     there after a power cut. A transaction is there whole or not at all, and
//     never without the ones before it.
//   - Reads see every transaction whose Commit returned, and no part of one
//     that is under way at a later moment than the iteration's start.
//   - A resource of a plane has a floor. Its state is readable at any revision
//     from the floor on, and its changes after the floor are all in the log.
//     Compact raises the floor; live objects are never lost by it.
//
// Every implementation passes the suite in enginetest.
package engine

import (
	"context"
	"errors"
	"iter"
)

// Revision numbers a change of the store. One counter serves all planes;
// the first change has revision 1, and 0 stands for "before everything".
type Revision int64

// Errors an engine answers with; callers ask with errors.Is.
var (
	// ErrCompacted says that the asked revision lies below the floor.
	ErrCompacted = errors.New("revision is compacted")
	// ErrNoSpace says that the disk has no room. Nothing of the group was
	// written unless ErrUnknown is in the chain as well.
	ErrNoSpace = errors.New("no space left for the store")
	// ErrUnknown says that the outcome of a commit is not known: it may or may
	// not be found after Recover or a restart. Until Recover succeeds the
	// engine takes no further commit.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrFailed says that the engine will not write again in this process,
	// because a sync failed and nobody can say what the disk holds.
	ErrFailed = errors.New("store failed; restart to write again")
	// ErrClosed says that the engine was closed.
	ErrClosed = errors.New("store is closed")
)

// Txn is all that happens at one revision.
type Txn struct {
	Rev Revision
	// Time is when, in milliseconds since 1970. It never falls from one
	// revision to the next, so that a point in time is a point in the log.
	Time       int64
	Provenance []byte
	Changes    []Change
	// Asserts are objects that the transaction leaves alone and that are as
	// the store took them to be. Nothing is kept of them. An engine that others
	// write to as well compares them before it commits.
	Asserts []Assert
}

// Assert says which version of an object is the newest.
type Assert struct {
	Plane    string
	Resource string
	Key      string
	// Rev is 0 when there is no such object.
	Rev Revision
}

// Change is what one transaction does to one object.
//
// Plane, Resource and Key are non-empty and hold no NUL byte.
type Change struct {
	Plane    string
	Resource string
	Key      string
	// Prev is the revision of the version this change replaces, 0 when there
	// was none. An engine that others write to as well compares it before it
	// commits.
	Prev Revision
	// Create is the revision at which this life of the object began; equal to
	// the transaction's own revision when the change creates it.
	Create Revision
	Delete bool
	// Value is the object as clients read it, with the revision's text at
	// RevAt (-1: the value carries none). A delete may go without: the final
	// state is then the previous version with the new revision's text.
	Value []byte
	RevAt int
	// Index is the store's encoded selection data.
	Index []byte
}

// Version is a change as it lies on disk.
//
// Its byte slices are the reader's to keep and belong to no one else.
type Version struct {
	Change
	Rev        Revision
	Time       int64
	Provenance []byte
}

// Entry is a line in a resource's log: which object changed, without the bytes.
type Entry struct {
	Rev    Revision
	Time   int64
	Key    string
	Prev   Revision
	Delete bool
}

// Table names the objects of one resource in one plane.
type Table struct {
	Plane    string
	Resource string
}

// Engine keeps versions of objects under keys.
//
// Methods may be called at the same time from several goroutines, Commit and
// Recover from one. Iterators hold resources of the engine until they end;
// each yields at most one error, as its last element.
type Engine interface {
	// Current is the newest revision that may have been handed out: that of
	// the last commit or of the last reserve, whichever is higher.
	Current() Revision

	// Commit writes the group in order and returns when it is durable.
	// Revisions rise from one transaction to the next and from call to call.
	// A reserve above 0 makes Current at least that revision after a restart;
	// the store uses it for revisions given to planes that live in memory.
	//
	// On ErrNoSpace alone nothing was written and a later call may succeed. On
	// ErrUnknown see Recover. On ErrFailed no call will succeed again.
	Commit(ctx context.Context, group []Txn, reserve Revision) error

	// Recover makes the engine writable after ErrUnknown and settles what
	// became of the group: it is there whole for a prefix of its transactions,
	// and Current says how long that prefix is. It returns ErrNoSpace while
	// there is no room, ErrFailed when it is no use.
	Recover(ctx context.Context) error

	// Tables lists the tables that hold anything, in order, with their floors.
	Tables(ctx context.Context) (map[Table]Revision, error)

	// Scan yields the objects of a table as they were at revision at, in key
	// order, keys from `from` (inclusive) to `to` (exclusive, "" for the end).
	// at 0 means now. Deleted objects are left out.
	Scan(ctx context.Context, t Table, from, to string, at Revision) iter.Seq2[Version, error]

	// Load yields every live object of the engine as it is now: Scan over all
	// tables, as fast as the engine can. The key space (tables in order, keys
	// in order within) is cut into parts numbered from 0; parts are read at
	// the same time by goroutines of the engine, so fn is called concurrently
	// for different parts, but for one part by one goroutine and in key order.
	// The version's bytes and its key are the engine's: they are valid until
	// fn returns.
	Load(ctx context.Context, fn func(part int, v Version) error) error

	// Versions yields the retained versions of one object, oldest first,
	// deletions included. The first may lie at or below the floor.
	Versions(ctx context.Context, t Table, key string) iter.Seq2[Version, error]

	// Get returns the version of an object that was written at rev. It
	// returns ErrCompacted when there is none.
	Get(ctx context.Context, t Table, key string, rev Revision) (Version, error)

	// Log yields the changes of a table after a revision, in revision order
	// and, within one, in the order of the transaction. It yields
	// ErrCompacted when after lies below the floor, at the start or because
	// the floor overtook the reader.
	Log(ctx context.Context, t Table, after Revision) iter.Seq2[Entry, error]

	// Compact raises the floor of a table to upTo and removes versions that no
	// read from there on can see, a bounded number at a time. It may stop
	// early when ctx ends; what remains is removed by the next call.
	Compact(ctx context.Context, t Table, upTo Revision) error

	// Drop removes a plane with all its tables.
	Drop(ctx context.Context, plane string) error

	// Backup writes a consistent copy to a folder that does not exist yet.
	// The copy can be opened as an engine of the same kind. An engine without
	// a disk returns errors.ErrUnsupported.
	Backup(ctx context.Context, dir string) error

	// Close ends the engine. Calls under way finish or return ErrClosed.
	Close() error
}
