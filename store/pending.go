package store

// Pending is an object as a commit is about to store it: its conditions have held and
// its revision is known, and what is waited for is the disk. Who writes the object
// next may begin with it, and say so in his commit, which happens only if this one
// has.
//
// Nobody else may be told of it, and nothing may be said of it, before Wait has
// returned nil: a power cut could take it back.
type Pending struct {
	object *Object
	known  chan struct{} // closed when failed is set
	failed error
}

// Object is what is about to be stored.
func (p *Pending) Object() *Object { return p.object }

// Wait returns when it is known whether the object was stored: nil when it was, or
// why it was not, or may not have been.
func (p *Pending) Wait() error {
	<-p.known
	return p.failed
}

// Chain is how the commits of those who write one object follow each other without
// waiting for the disk in between. The object is that of a commit's first operation
// that is no assertion.
type Chain struct {
	// After is what the operation was made to; nil when it was made to what is stored.
	After *Pending
	// Next is told of what the operation makes, unless that is a deletion, before the
	// disk is waited for; nil tells nobody. All commits wait until it returns.
	Next func(*Pending)
}

// follows says why a request cannot happen when what it was made to has not: for
// all that its conditions say, something else may have got the same revision.
func (d *draft) follows(r *request) error {
	if r.chain.After == nil || r.chain.After.Wait() == nil { // of a group before, so it is known
		return nil
	}
	op := &r.ops[0]
	return &ConflictError{Plane: op.Plane, Resource: op.Resource, Key: op.Key, Want: op.If, Have: d.get(op.table, op.Key)}
}

// announce tells who is next in the chain what the request is about to store.
func (r *request) announce() {
	if r.chain.Next == nil || r.err != nil || r.ops[0].Delete {
		return
	}
	r.pending = &Pending{object: r.changes[0].New, known: make(chan struct{})}
	r.chain.Next(r.pending)
}

// settle tells who has gone on with what was announced what became of it.
func (r *request) settle(failed error) {
	if r.pending != nil {
		r.pending.failed = failed
		close(r.pending.known)
	}
}
