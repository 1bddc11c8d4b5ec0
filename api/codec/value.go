package codec

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"setpoint.dev/setpoint/api/onepass"
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
		return onepass.AppendText(b, v), nil
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
			b = append(onepass.AppendText(b, name), ':')
			if b, err = appendValue(b, v[name]); err != nil {
				return nil, err
			}
		}
		return append(b, '}'), nil
	}
	return appendOther(b, v)
}

func appendOther(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}
