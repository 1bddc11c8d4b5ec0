package codec

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

// appendValue appends the JSON of a value of an object without a Go type. It is
// what json.Marshal writes, without looking at each value's type by reflection.
func appendValue(b []byte, v any) ([]byte, error) {
	var err error
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case int64:
		return strconv.AppendInt(b, v, 10), nil
	case string:
		return appendText(b, v)
	case []any:
		if v == nil {
			return append(b, "null"...), nil
		}
		b = append(b, '[')
		for i, item := range v {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, item); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	case map[string]any:
		if v == nil {
			return append(b, "null"...), nil
		}
		b = append(b, '{')
		var room [16]string
		names := slices.AppendSeq(room[:0], maps.Keys(v))
		slices.Sort(names)
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendText(b, name); err != nil {
				return nil, err
			}
			if b, err = appendValue(append(b, ':'), v[name]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return appendOther(b, v)
}

// appendText appends a text. Most have nothing in them that is written in
// another way.
func appendText(b []byte, s string) ([]byte, error) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return appendOther(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"'), nil
}

func appendOther(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}
