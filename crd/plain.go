package crd

import (
	"math"
	"regexp"
	"slices"
	"unicode/utf8"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// newValidator makes the validator of a schema: upstream's, which is asked only
// about values that are not plainly right.
func newValidator(props *internal.JSONSchemaProps) (validation.SchemaValidator, error) {
	all, schema, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return plainly{all, newPlain(schema)}, nil
}

// plainly lets values pass that are plainly right. Upstream's validator reads
// the schema anew for each value, and again to find what was wrong before.
type plainly struct {
	validation.SchemaValidator
	plain *plain
}

// Validate implements validation.SchemaCreateValidator.
func (p plainly) Validate(value any, options ...validation.ValidationOption) *validate.Result {
	if p.plain.fits(value) {
		return &validate.Result{}
	}
	return p.SchemaValidator.Validate(value, options...)
}

// ValidateUpdate implements validation.SchemaValidator. What is right by itself
// needs no forgiveness for what was there before.
func (p plainly) ValidateUpdate(value, old any, options ...validation.ValidationOption) *validate.Result {
	if p.plain.fits(value) {
		return &validate.Result{}
	}
	return p.SchemaValidator.ValidateUpdate(value, old, options...)
}

// plain is a schema in a form that values are held against quickly. What fits
// has no errors by upstream's rules; what does not may have, or not: of rules
// that are seldom used, and of numbers at the edge of what they can be, it says
// nothing.
type plain struct {
	// unsure says that there is a rule that is not looked at here.
	unsure bool

	any                                          bool // of any type
	text, whole, number, truth, object, list, no bool // types that fit; no is null

	texts            []string // that are allowed; nil for all
	shortest         int
	longest          int
	pattern          *regexp.Regexp
	format           string
	low, high        float64
	fields           map[string]*plain
	others           *plain // fields that are not named; nil for any
	closed           bool   // there are no others
	required         []string
	fewest, most     int // fields
	items            *plain
	shorter, longer  int // lists
	allOf, anyOfThem []*plain
}

// exact is up to where whole numbers are the same in floating point.
const exact = 1 << 53

// newPlain reads a schema.
func newPlain(s *spec.Schema) *plain {
	p := &plain{
		any: len(s.Type) == 0, no: s.Nullable || len(s.Type) == 0, shortest: least(s.MinLength), longest: most(s.MaxLength),
		required: s.Required, fewest: least(s.MinProperties), most: most(s.MaxProperties), shorter: least(s.MinItems), longer: most(s.MaxItems),
		low: math.Inf(-1), high: math.Inf(1),
	}
	for _, t := range s.Type {
		switch t {
		case "string":
			p.text = true
		case "integer":
			p.whole = true
		case "number":
			p.whole, p.number = true, true
		case "boolean":
			p.truth = true
		case "object":
			p.object = true
		case "array":
			p.list = true
		default:
			p.unsure = true
		}
	}
	p.unsure = p.unsure || s.MultipleOf != nil || s.UniqueItems || len(s.OneOf) > 0 || s.Not != nil || len(s.Dependencies) > 0 ||
		len(s.PatternProperties) > 0 || s.AdditionalItems != nil || s.Ref.String() != "" || p.any && s.Format != ""
	p.limit(s)
	p.choose(s.Enum)
	p.formatted(s)
	p.nest(s)
	return p
}

func least(n *int64) int {
	if n == nil {
		return 0
	}
	return int(max(0, *n))
}

func most(n *int64) int {
	if n == nil {
		return math.MaxInt
	}
	return int(*n)
}

// limit reads the bounds of numbers. Bounds that may not be of the type
// themselves are left to upstream.
func (p *plain) limit(s *spec.Schema) {
	sure := func(bound float64) bool { return bound == math.Trunc(bound) && math.Abs(bound) <= math.MaxInt32 }
	if s.Minimum != nil {
		p.low = *s.Minimum
		p.unsure = p.unsure || s.ExclusiveMinimum || !sure(p.low)
	}
	if s.Maximum != nil {
		p.high = *s.Maximum
		p.unsure = p.unsure || s.ExclusiveMaximum || !sure(p.high)
	}
}

// choose reads the values that are allowed.
func (p *plain) choose(values []any) {
	for _, v := range values {
		text, ok := v.(string)
		p.texts = append(p.texts, text)
		p.unsure = p.unsure || !ok
	}
	if len(values) > 0 {
		p.no = false
		p.unsure = p.unsure || p.any || p.whole || p.truth || p.object || p.list
	}
}

// formatted reads what is said of texts, and of the size of numbers.
func (p *plain) formatted(s *spec.Schema) {
	if s.Pattern != "" {
		var err error
		p.pattern, err = regexp.Compile(s.Pattern)
		p.unsure = p.unsure || err != nil
	}
	switch {
	case s.Format == "":
	case s.Format == "int32" && len(s.Type) == 1 && p.whole && !p.number:
		p.low, p.high = max(p.low, math.MinInt32), min(p.high, math.MaxInt32)
	case s.Format == "int64" && len(s.Type) == 1 && p.whole && !p.number:
	case s.Format == "double" && len(s.Type) == 1 && p.number:
	case len(s.Type) == 1 && p.text:
		if strfmt.Default.ContainsName(s.Format) {
			p.format = s.Format
		}
	default:
		p.unsure = true
	}
}

// nest reads the schemas below.
func (p *plain) nest(s *spec.Schema) {
	if len(s.Properties) > 0 {
		p.fields = make(map[string]*plain, len(s.Properties))
		for name := range s.Properties {
			below := s.Properties[name]
			p.fields[name] = newPlain(&below)
		}
	}
	if more := s.AdditionalProperties; more != nil {
		p.closed = !more.Allows
		if more.Schema != nil && more.Allows {
			p.others = newPlain(more.Schema)
		}
	}
	if s.Items != nil {
		p.unsure = p.unsure || len(s.Items.Schemas) > 0
		if s.Items.Schema != nil {
			p.items = newPlain(s.Items.Schema)
		}
	}
	for i := range s.AllOf {
		p.allOf = append(p.allOf, newPlain(&s.AllOf[i]))
	}
	for i := range s.AnyOf {
		p.anyOfThem = append(p.anyOfThem, newPlain(&s.AnyOf[i]))
	}
}

// fits says that a value is plainly right.
func (p *plain) fits(value any) bool {
	if p.unsure || !p.fitsType(value) {
		return false
	}
	for _, all := range p.allOf {
		if !all.fits(value) {
			return false
		}
	}
	return len(p.anyOfThem) == 0 || slices.ContainsFunc(p.anyOfThem, func(one *plain) bool { return one.fits(value) })
}

func (p *plain) fitsType(value any) bool {
	switch v := value.(type) {
	case nil:
		return p.no
	case string:
		return (p.any || p.text) && p.fitsText(v)
	case int64:
		return (p.any || p.whole) && -exact < v && v < exact && p.low <= float64(v) && float64(v) <= p.high
	case float64:
		return (p.any || p.number) && p.low <= v && v <= p.high
	case bool:
		return p.any || p.truth
	case map[string]any:
		return (p.any || p.object) && p.fitsFields(v)
	case []any:
		return (p.any || p.list) && p.fitsList(v)
	default:
		return false
	}
}

func (p *plain) fitsText(v string) bool {
	if p.texts != nil && !slices.Contains(p.texts, v) {
		return false
	}
	if p.shortest > 0 || p.longest < math.MaxInt {
		if n := utf8.RuneCountInString(v); n < p.shortest || n > p.longest {
			return false
		}
	}
	return (p.pattern == nil || p.pattern.MatchString(v)) && (p.format == "" || strfmt.Default.Validates(p.format, v))
}

func (p *plain) fitsFields(v map[string]any) bool {
	if len(v) < p.fewest || len(v) > p.most {
		return false
	}
	for _, name := range p.required {
		if _, has := v[name]; !has {
			return false
		}
	}
	for name, value := range v {
		at, named := p.fields[name]
		if !named {
			if p.closed {
				return false
			}
			at = p.others
		}
		if at != nil && !at.fits(value) {
			return false
		}
	}
	return true
}

func (p *plain) fitsList(v []any) bool {
	if len(v) < p.shorter || len(v) > p.longer {
		return false
	}
	if p.items != nil {
		for _, item := range v {
			if !p.items.fits(item) {
				return false
			}
		}
	}
	return true
}
