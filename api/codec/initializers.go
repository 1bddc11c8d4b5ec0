package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/initializers"
)

// carrier is a serializer of typed objects that knows of metadata.initializers,
// of which their types do not: it moves the field from the bytes to where
// objects carry it, and back. Bytes that do not speak of it, and objects that
// carry none, pass as they are.
type carrier struct {
	runtime.Serializer
	carriage
	strict bool
}

// carriage is how a representation has the field.
type carriage interface {
	// open looks at a body. It returns the body as it is to be read, and what
	// finds the field, as JSON, in the metadata at a place; nil when the body
	// cannot have it.
	open(body []byte) (plain []byte, find func(initializers.Place) ([]byte, error), err error)
	// put writes the field into the bytes of an object that has none.
	put(b []byte, at []initializers.Spot) ([]byte, error)
}

// carrying makes the serializers of a media type know of initializers.
func carrying(info runtime.SerializerInfo) runtime.SerializerInfo {
	wrap := func(s runtime.Serializer, c carriage, strict bool) runtime.Serializer {
		if s == nil {
			return nil
		}
		return &carrier{s, c, strict}
	}
	var c carriage
	switch info.MediaType {
	case JSON:
		c = jsonCarriage{}
		info.PrettySerializer = wrap(info.PrettySerializer, prettyCarriage{}, false)
	case YAML:
		c = yamlCarriage{}
	case Protobuf:
		c = protobufCarriage{}
	case CBOR:
		c = cborCarriage{}
	default:
		return info
	}
	info.Serializer = wrap(info.Serializer, c, false)
	info.StrictSerializer = wrap(info.StrictSerializer, c, true)
	return info
}

// Decode implements runtime.Decoder.
func (c *carrier) Decode(body []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	plain, find, err := c.open(body)
	if err != nil || find == nil {
		return c.Serializer.Decode(body, kind, into)
	}
	obj, got, err := c.Serializer.Decode(plain, kind, into)
	if obj == nil {
		return obj, got, err
	}
	var wrong []error
	if err != nil {
		strict, is := runtime.AsStrictDecodingError(err)
		if !is {
			return obj, got, err
		}
		wrong = strict.Errors()
	}
	for _, p := range initializers.Places(obj) {
		p.Put(obj, "") // nobody sends the annotation
		text, err := find(p)
		if err != nil {
			return nil, got, err
		}
		if text == nil {
			continue
		}
		if wrong, err = c.carry(obj, p, text, wrong); err != nil {
			return nil, got, err
		}
	}
	if len(wrong) > 0 {
		return obj, got, runtime.NewStrictDecodingError(wrong)
	}
	return obj, got, nil
}

// carry puts the field where an object carries it. The type's decoder has found
// it to be unknown, which it is not; what is unknown in it is.
func (c *carrier) carry(obj runtime.Object, p initializers.Place, text []byte, wrong []error) ([]error, error) {
	metadata := strings.Join(p.Path, ".")
	not := fmt.Sprintf("unknown field %q", metadata+".initializers")
	wrong = slices.DeleteFunc(wrong, func(e error) bool { return e.Error() == not })
	if string(text) == "null" {
		if len(p.Path) == 1 { // in a template it says nothing
			p.Put(obj, "null")
		}
		return wrong, nil
	}
	i, unknown, err := initializers.Read(text)
	if err != nil {
		return wrong, fmt.Errorf("%s.initializers: %w", metadata, err)
	}
	if c.strict {
		for _, e := range unknown {
			wrong = append(wrong, initializers.Within(e, metadata))
		}
	}
	b, err := json.Marshal(i)
	p.Put(obj, string(b))
	return wrong, err
}

// Encode implements runtime.Encoder.
func (c *carrier) Encode(obj runtime.Object, w io.Writer) error {
	bare, at := bared(obj)
	if at == nil {
		return c.Serializer.Encode(obj, w)
	}
	var b bytes.Buffer
	if err := c.Serializer.Encode(bare, &b); err != nil {
		return err
	}
	full, err := c.put(b.Bytes(), at)
	if err != nil {
		return err
	}
	_, err = w.Write(full)
	return err
}

// bared is an object without the annotations that carry initializers, and where
// they were. One that has them is copied, it may be shared.
func bared(obj runtime.Object) (runtime.Object, []initializers.Spot) {
	if initializers.Spots(obj) == nil {
		return obj, nil
	}
	bare := obj.DeepCopyObject()
	at := initializers.Spots(bare)
	for i := range at {
		at[i].Clean()
	}
	return bare, at
}

// word is what a body has to have in it that has the field or the annotation.
var word = []byte("initializers")

// jsonCarriage has the field where it always was.
type jsonCarriage struct{}

func (jsonCarriage) open(body []byte) ([]byte, func(initializers.Place) ([]byte, error), error) {
	if !mayCarry(body) {
		return body, nil, nil
	}
	return body, findJSON(body), nil
}

// mayCarry says that JSON may have the field, or the annotation, in it: letters
// may be written as \u0069.
func mayCarry(body []byte) bool {
	return bytes.Contains(body, word) || bytes.Contains(body, []byte(`\u006`)) || bytes.Contains(body, []byte(`\u007`))
}

// findJSON finds the field in JSON. What is not of the form that leads to it
// does not have it; that the form is wrong is the type's decoder to say.
func findJSON(body []byte) func(initializers.Place) ([]byte, error) {
	return func(p initializers.Place) ([]byte, error) {
		at := json.RawMessage(body)
		for _, name := range append(slices.Clip(p.Path), string(word)) {
			var fields map[string]json.RawMessage
			if json.Unmarshal(at, &fields) != nil {
				return nil, nil //nolint:nilerr // it is another's to say
			}
			at = fields[name]
		}
		return at, nil
	}
}

func (jsonCarriage) put(b []byte, at []initializers.Spot) ([]byte, error) {
	for _, spot := range at {
		end, err := endOf(b, spot.Path)
		if err != nil {
			return nil, err
		}
		field := append([]byte(`,"initializers":`), spot.Text...)
		if b[end-1] == '{' {
			field = field[1:]
		}
		b = slices.Insert(b, end, field...)
	}
	return b, nil
}

// endOf is where the object at a path ends, in JSON without spaces.
func endOf(b []byte, path []any) (int, error) {
	i := 0
	for _, step := range path {
		var ok bool
		if i, ok = stepInto(b, i, step); !ok {
			return 0, fmt.Errorf("encoded object has no %v", path)
		}
	}
	return skipValue(b, i) - 1, nil
}

// stepInto is where the value of a name, or the one of an index, begins within
// the value at i.
func stepInto(b []byte, i int, step any) (int, bool) {
	name, named := step.(string)
	for n := 0; i+1 < len(b) && b[i] != '}' && b[i] != ']'; n++ {
		i++ // a bracket, or a comma
		if !named {
			if n == step {
				return i, true
			}
			i = skipValue(b, i)
			continue
		}
		end := skipValue(b, i)
		is := string(b[i:end]) == `"`+name+`"` // ours need no quoting
		i = end + 1
		if is {
			return i, true
		}
		i = skipValue(b, i)
	}
	return 0, false
}

// skipValue is the end of the value that begins at i.
func skipValue(b []byte, i int) int {
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',', ':':
		default: // a number or a word
			for i+1 < len(b) && !bytes.ContainsRune([]byte(",:]}"), rune(b[i+1])) {
				i++
			}
		}
		if i++; depth == 0 {
			break
		}
	}
	return min(i, len(b))
}

// prettyCarriage is JSON with spaces.
type prettyCarriage struct{ jsonCarriage }

func (c prettyCarriage) put(b []byte, at []initializers.Spot) ([]byte, error) {
	var plain bytes.Buffer
	if err := json.Compact(&plain, b); err != nil {
		return nil, err
	}
	full, err := c.jsonCarriage.put(plain.Bytes(), at)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, full, "", "  ")
	return out.Bytes(), err
}

// yamlCarriage is JSON in another form.
type yamlCarriage struct{}

func (yamlCarriage) open(body []byte) ([]byte, func(initializers.Place) ([]byte, error), error) {
	if !bytes.Contains(body, word) && !bytes.ContainsRune(body, '\\') {
		return body, nil, nil
	}
	text, err := yaml.YAMLToJSON(body)
	if err != nil {
		return nil, nil, err
	}
	return body, findJSON(text), nil
}

func (yamlCarriage) put(b []byte, at []initializers.Spot) ([]byte, error) {
	text, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	if text, err = (jsonCarriage{}).put(text, at); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(text)
}

// protobufCarriage has the field in its old number.
type protobufCarriage struct{}

func (protobufCarriage) open(body []byte) ([]byte, func(initializers.Place) ([]byte, error), error) {
	message, ok := bytes.CutPrefix(body, []byte(protobufMagic))
	if !ok {
		return body, nil, nil
	}
	return body, func(p initializers.Place) ([]byte, error) {
		at := lastField(message, 2)
		for _, n := range p.Numbers {
			at = lastField(at, n)
		}
		field := lastField(at, initializers.Number)
		if field == nil {
			return nil, nil
		}
		i := &initializers.Initializers{}
		if err := i.Unmarshal(field); err != nil {
			return nil, err
		}
		return json.Marshal(i)
	}, nil
}

// lastField is the last field of a number in a message, which is the one that
// counts; nil when there is none. It is never nil for one that is empty.
func lastField(message []byte, number int32) []byte {
	var found []byte
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		length := protowire.ConsumeFieldValue(n, kind, message[size:])
		if length < 0 {
			return nil
		}
		if int32(n) == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[size:])
			found = slices.Clip(value)
		}
		message = message[size+length:]
	}
	return found
}

func (protobufCarriage) put(b []byte, at []initializers.Spot) ([]byte, error) {
	message, ok := bytes.CutPrefix(b, []byte(protobufMagic))
	if !ok {
		return nil, fmt.Errorf("not an envelope")
	}
	inside := []initializers.Hop{{Number: 2}}
	for _, spot := range at {
		var err error
		if message, err = putField(message, slices.Concat(inside, spot.Hops), spot.Text); err != nil {
			return nil, err
		}
	}
	return append([]byte(protobufMagic), message...), nil
}

// putField writes the field into the metadata that hops lead to.
func putField(message []byte, hops []initializers.Hop, text string) ([]byte, error) {
	if len(hops) == 0 {
		return insertField(message, text)
	}
	hop, rest, after := hops[0], message, 0
	for len(rest) > 0 {
		n, kind, size := protowire.ConsumeTag(rest)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		length := protowire.ConsumeFieldValue(n, kind, rest[size:])
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		if int32(n) == hop.Number && kind == protowire.BytesType {
			if after == hop.After {
				value, _ := protowire.ConsumeBytes(rest[size:])
				inner, err := putField(value, hops[1:], text)
				if err != nil {
					return nil, err
				}
				head := message[:len(message)-len(rest)+size]
				return slices.Concat(protowire.AppendBytes(slices.Clip(head), inner), rest[size+length:]), nil
			}
			after++
		}
		rest = rest[size+length:]
	}
	return nil, fmt.Errorf("encoded object has no field %d", hop.Number)
}

// insertField writes the field into metadata, in the order of the numbers.
func insertField(metadata []byte, text string) ([]byte, error) {
	i, _, err := initializers.Read([]byte(text))
	if err != nil {
		return nil, err
	}
	value, err := i.Marshal()
	if err != nil {
		return nil, err
	}
	at := len(metadata)
	for rest := metadata; len(rest) > 0; {
		n, _, size := protowire.ConsumeField(rest)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		if n > initializers.Number {
			at = len(metadata) - len(rest)
			break
		}
		rest = rest[size:]
	}
	field := protowire.AppendBytes(protowire.AppendTag(nil, initializers.Number, protowire.BytesType), value)
	return slices.Concat(metadata[:at], field, metadata[at:]), nil
}

// cborCarriage has maps that are read and written anew: its decoder says of one
// unknown field at most, and not which.
type cborCarriage struct{}

func (cborCarriage) open(body []byte) ([]byte, func(initializers.Place) ([]byte, error), error) {
	if !bytes.Contains(body, word) {
		return body, nil, nil
	}
	var fields map[string]any
	if err := direct.Unmarshal(body, &fields); err != nil {
		return nil, nil, err
	}
	found := map[string]any{}
	cutInitializers(fields, nil, found)
	plain, err := direct.Marshal(fields)
	if err != nil {
		return nil, nil, err
	}
	return append([]byte(cborMagic), plain...), func(p initializers.Place) ([]byte, error) {
		value, there := found[strings.Join(p.Path, ".")]
		if !there {
			return nil, nil
		}
		return json.Marshal(value)
	}, nil
}

// cutInitializers takes the field out of everything called metadata, and keeps
// it by its path.
func cutInitializers(fields map[string]any, path []string, found map[string]any) {
	for name, value := range fields {
		inner, ok := value.(map[string]any)
		if !ok {
			continue
		}
		at := append(slices.Clip(path), name)
		if field, there := inner[string(word)]; there && name == "metadata" {
			found[strings.Join(at, ".")] = field
			delete(inner, string(word))
		}
		cutInitializers(inner, at, found)
	}
}

func (cborCarriage) put(b []byte, at []initializers.Spot) ([]byte, error) {
	var all any
	if err := direct.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for _, spot := range at {
		var field any
		if err := json.Unmarshal([]byte(spot.Text), &field); err != nil {
			return nil, err
		}
		if metadata, ok := valueAt(all, spot.Path).(map[string]any); ok {
			metadata[string(word)] = field
		}
	}
	full, err := direct.Marshal(all)
	if bytes.HasPrefix(b, []byte(cborMagic)) {
		full = append([]byte(cborMagic), full...)
	}
	return full, err
}

// valueAt is what a path leads to; nil when it leads nowhere.
func valueAt(v any, path []any) any {
	for _, step := range path {
		switch in := v.(type) {
		case map[string]any:
			name, _ := step.(string)
			v = in[name]
		case []any:
			n, ok := step.(int)
			if !ok || n >= len(in) {
				return nil
			}
			v = in[n]
		default:
			return nil
		}
	}
	return v
}
