package onepass

import "strings"

// Patch applies a JSON patch (RFC 6902) to a JSON object. A plain one adds,
// replaces, removes and tests fields of objects, not items of lists, and no two
// of its operations are about the same field or one above the other, but for a
// test before its change. What it adds or tests is not null, and what it tests
// is in the object in the same words.
func Patch(object, patch []byte) ([]byte, bool) {
	p := reader{data: patch}
	wanted := p.operations()
	if !p.done() {
		return nil, false
	}
	r := reader{data: object}
	if r.next() != '{' {
		return nil, false
	}
	patched := r.merge(make([]byte, 0, len(object)+len(patch)), wanted)
	return patched, r.done()
}

// operations reads a JSON patch as what it makes of the fields of an object.
func (r *reader) operations() []member {
	var all []member
	r.enter('[')
	for n := 0; r.more(n, ']'); n++ {
		o, ok := r.operation()
		if !ok || n == maxMembers || !o.into(&all) {
			r.fail()
			return nil
		}
	}
	return all
}

// operation is one of a JSON patch.
type operation struct {
	op, path string
	value    []byte // as it is written; nil for none
}

// operation reads one that has nothing twice and nothing that is unknown.
func (r *reader) operation() (o operation, ok bool) {
	if r.next() != '{' {
		return o, false
	}
	r.enter('{')
	var room [64]byte
	seen := map[string]bool{}
	for n := 0; r.more(n, '}'); n++ {
		r.next()
		name := string(r.text(room[:]))
		if seen[name] || !r.take(':') {
			return o, false
		}
		seen[name] = true
		switch c := r.next(); {
		case name == "op" && c == '"':
			o.op = string(r.text(room[:]))
		case name == "path" && c == '"':
			o.path = string(r.text(room[:]))
		case name == "value" && c != 'n':
			o.value = r.raw()
		default:
			return o, false
		}
	}
	return o, !r.bad && strings.HasPrefix(o.path, "/")
}

var unescaped = strings.NewReplacer("~1", "/", "~0", "~")

// into adds the operation to those on the fields of an object.
func (o operation) into(all *[]member) bool {
	names := strings.Split(o.path[1:], "/")
	for i, name := range names {
		if name = unescaped.Replace(name); !isPlainName(name) {
			return false
		}
		last := i == len(names)-1
		at := find(*all, name)
		switch {
		case at < 0 && len(*all) == maxMembers:
			return false
		case at < 0:
			*all = append(*all, member{name: name, key: []byte(`"` + name + `"`), there: true, nests: !last, keeps: last})
			at = len(*all) - 1
		case last == (*all)[at].nests || last && !(*all)[at].keeps:
			return false // one is above the other, or it was changed before
		}
		m := &(*all)[at]
		if last {
			return o.on(m)
		}
		all = &m.below
	}
	return false
}

// on is what the operation makes of its field, which nothing has changed yet.
func (o operation) on(m *member) bool {
	switch {
	case o.op == "test" && o.value != nil && m.was == nil:
		m.was = o.value
		return true
	case o.op == "remove" && o.value == nil:
	case o.op == "replace" && o.value != nil:
	case o.op == "add" && o.value != nil:
		m.there = m.was != nil
	default:
		return false
	}
	m.keeps, m.value = false, o.value
	return true
}

// isPlainName says that a name is written in JSON as it is.
func isPlainName(name string) bool {
	return !strings.ContainsFunc(name, func(c rune) bool {
		return c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&'
	})
}
