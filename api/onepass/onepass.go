// Package onepass reads and writes the JSON of objects in one pass.
//
// In comes JSON; out goes what sigs.k8s.io/json makes of it, in a third of the
// time: a type is looked at once, and text is looked at once. And in comes an object,
// and out goes what encoding/json writes. What is not plain
// is not read here: JSON with mistakes, with fields that the type does not
// know, or with fields that are there twice. Then, and for types that ask for
// more than objects of the API do, the answer is false, and others read or write it and
// say what is wrong in the words that clients know. So what is read here is
// good for strict readers, too.
//
// Nothing that is read refers to the bytes that it was read from.
package onepass

import (
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// maxDepth is how deep what is read may be nested.
const maxDepth = 500

// reader is at a place in some JSON. Once bad is set, nothing that was read
// counts.
type reader struct {
	data  []byte
	at    int
	depth int
	yaml  bool // it is read as YAML
	bad   bool
}

// fail says that the JSON is not plain.
func (r *reader) fail() { r.bad = true }

// next skips white space and returns the byte that follows, 0 at the end.
func (r *reader) next() byte {
	for r.at < len(r.data) {
		c := r.data[r.at]
		if c > ' ' || c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		r.at++
	}
	return 0
}

// take goes past a byte that has to be there.
func (r *reader) take(c byte) bool {
	if r.next() != c {
		r.fail()
		return false
	}
	r.at++
	return true
}

// enter begins an object or a list.
func (r *reader) enter(open byte) {
	if r.depth++; r.depth > maxDepth {
		r.fail()
		return
	}
	r.take(open)
}

// more says whether another item follows, and goes to it. n is how many there
// were.
func (r *reader) more(n int, end byte) bool {
	if r.bad {
		return false
	}
	switch c := r.next(); {
	case c == end:
		r.at++
		r.depth--
		return false
	case n == 0:
		return true
	case c == ',':
		r.at++
		return true
	}
	r.fail()
	return false
}

// done says that all was read and that it was plain.
func (r *reader) done() bool { return !r.bad && r.next() == 0 && r.at == len(r.data) }

// word goes past one of the words that JSON has.
func (r *reader) word(w string) bool {
	if end := r.at + len(w); end <= len(r.data) && string(r.data[r.at:end]) == w {
		r.at = end
		return true
	}
	r.fail()
	return false
}

// isNull goes past a null, if there is one.
func (r *reader) isNull() bool { return r.next() == 'n' && r.word("null") }

// text reads a text. It is good until the next one is read: it may be a part of
// what is read, or of room.
func (r *reader) text(room []byte) []byte {
	if !r.take('"') {
		return nil
	}
	begun := r.at
	ascii := true
	for r.at < len(r.data) {
		switch c := r.data[r.at]; {
		case c == '"':
			text := r.data[begun:r.at]
			r.at++
			if !ascii && !utf8.Valid(text) {
				r.fail()
			}
			return text
		case c == '\\':
			return r.escaped(append(room[:0], r.data[begun:r.at]...))
		case c < ' ':
			r.fail()
			return nil
		case c >= utf8.RuneSelf:
			ascii = false
		}
		r.at++
	}
	r.fail()
	return nil
}

// escaped reads the rest of a text that has escapes.
func (r *reader) escaped(text []byte) []byte {
	for r.at < len(r.data) {
		c := r.data[r.at]
		r.at++
		switch {
		case c == '"':
			if !utf8.Valid(text) {
				r.fail()
			}
			return text
		case c < ' ':
			r.fail()
			return nil
		case c != '\\':
			text = append(text, c)
		case r.at == len(r.data):
			r.fail()
			return nil
		default:
			c := r.data[r.at]
			r.at++
			switch c {
			case '"', '\\', '/':
				text = append(text, c)
			case 'b':
				text = append(text, '\b')
			case 'f':
				text = append(text, '\f')
			case 'n':
				text = append(text, '\n')
			case 'r':
				text = append(text, '\r')
			case 't':
				text = append(text, '\t')
			case 'u':
				text = utf8.AppendRune(text, r.rune())
			default:
				r.fail()
			}
			if r.bad {
				return nil
			}
		}
	}
	r.fail()
	return nil
}

// rune reads what follows \u. Halves of pairs that stand alone are not plain.
func (r *reader) rune() rune {
	c := r.hex()
	if !utf16.IsSurrogate(c) {
		return c
	}
	if r.at+2 > len(r.data) || r.data[r.at] != '\\' || r.data[r.at+1] != 'u' {
		r.fail()
		return 0
	}
	r.at += 2
	both := utf16.DecodeRune(c, r.hex())
	if both == utf8.RuneError {
		r.fail()
	}
	return both
}

func (r *reader) hex() rune {
	const digits = 4
	if r.at+digits > len(r.data) {
		r.fail()
		return 0
	}
	var v rune
	for _, c := range r.data[r.at : r.at+digits] {
		v <<= 4
		switch {
		case '0' <= c && c <= '9':
			v |= rune(c - '0')
		case 'a' <= c && c <= 'f':
			v |= rune(c-'a') + 10
		case 'A' <= c && c <= 'F':
			v |= rune(c-'A') + 10
		default:
			r.fail()
			return 0
		}
	}
	r.at += digits
	return v
}

// number reads a number's text, and whether it is a whole one.
func (r *reader) number() (text []byte, whole bool) {
	r.next()
	begun := r.at
	if r.at < len(r.data) && r.data[r.at] == '-' {
		r.at++
	}
	switch {
	case r.at < len(r.data) && r.data[r.at] == '0':
		r.at++
	case !r.digits():
		return nil, false
	}
	whole = true
	if r.at < len(r.data) && r.data[r.at] == '.' {
		r.at++
		if whole = false; !r.digits() {
			return nil, false
		}
	}
	if r.at < len(r.data) && (r.data[r.at] == 'e' || r.data[r.at] == 'E') {
		r.at++
		if r.at < len(r.data) && (r.data[r.at] == '+' || r.data[r.at] == '-') {
			r.at++
		}
		if whole = false; !r.digits() {
			return nil, false
		}
	}
	return r.data[begun:r.at], whole
}

// digits goes past at least one digit.
func (r *reader) digits() bool {
	begun := r.at
	for r.at < len(r.data) && '0' <= r.data[r.at] && r.data[r.at] <= '9' {
		r.at++
	}
	if r.at == begun {
		r.fail()
		return false
	}
	return true
}

// raw goes past a value and returns its text.
func (r *reader) raw() []byte {
	c := r.next()
	begun := r.at
	r.skip(c)
	if r.bad {
		return nil
	}
	return r.data[begun:r.at]
}

// skip goes past a value that begins with c.
func (r *reader) skip(c byte) {
	switch c {
	case '{':
		r.enter('{')
		for n := 0; r.more(n, '}'); n++ {
			r.text(nil)
			if r.take(':') {
				r.skip(r.next())
			}
		}
	case '[':
		r.enter('[')
		for n := 0; r.more(n, ']'); n++ {
			r.skip(r.next())
		}
	case '"':
		r.text(nil)
	case 't':
		r.word("true")
	case 'f':
		r.word("false")
	case 'n':
		r.word("null")
	default:
		r.number()
	}
}

// briefly is a text of bytes that stay as they are for as long as it is used.
func briefly(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
