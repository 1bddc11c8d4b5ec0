package kinds

import (
	"context"
	"iter"

	"k8s.io/apimachinery/pkg/runtime"
)

// Write is a change of one object on its way to the store, as Join sees it.
type Write struct {
	// Object is what is about to be stored, of the internal type; Join may
	// change it. It is nil for a deletion.
	Object runtime.Object
	// Old is what is stored, nil for a creation.
	Old runtime.Object
	// DryRun says that nothing will be stored, whatever Join returns.
	DryRun bool
	// Stored is the plane that the write goes to, as it is now. It does not
	// change while Join looks at it.
	Stored Reader
}

// Reader reads stored objects of one plane, as JSON of their storage version.
type Reader interface {
	// Get returns the object under a key of a table, nil when there is none.
	Get(ctx context.Context, table, key string) ([]byte, error)
	// All yields a table in key order, and at most one error, as its last
	// element.
	All(ctx context.Context, table string) iter.Seq2[[]byte, error]
	// Has says whether a declared field of an object in a table has a value.
	Has(ctx context.Context, table, field, value string) (bool, error)
}

// Companion is a change that happens in the commit of another one, or not at
// all. It is one of three:
//
//   - with an Object, that object is created;
//   - with a Value, the value is put under a key of a table that is no kind's;
//   - with neither, what is under the key is removed.
//
// What is created must not be there yet, what is removed must be. Where that
// has changed since Join looked, the whole write is tried again, and Join asked
// again.
type Companion struct {
	// Object is of an external type of a served kind. It gets its defaults and
	// system fields on the way; admission does not see it.
	Object runtime.Object
	Table  string
	Key    string
	Value  []byte
}
