package store

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"setpoint.dev/setpoint/store/engine"
)

// Bounds of one commit.
const (
	maxOps       = 10_000
	maxValue     = 64 << 20 // bytes of one value
	maxCommit    = 256 << 20
	maxKeyLength = 4096
)

// Op is one operation of a commit. An object may be named once in a commit.
type Op struct {
	// Plane is where; "" means Main.
	Plane    string
	Resource string
	Key      string
	If       Condition
	// Assert leaves the object alone: the rest of the commit happens only if
	// its condition holds. An assertion has no value.
	Assert bool
	// Delete removes the object. Without it, Value becomes the object's value.
	Delete bool
	// Value is the object without its revision. A deletion may carry the
	// object's last state; without one the last state is the stored value with
	// the deletion's revision filled in.
	Value []byte
	// RevAt is where in Value the text of the revision goes, -1 for nowhere.
	RevAt int
	// Index is what selection needs to know. A deletion without a value needs
	// none.
	Index Index
}

// Condition is what must hold for an operation to happen. The zero value
// holds always.
type Condition struct {
	compare bool
	rev     Revision
}

// Conditions an operation may have. A deletion needs an object besides, and so
// does an assertion of Any.
var (
	Any    = Condition{}
	Absent = Condition{compare: true}
)

// At holds when the object's newest version was written at rev.
func At(rev Revision) Condition { return Condition{compare: true, rev: rev} }

// String says the condition as an error message wants it.
func (c Condition) String() string {
	switch {
	case !c.compare:
		return "to exist"
	case c.rev == 0:
		return "not to exist"
	default:
		return fmt.Sprintf("at revision %d", c.rev)
	}
}

// ConflictError says that a condition did not hold. Nothing of the commit
// happened.
type ConflictError struct {
	Plane    string
	Resource string
	Key      string
	Want     Condition
	// Have is what is stored; nil when there is nothing.
	Have *Object
}

func (e *ConflictError) Error() string {
	have := "it does not exist"
	if e.Have != nil {
		have = fmt.Sprintf("it is at revision %d", e.Have.Rev)
	}
	return fmt.Sprintf("%s %q in plane %s was expected %s, but %s", e.Resource, e.Key, e.Plane, e.Want, have)
}

// Check says what Commit would say of the operation's condition: nil, or a
// *ConflictError. have is what is stored, nil for nothing.
func (op Op) Check(have *Object) error {
	p := preparedOp{Op: op}
	return p.conflict(have)
}

// Finish is the object that op writes at rev, as a reader finds it; its
// selection data is left out.
func Finish(op Op, rev Revision) *Object {
	index, _ := Index{}.encode() // an empty index has nothing to refuse
	return newObject(op.Key, rev, rev, op.Value, op.RevAt, index, 0)
}

// Commit carries out the operations, all or none, at one new revision, and
// returns that revision once it is durable.
//
// Assertions are checked before the other operations. At least one operation
// has to be none.
//
// It returns a *ConflictError when a condition does not hold, ErrInvalid when
// the operations can never be carried out, ErrNoPlane for a plane that is not
// there, ErrNoSpace when the disk is full. With ErrUnknown in the chain the
// commit may or may not show up later; with every other error it has not
// happened. When ctx ends before the commit is taken up, nothing happens; once
// it is taken up, ctx no longer matters.
func (s *Store) Commit(ctx context.Context, p Provenance, ops ...Op) (Revision, error) {
	return s.CommitChained(ctx, p, Chain{}, ops...)
}

// CommitChained is Commit for one of several who write the same object.
func (s *Store) CommitChained(ctx context.Context, p Provenance, chain Chain, ops ...Op) (Revision, error) {
	r, err := s.committer.newRequest(p, ops)
	if err != nil {
		return 0, err
	}
	r.chain = chain
	if err := s.committer.do(ctx, r); err != nil {
		return 0, err // the committer may still come across r: it is not used again
	}
	rev, err := r.rev, r.err
	s.committer.release(r)
	return rev, err
}

// request is a commit, or an edit of the set of planes, on its way through the
// committer.
type request struct {
	asserts    []preparedOp
	ops        []preparedOp // those that change something
	provenance []byte
	size       int
	chain      Chain
	pending    *Pending // what the next in the chain was told of; nil when nobody was
	// edit changes the set of planes instead; see plane.go.
	edit func(*draft, *Batch) error

	taken atomic.Bool   // by the committer, or by a caller that gave up
	done  chan struct{} // told once, when rev and err are set
	rev   Revision
	err   error
	// changes is what the committer made of ops, held what it found of asserts.
	changes []*Change
	held    []engine.Assert

	// Room for the one operation, and the one assertion, that most commits
	// have.
	oneOp      [1]preparedOp
	oneAssert  [1]preparedOp
	oneHeld    [1]engine.Assert
	oneChange  [1]*Change
	oneDurable [1]engine.Change
}

// newEdit is a request to change the set of planes.
func newEdit(edit func(*draft, *Batch) error) *request {
	return &request{edit: edit, done: make(chan struct{}, 1)}
}

// release keeps a request that nobody refers to any more for the next commit.
func (c *committer) release(r *request) {
	*r = request{done: r.done}
	c.spare.Put(r)
}

// preparedOp is an operation with all the work done that needs no revision, on
// the caller's goroutine.
type preparedOp struct {
	Op
	table engine.Table
	index []byte
}

func (c *committer) newRequest(p Provenance, ops []Op) (*request, error) {
	if len(ops) == 0 || len(ops) > maxOps {
		return nil, fmt.Errorf("%w: %d operations in one commit, allowed are 1 to %d", ErrInvalid, len(ops), maxOps)
	}
	r, ok := c.spare.Get().(*request)
	if !ok {
		r = newEdit(nil)
	}
	r.provenance = p.encode()
	r.asserts, r.ops = r.oneAssert[:0], r.oneOp[:0]
	r.size = len(r.provenance)
	for _, op := range ops {
		if op.Plane == "" {
			op.Plane = Main
		}
		if err := check(op); err != nil {
			return nil, fmt.Errorf("%w: %s %q: %w", ErrInvalid, op.Resource, op.Key, err)
		}
		index, err := op.Index.encode()
		if err != nil {
			return nil, err
		}
		r.size += len(op.Key) + len(op.Value) + len(index)
		prepared := preparedOp{op, engine.Table{Plane: op.Plane, Resource: op.Resource}, index}
		if op.Assert {
			r.asserts = append(r.asserts, prepared)
		} else {
			r.ops = append(r.ops, prepared)
		}
	}
	if len(r.ops) == 0 {
		return nil, fmt.Errorf("%w: a commit of assertions alone", ErrInvalid)
	}
	if r.size > maxCommit {
		return nil, fmt.Errorf("%w: commit of %d bytes, allowed are %d", ErrInvalid, r.size, maxCommit)
	}
	return r, checkDistinct(ops)
}

func check(op Op) error {
	for _, name := range []struct{ what, text string }{{"plane", op.Plane}, {"resource", op.Resource}, {"key", op.Key}} {
		if name.text == "" || len(name.text) > maxKeyLength || strings.Contains(name.text, "\x00") {
			return fmt.Errorf("%s %q must have 1 to %d bytes and no NUL", name.what, name.text, maxKeyLength)
		}
	}
	if op.RevAt < -1 || op.RevAt > len(op.Value) {
		return fmt.Errorf("revision at %d in a value of %d bytes", op.RevAt, len(op.Value))
	}
	if len(op.Value) > maxValue {
		return fmt.Errorf("value of %d bytes, allowed are %d", len(op.Value), maxValue)
	}
	if op.Assert && (op.Value != nil || op.Delete) {
		return fmt.Errorf("an assertion that writes")
	}
	if op.Value == nil && !op.Delete && !op.Assert {
		return fmt.Errorf("no value")
	}
	if op.If.rev < 0 {
		return fmt.Errorf("condition on revision %d", op.If.rev)
	}
	return nil
}

func checkDistinct(ops []Op) error {
	twice := func(op Op) error {
		return fmt.Errorf("%w: %s %q is named twice in one commit", ErrInvalid, op.Resource, op.Key)
	}
	name := func(op Op) [3]string { return [3]string{cmp.Or(op.Plane, Main), op.Resource, op.Key} }
	switch len(ops) {
	case 1:
		return nil
	case 2:
		if name(ops[0]) == name(ops[1]) {
			return twice(ops[0])
		}
		return nil
	}
	seen := make(map[[3]string]bool, len(ops))
	for _, op := range ops {
		if seen[name(op)] {
			return twice(op)
		}
		seen[name(op)] = true
	}
	return nil
}

// conflict returns an error unless op may happen to have, what is stored.
func (op *preparedOp) conflict(have *Object) error {
	holds := !op.If.compare
	if op.If.compare {
		holds = have == nil && op.If.rev == 0 || have != nil && have.Rev == op.If.rev
	}
	if have == nil && (op.Delete || op.Assert && !op.If.compare) {
		holds = false
	}
	if holds {
		return nil
	}
	return &ConflictError{Plane: op.Plane, Resource: op.Resource, Key: op.Key, Want: op.If, Have: have}
}

// derived says that op is a deletion whose last state follows from the version
// before.
func (op *preparedOp) derived() bool { return op.Delete && len(op.Value) == 0 }

// change is what op does to old at rev.
func (op *preparedOp) change(old *Object, rev Revision, millis int64, provenance []byte) *Change {
	c := &Change{
		Plane: op.Plane, Resource: op.Resource, Rev: rev, Old: old, Deleted: op.Delete,
		millis: millis, provenance: provenance,
	}
	create := rev
	if old != nil {
		c.Prev, create = old.Rev, old.Create
	}
	if op.derived() {
		c.New = deletedObject(old, rev)
	} else {
		c.New = newObject(op.Key, rev, create, op.Value, op.RevAt, op.index, op.Index.Flags)
	}
	return c
}

// deletedObject is the last state of old when it is deleted at rev.
func deletedObject(old *Object, rev Revision) *Object {
	o := newObject(old.Key(), rev, old.Create, old.withRevision(rev), -1, old.index(), old.flags)
	o.revAt = old.revAt
	return o
}

// durable is the change as the engine keeps it. A deletion whose last state
// follows from the previous version is kept without it.
func (c *Change) durable(derived bool) engine.Change {
	e := engine.Change{
		Plane: c.planeID, Resource: c.Resource, Key: c.Key(),
		Prev: c.Prev, Create: c.New.Create, Delete: c.Deleted, RevAt: -1,
	}
	if !derived {
		e.Value, e.RevAt, e.Index = c.New.Value(), int(c.New.revAt), c.New.index()
	}
	return e
}
