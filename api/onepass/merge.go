package onepass

import "bytes"

// Merge applies a JSON merge patch (RFC 7386) to a JSON object: what the patch
// does not name is copied as it is. Lists of a patch that say null somewhere
// are not plain.
func Merge(object, patch []byte) ([]byte, bool) {
	p := reader{data: patch}
	if p.next() != '{' {
		return nil, false
	}
	wanted := p.members()
	if !p.done() {
		return nil, false
	}
	r := reader{data: object}
	if r.next() != '{' {
		return nil, false
	}
	merged := r.merge(make([]byte, 0, len(object)+len(patch)), wanted)
	return merged, r.done()
}

// maxMembers is how many fields an object of a patch may have; with more it is
// not plain.
const maxMembers = 64

// member is a field of a patch.
type member struct {
	name  string
	key   []byte   // the name as it is written
	value []byte   // as it is written; nil for null
	below []member // those of an object
	nests bool     // it is an object
	// there says that the object has it, else the patch is not plain; was is how
	// it is written there then, nil for any way; keeps says that it stays.
	there, keeps bool
	was          []byte
}

// members reads the fields of a patch.
func (r *reader) members() []member {
	var all []member
	r.enter('{')
	var room [64]byte
	for n := 0; r.more(n, '}'); n++ {
		r.next()
		begun := r.at
		m := member{name: string(r.text(room[:]))}
		m.key = r.data[begun:r.at]
		if n == maxMembers || find(all, m.name) >= 0 || !r.take(':') {
			r.fail()
			return nil
		}
		switch c := r.next(); c {
		case '{':
			m.nests = true
			m.below = r.members()
		case 'n':
			r.word("null")
		default:
			m.value = r.raw()
			if c == '[' && bytes.Contains(m.value, []byte("null")) {
				r.fail()
			}
		}
		all = append(all, m)
	}
	return all
}

// find is the place of a member; -1 where there is none.
func find(in []member, name string) int {
	for i := range in {
		if in[i].name == name {
			return i
		}
	}
	return -1
}

// merge goes past an object and appends what it becomes.
func (r *reader) merge(to []byte, wanted []member) []byte {
	r.enter('{')
	to = append(to, '{')
	begun := len(to)
	var known uint64
	var room [64]byte
	for n := 0; r.more(n, '}'); n++ {
		r.next()
		from := r.at
		i := find(wanted, briefly(r.text(room[:])))
		if !r.take(':') {
			return to
		}
		if i < 0 {
			r.skip(r.next())
			to = append(comma(to, begun), r.data[from:r.at]...)
			continue
		}
		if known&(1<<i) != 0 {
			r.fail() // it is there twice
			return to
		}
		known |= 1 << i
		to = r.replace(to, begun, &wanted[i])
	}
	for i := range wanted {
		if known&(1<<i) != 0 {
			continue
		}
		if wanted[i].there {
			r.fail()
			return to
		}
		to = wanted[i].add(to, begun)
	}
	return append(to, '}')
}

// replace goes past a value and appends what a member of a patch makes of it.
func (r *reader) replace(to []byte, begun int, by *member) []byte {
	if by.nests && r.next() == '{' {
		to = append(append(comma(to, begun), by.key...), ':')
		return r.merge(to, by.below)
	}
	c := r.next()
	from := r.at
	r.skip(c)
	is := r.data[from:r.at]
	if by.nests && by.there || by.was != nil && !bytes.Equal(is, by.was) {
		r.fail()
		return to
	}
	if by.keeps {
		return append(append(append(comma(to, begun), by.key...), ':'), is...)
	}
	return by.add(to, begun)
}

// add appends a member, unless it is null; so do those below.
func (m *member) add(to []byte, begun int) []byte {
	switch {
	case m.nests:
		to = append(append(comma(to, begun), m.key...), ":{"...)
		below := len(to)
		for i := range m.below {
			to = m.below[i].add(to, below)
		}
		return append(to, '}')
	case m.value == nil:
		return to
	default:
		return append(append(append(comma(to, begun), m.key...), ':'), m.value...)
	}
}

// comma appends a comma where something follows the first item, which is at
// begun.
func comma(to []byte, begun int) []byte {
	if len(to) > begun {
		return append(to, ',')
	}
	return to
}
