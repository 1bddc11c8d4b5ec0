package crds

import (
	"encoding/json"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// maker makes values that a schema takes: as little as it asks for, and what is
// chosen on top.
type maker struct {
	// alternative is which of several ways to be valid is taken.
	alternative int
	// depth is down to which level all properties are filled in.
	depth int
	// extra is an optional property of the spec to fill in.
	extra string
}

// maxDepth bounds values of schemas that ask for ever more.
const maxDepth = 12

// guesses are texts that many patterns and formats take.
var guesses = []string{
	"example", "a", "example.org", "1", "1s", "10m", "1Gi", "v1", "https://example.org", "http://example.org/a", "10.0.0.1", "10.0.0.0/24",
	"a/b", "example.org/a", "a:1", "/a", "A", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "sha256:" + strings.Repeat("0", 64), "2024-01-01T00:00:00Z", "*",
}

var formats = map[string]string{
	"date-time": "2024-01-01T00:00:00Z", "date": "2024-01-01", "uri": "https://example.org", "ipv4": "10.0.0.1", "ipv6": "::1", "ip": "10.0.0.1",
	"cidr": "10.0.0.0/24", "byte": "YQ==", "uuid": "123e4567-e89b-12d3-a456-426614174000", "duration": "1s", "hostname": "example.org", "email": "a@example.org",
}

// value makes a value; ok is false when it knows none.
func (m maker) value(s *apiextensions.JSONSchemaProps, level int) (v any, ok bool) {
	if level > maxDepth {
		return nil, false
	}
	if len(s.Enum) > 0 {
		return decoded(s.Enum[min(m.alternative, len(s.Enum)-1)].Raw)
	}
	if s.Default != nil {
		return decoded(s.Default.Raw)
	}
	kind := s.Type
	if s.XIntOrString {
		kind = "integer"
		if s.Pattern != "" {
			kind = "string"
		}
	}
	switch kind {
	case "boolean":
		return m.alternative%2 == 0, true
	case "integer", "number":
		return number(s), true
	case "string":
		return text(s)
	case "array":
		return m.list(s, level)
	}
	return m.object(s, level)
}

func decoded(raw []byte) (v any, ok bool) {
	return v, json.Unmarshal(raw, &v) == nil
}

func number(s *apiextensions.JSONSchemaProps) any {
	n := int64(1)
	if s.Minimum != nil && float64(n) <= *s.Minimum {
		n = int64(*s.Minimum)
		if s.ExclusiveMinimum {
			n++
		}
	}
	if s.Maximum != nil && float64(n) > *s.Maximum {
		n = int64(*s.Maximum)
	}
	if s.MultipleOf != nil && *s.MultipleOf >= 1 {
		step := int64(*s.MultipleOf)
		n = (n + step - 1) / step * step
	}
	return n
}

func text(s *apiextensions.JSONSchemaProps) (any, bool) {
	fits := func(t string) bool {
		if s.MinLength != nil && int64(len(t)) < *s.MinLength || s.MaxLength != nil && int64(len(t)) > *s.MaxLength {
			return false
		}
		p, err := regexp.Compile(s.Pattern)
		return err == nil && p.MatchString(t)
	}
	tries := guesses
	if f := formats[s.Format]; f != "" {
		tries = append([]string{f}, tries...)
	}
	if s.MinLength != nil && *s.MinLength < 1<<10 {
		tries = append(slices.Clone(tries), strings.Repeat("a", int(*s.MinLength)))
	}
	if r, err := syntax.Parse(s.Pattern, syntax.Perl); err == nil {
		tries = append(slices.Clone(tries), shortest(r))
	}
	i := slices.IndexFunc(tries, fits)
	if i < 0 {
		return nil, false
	}
	return tries[i], true
}

// shortest is a short text that a pattern matches, most of the time.
func shortest(r *syntax.Regexp) string {
	switch r.Op {
	case syntax.OpLiteral:
		return string(r.Rune)
	case syntax.OpCharClass:
		if len(r.Rune) > 0 {
			return string(r.Rune[len(r.Rune)-1])
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return "a"
	case syntax.OpCapture, syntax.OpPlus:
		return shortest(r.Sub[0])
	case syntax.OpRepeat:
		return strings.Repeat(shortest(r.Sub[0]), r.Min)
	case syntax.OpAlternate:
		return shortest(r.Sub[0])
	case syntax.OpConcat:
		var b strings.Builder
		for _, sub := range r.Sub {
			b.WriteString(shortest(sub))
		}
		return b.String()
	}
	return ""
}

func (m maker) list(s *apiextensions.JSONSchemaProps, level int) (any, bool) {
	n := 0
	if s.MinItems != nil {
		n = int(min(*s.MinItems, 4))
	}
	if n == 0 && level <= m.depth {
		n = 1
	}
	items := []any{}
	for range n {
		if s.Items == nil || s.Items.Schema == nil {
			return nil, false
		}
		v, ok := m.value(s.Items.Schema, level+1)
		if !ok {
			return nil, false
		}
		items = append(items, v)
	}
	return items, true
}

func (m maker) object(s *apiextensions.JSONSchemaProps, level int) (any, bool) {
	obj := map[string]any{}
	want := slices.Clone(s.Required)
	for _, choice := range [][]apiextensions.JSONSchemaProps{s.OneOf, s.AnyOf} {
		if len(choice) > 0 {
			want = append(want, choice[m.alternative%len(choice)].Required...)
		}
	}
	for _, all := range s.AllOf {
		want = append(want, all.Required...)
		for _, choice := range [][]apiextensions.JSONSchemaProps{all.OneOf, all.AnyOf} {
			if len(choice) > 0 {
				want = append(want, choice[m.alternative%len(choice)].Required...)
			}
		}
	}
	names := slices.Sorted(maps.Keys(s.Properties))
	if level <= m.depth {
		want = append(want, names...)
	}
	if level == 1 && m.extra != "" {
		want = append(want, m.extra)
	}
	if s.MinProperties != nil && len(want) < int(*s.MinProperties) && len(names) > 0 {
		start := m.alternative % len(names)
		want = append(want, names[start:min(len(names), start+int(*s.MinProperties))]...)
	}
	for _, name := range want {
		p, known := s.Properties[name]
		if !known {
			if s.AdditionalProperties == nil || s.AdditionalProperties.Schema == nil {
				continue
			}
			p = *s.AdditionalProperties.Schema
		}
		v, ok := m.value(&p, level+1)
		if ok {
			obj[name] = v
		} else if slices.Contains(s.Required, name) {
			return nil, false
		}
	}
	if len(obj) == 0 && s.MinProperties != nil && *s.MinProperties > 0 && s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		v, ok := m.value(s.AdditionalProperties.Schema, level+1)
		if !ok {
			return nil, false
		}
		obj["example"] = v
	}
	return obj, true
}

// Bounds of what is tried for one kind.
const (
	maxAlternatives = 6
	maxExtras       = 60
)

// examples are objects that a version may take, the plainest first.
func examples(v *apiextensions.CustomResourceDefinitionVersion) []map[string]any {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return []map[string]any{{}}
	}
	var all []map[string]any
	add := func(m maker, withSpec bool) {
		s := v.Schema.OpenAPIV3Schema.DeepCopy()
		for _, name := range []string{"apiVersion", "kind", "metadata", "status"} {
			delete(s.Properties, name)
		}
		s.Required = slices.DeleteFunc(s.Required, func(name string) bool { return name == "metadata" || name == "status" })
		if _, has := s.Properties["spec"]; has && withSpec && !slices.Contains(s.Required, "spec") {
			s.Required = append(s.Required, "spec")
		}
		if obj, ok := m.value(s, 0); ok {
			if obj, ok := obj.(map[string]any); ok {
				all = append(all, obj)
			}
		}
	}
	add(maker{depth: -1}, false)
	for i := range maxAlternatives {
		add(maker{depth: -1, alternative: i}, true)
	}
	for i := range maxAlternatives {
		add(maker{depth: 1, alternative: i}, true)
		add(maker{depth: 2, alternative: i}, true)
	}
	spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
	for i, name := range slices.Sorted(maps.Keys(spec.Properties)) {
		if i == maxExtras {
			break
		}
		add(maker{depth: -1, extra: name}, true)
		add(maker{depth: 2, extra: name, alternative: 1}, true)
	}
	return all
}
