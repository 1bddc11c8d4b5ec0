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

// YAML reads a JSON object as sigs.k8s.io/yaml does, for which it is YAML: all
// numbers are float64. JSON that YAML has other words for is not plain, such as
// pairs of escapes for one character, or anything beyond ASCII.
func YAML(data []byte) (map[string]any, bool) {
	for i, c := range data {
		if (c < ' ' || c > '~') && c != '\n' || c == '\\' && !escapes(data[i+1:]) {
			return nil, false
		}
	}
	r := reader{data: data, yaml: true}
	if r.next() != '{' {
		return nil, false
	}
	fields := r.fields()
	return fields, r.done()
}

// escapes says that what follows a backslash means the same to YAML.
func escapes(rest []byte) bool {
	pair := len(rest) > 1 && rest[0] == 'u' && (rest[1] == 'd' || rest[1] == 'D')
	return !pair && len(rest) > 0 && rest[0] != '/'
}

// maxKey bounds the name of a field: written down, with escapes, it is at most
// 1024 bytes in YAML.
const maxKey = 150

// isKey says that a name, which was just read, is one for YAML, too.
func (r *reader) isKey(name string) bool {
	if r.at >= len(r.data) || r.data[r.at] != ':' || len(name) > maxKey || name == "<<" {
		r.fail()
		return false
	}
	return true
}

func (r *reader) fields() map[string]any {
	fields := map[string]any{}
	r.enter('{')
	var room [64]byte
	for n := 0; r.more(n, '}'); n++ {
		name := string(r.text(room[:]))
		if r.yaml && !r.isKey(name) || !r.take(':') {
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
	if whole && !r.yaml {
		if n, err := strconv.ParseInt(briefly(text), 10, 64); err == nil {
			return n
		}
	}
	f, err := strconv.ParseFloat(briefly(text), 64)
	if err != nil || r.yaml && string(text) == "-0" {
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
