package crd

import (
	"math"
	"math/rand/v2"
	"testing"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"
)

// plainSchemas are one for each rule that a schema may have, and some with
// several. Those that are marked are left to upstream whatever the value.
var plainSchemas = []struct {
	schema string
	unsure bool
}{
	{schema: `{type: string}`},
	{schema: `{type: string, minLength: 2, maxLength: 3}`},
	{schema: `{type: string, pattern: "^a.*$"}`},
	{schema: `{type: string, enum: [a, ab]}`},
	{schema: `{type: string, nullable: true, enum: [a, ab]}`},
	{schema: `{type: string, format: date-time}`},
	{schema: `{type: string, format: ipv4}`},
	{schema: `{type: string, format: k8s-short-name}`},
	{schema: `{type: string, format: of-our-own}`},
	{schema: `{type: integer}`},
	{schema: `{type: integer, format: int32}`},
	{schema: `{type: integer, format: int64, minimum: -2, maximum: 80}`},
	{schema: `{type: integer, minimum: 1, exclusiveMinimum: true}`, unsure: true},
	{schema: `{type: integer, minimum: 0.5}`, unsure: true},
	{schema: `{type: integer, maximum: 9007199254740993}`, unsure: true},
	{schema: `{type: integer, multipleOf: 2}`, unsure: true},
	{schema: `{type: integer, enum: [1, 80]}`, unsure: true},
	{schema: `{type: number, minimum: 0, maximum: 2}`},
	{schema: `{type: number, format: float}`, unsure: true},
	{schema: `{type: number, format: double}`},
	{schema: `{type: boolean}`},
	{schema: `{type: boolean, nullable: true}`},
	{schema: `{type: object}`},
	{schema: `{type: object, additionalProperties: {type: string}}`},
	{schema: `{type: object, additionalProperties: true, minProperties: 1, maxProperties: 1}`},
	{schema: `{type: object, additionalProperties: false, properties: {a: {type: string}}}`},
	{schema: `{type: object, required: [a], properties: {a: {type: string}, b: {type: integer}}}`},
	{schema: `{type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}`},
	{schema: `{type: object, properties: {a: {x-kubernetes-int-or-string: true}}}`},
	{schema: `{x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}`},
	{schema: `{x-kubernetes-int-or-string: true, allOf: [{anyOf: [{type: integer}, {type: string}]}, {pattern: "^a"}]}`},
	{schema: `{x-kubernetes-preserve-unknown-fields: true}`},
	{schema: `{type: object, oneOf: [{required: [a]}, {required: [b]}]}`, unsure: true},
	{schema: `{type: object, not: {required: [a]}}`, unsure: true},
	{schema: `{type: object, anyOf: [{required: [a]}, {required: [b]}]}`},
	{schema: `{type: array, items: {type: string}}`},
	{schema: `{type: array, minItems: 1, maxItems: 2, items: {type: integer, minimum: 0}}`},
	{schema: `{type: array, uniqueItems: true, items: {type: string}}`, unsure: true},
	{schema: `{type: array, nullable: true, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [a], items: {type: object, required: [a], properties: {a: {type: string}, b: {type: array, items: {type: number}}}}}`},
	{schema: `{type: object, properties: {a: {type: object, required: [b], properties: {b: {type: string, maxLength: 1}}}, b: {type: array, items: {type: object, additionalProperties: {type: integer}}}}}`},
}

func readSchema(t testing.TB, text string) *internal.JSONSchemaProps {
	t.Helper()
	v := &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{}}
	if err := yaml.UnmarshalStrict([]byte(text), v.OpenAPIV3Schema); err != nil {
		t.Fatal(err)
	}
	props, err := internalSchema(v)
	if err != nil {
		t.Fatal(err)
	}
	return props
}

// What plainly fits is right by upstream's rules, for an object that is new and
// for one that was there before, and much of what is right does fit.
func TestWhatFitsIsRight(t *testing.T) {
	const values = 3000
	for _, c := range plainSchemas {
		t.Run(c.schema, func(t *testing.T) {
			all, schema, err := validation.NewSchemaValidator(readSchema(t, c.schema))
			if err != nil {
				t.Fatal(err)
			}
			p, r := newPlain(schema), rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's values
			right, fits := 0, 0
			for range values {
				value, old := randomValue(r, 3), randomValue(r, 3)
				if r.IntN(4) == 0 {
					old = value
				}
				valid := all.Validate(value).IsValid()
				if valid {
					right++
				}
				if !p.fits(value) {
					continue
				}
				fits++
				if !valid {
					t.Fatalf("%#v fits, and is wrong: %v", value, all.Validate(value).Errors)
				}
				if result := all.ValidateUpdate(value, old, validation.WithRatcheting(nil)); !result.IsValid() {
					t.Fatalf("%#v fits, and is wrong after %#v: %v", value, old, result.Errors)
				}
			}
			// Upstream lets lists pass as texts that have a format, and 2.0 as a whole number.
			if c.unsure && fits > 0 || !c.unsure && fits <= right/5 {
				t.Errorf("of %d values that are right %d fit", right, fits)
			}
		})
	}
}

// randomValue is a value as JSON has it.
func randomValue(r *rand.Rand, depth int) any {
	texts := []any{"", "a", "ab", "abc", "ä", "é€", "10.0.0.1", "2024-01-02T03:04:05Z", "x y"}
	numbers := []any{int64(0), int64(1), int64(2), int64(80), int64(-3), int64(math.MaxInt32) + 1, 0.5, 2.0, -1.5}
	switch n := r.IntN(10); {
	case n < 3:
		return texts[r.IntN(len(texts))]
	case n < 6:
		return numbers[r.IntN(len(numbers))]
	case n == 6:
		return r.IntN(2) == 0
	case n == 7 && depth < 3:
		return nil
	case depth == 0:
		return "a"
	case n == 8:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, randomValue(r, depth-1))
		}
		return list
	default:
		fields := map[string]any{}
		for _, name := range []string{"a", "b", "c"} {
			if r.IntN(2) == 0 {
				fields[name] = randomValue(r, depth-1)
			}
		}
		return fields
	}
}
