package ownership

import (
	"bytes"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// maxKept is how many bytes of field sets, as they are written, are kept in
// their parsed forms, which take some twenty times as much. What is larger than
// an eighth of a generation is parsed anew each time.
const maxKept = 512 << 10

// set is a set of fields, with what has been found out about it. The set itself
// never changes.
type set struct {
	*fieldpath.Set
	text   atomic.Pointer[string]         // as it is written; nil until asked for
	tree   atomic.Pointer[map[string]any] // as the fields of an object; likewise
	fitted atomic.Pointer[fit]            // to the schema that it was last held against
	joined atomic.Pointer[join]           // with what it was last joined
	made   *join                          // how it was made; nil once it is written
	from   *set                           // of what; likewise
}

// join is what came of a set and more: how that is written. It does not hold on
// to the set itself, which would hold on to the next.
type join struct {
	more *fieldpath.Set
	text string
}

// fit is what is left of a set in a schema.
type fit struct {
	shape shape
	set   *set
}

func newSet(s *fieldpath.Set) *set { return &set{Set: s} }

// written is the set as records have it.
func (s *set) written() (string, error) {
	if text := s.text.Load(); text != nil {
		return *text, nil
	}
	b, err := s.ToJSON()
	if err != nil {
		return "", err
	}
	text := string(b)
	s.text.Store(&text)
	if s.made != nil {
		s.made.text = text
		s.from.joined.Store(s.made)
		s.made, s.from = nil, nil
	}
	kept.put(text, s) // who reads the record next need not parse it
	return text, nil
}

// plus is the set with more in it. Writers do the same to object after object,
// so that what came of it the last time is often what comes of it again.
func (s *set) plus(more *fieldpath.Set) *set {
	if last := s.joined.Load(); last != nil && last.more.Equals(more) {
		if known := kept.find(last.text); known != nil {
			return known
		}
	}
	sum := newSet(s.Union(more))
	sum.from, sum.made = s, &join{more: more}
	return sum
}

// isIn says that the set fits a schema as it is: it was made by it.
func (s *set) isIn(at shape) { s.fitted.Store(&fit{at, s}) }

// in is the set after changes of the schema from granular to atomic: whoever
// owned parts owns the whole.
func (s *set) in(at shape) (*set, error) {
	if known := s.fitted.Load(); known != nil && known.shape.equals(at) {
		return known.set, nil
	}
	nothing := typed.AsTypedUnvalidated(nil, at.schema, at.ref) //nolint:staticcheck // of the value, only its type is asked for
	changed, err := typed.ReconcileFieldSetWithSchema(s.Set, nothing)
	if err != nil {
		return nil, err
	}
	left := s
	if changed != nil {
		left = newSet(changed)
	}
	s.fitted.Store(&fit{at, left})
	return left, nil
}

// parse reads a set.
func parse(text []byte) (*set, error) {
	if s := kept.get(text); s != nil {
		return s, nil
	}
	s := newSet(&fieldpath.Set{})
	if err := s.FromJSON(bytes.NewReader(text)); err != nil {
		return nil, err
	}
	kept.put(string(text), s)
	return s, nil
}

// encode returns a set as records have it. Nobody else has the bytes: decoders
// write over what they find.
func (s *set) encode() (*metav1.FieldsV1, error) {
	text, err := s.written()
	if err != nil {
		return nil, err
	}
	fields := &metav1.FieldsV1{}
	fields.SetRawString(text)
	return fields, nil
}

// kept is shared by all managers of the process: what a text means depends on
// nothing else, and so the bound is one for all.
var kept = &sets{young: map[string]*set{}}

// sets keeps parsed field sets by how they are written. Two generations: what
// nobody has asked for since the last change of generations is forgotten with
// the next.
type sets struct {
	mu         sync.Mutex // guards the fields below
	young, old map[string]*set
	size       int // of the young, in bytes
}

func (k *sets) get(text []byte) *set {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.young[string(text)]; s != nil {
		return s
	}
	return k.agedLocked(string(text))
}

// find is get for a text that the caller keeps.
func (k *sets) find(text string) *set {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.young[text]; s != nil {
		return s
	}
	return k.agedLocked(text)
}

// agedLocked is a set of the generation before, which is young from now on.
func (k *sets) agedLocked(text string) *set {
	s := k.old[text]
	if s != nil {
		k.putLocked(text, s)
	}
	return s
}

func (k *sets) put(text string, s *set) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.putLocked(text, s)
}

func (k *sets) putLocked(text string, s *set) {
	if len(text) > maxKept/16 {
		return
	}
	if k.size += len(text); k.size > maxKept/2 {
		k.young, k.old, k.size = map[string]*set{}, k.young, len(text)
	}
	k.young[text] = s
}
