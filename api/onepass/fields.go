package onepass

import "strconv"

// Fields reads a JSON object into plain values: int64 for whole numbers that
// fit, float64 for others.
func Fields(data []byte) (map[string]any, bool) {
	r := reader{data: data}
	if r.next() != '{' {
		return nil, false
	}
	fields := r.fields()
	return fields, r.done()
}

func (r *reader) fields() map[string]any {
	fields := map[string]any{}
	r.enter('{')
	var room [64]byte
	for n := 0; r.more(n, '}'); n++ {
		name := string(r.text(room[:]))
		if !r.take(':') {
			return nil
		}
		fields[name] = r.value()
		if len(fields) == n { // it was there before
			r.fail()
		}
	}
	return fields
}

func (r *reader) value() any {
	switch c := r.next(); c {
	case '{':
		return r.fields()
	case '[':
		return r.list()
	case '"':
		var room [64]byte
		return string(r.text(room[:]))
	case 't':
		return r.word("true")
	case 'f':
		return !r.word("false")
	case 'n':
		r.word("null")
		return nil
	}
	text, whole := r.number()
	if whole {
		if n, err := strconv.ParseInt(briefly(text), 10, 64); err == nil {
			return n
		}
	}
	f, err := strconv.ParseFloat(briefly(text), 64)
	if err != nil {
		r.fail()
	}
	return f
}

func (r *reader) list() []any {
	r.enter('[')
	list := []any{}
	for r.more(len(list), ']') {
		list = append(list, r.value())
	}
	return list
}
