package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Provenance says who made a revision, through what, and because of what.
type Provenance struct {
	// Time is set by the store when the revision is made.
	Time time.Time
	User string
	// Impersonator is who acted as User, if somebody did.
	Impersonator string
	UserAgent    string
	FieldManager string
	Verb         string
	RequestID    string
	// Admission names the admission steps that changed the object.
	Admission []string
	// Cause is the revision that made an actor write this one.
	Cause Revision
	// Transaction joins revisions that belong together.
	Transaction string
}

// On disk a provenance is a list of fields, each a tag and a value; what is
// empty is left out. Time is kept by the engine, beside it.
//
//	texts:   tag, uvarint length, bytes
//	cause:   tag, uvarint
const (
	tagUser = iota + 1
	tagImpersonator
	tagUserAgent
	tagFieldManager
	tagVerb
	tagRequestID
	tagAdmission
	tagCause
	tagTransaction
)

var errProvenance = errors.New("provenance is damaged")

func (p Provenance) encode() []byte {
	size := len(p.User) + len(p.Impersonator) + len(p.UserAgent) + len(p.FieldManager) +
		len(p.Verb) + len(p.RequestID) + len(p.Transaction) + 32
	b := make([]byte, 0, size)
	text := func(tag byte, s string) {
		if s != "" {
			b = appendText(append(b, tag), s)
		}
	}
	text(tagUser, p.User)
	text(tagImpersonator, p.Impersonator)
	text(tagUserAgent, p.UserAgent)
	text(tagFieldManager, p.FieldManager)
	text(tagVerb, p.Verb)
	text(tagRequestID, p.RequestID)
	for _, step := range p.Admission {
		b = appendText(append(b, tagAdmission), step)
	}
	if p.Cause > 0 {
		b = binary.AppendUvarint(append(b, tagCause), uint64(p.Cause))
	}
	text(tagTransaction, p.Transaction)
	return b
}

// decodeProvenance is strict: what it accepts, encode writes again.
func decodeProvenance(b []byte, millis int64) (Provenance, error) {
	p := Provenance{Time: time.UnixMilli(millis).UTC()}
	d := decoder{b: b}
	last := byte(0)
	for len(d.b) > 0 && !d.bad {
		tag := d.byte()
		if tag < last || (tag == last && tag != tagAdmission) {
			return Provenance{}, fmt.Errorf("%w: field %d out of order", errProvenance, tag)
		}
		last = tag
		if tag == tagCause {
			p.Cause = Revision(d.uvarint())
			d.bad = d.bad || p.Cause <= 0
			continue
		}
		s := d.ownText()
		switch tag {
		case tagUser:
			p.User = s
		case tagImpersonator:
			p.Impersonator = s
		case tagUserAgent:
			p.UserAgent = s
		case tagFieldManager:
			p.FieldManager = s
		case tagVerb:
			p.Verb = s
		case tagRequestID:
			p.RequestID = s
		case tagAdmission:
			p.Admission = append(p.Admission, s)
		case tagTransaction:
			p.Transaction = s
		default:
			return Provenance{}, fmt.Errorf("%w: unknown field %d", errProvenance, tag)
		}
		d.bad = d.bad || (s == "" && tag != tagAdmission)
	}
	if d.bad {
		return Provenance{}, errProvenance
	}
	return p, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder reads the store's records. It never reads past the end: what is
// missing or oversized sets bad, and everything after that reads as zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) byte() byte {
	if d.bad || len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// uvarint accepts only the shortest form, so that a record has one encoding.
func (d *decoder) uvarint() uint64 {
	n, w := binary.Uvarint(d.b)
	if d.bad || w <= 0 || (w > 1 && d.b[w-1] == 0) {
		d.bad = true
		return 0
	}
	d.b = d.b[w:]
	return n
}

// count reads how many items follow; each takes at least a byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}

// text views the record; ownText copies out of it.
func (d *decoder) text() string {
	n := d.count()
	s := viewString(d.b[:n])
	d.b = d.b[n:]
	return s
}

func (d *decoder) ownText() string { return string([]byte(d.text())) }
