package onepass_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"

	"setpoint.dev/setpoint/api/onepass"
)

// written writes an object in both ways. It says whether this package could.
func written(t *testing.T, obj any) bool {
	t.Helper()
	got, ok := onepass.Append([]byte("before"), obj)
	want, err := json.Marshal(obj)
	if !ok {
		return false
	}
	if err != nil {
		t.Fatalf("written, but is wrong: %v\n%s", err, got)
	}
	if string(got) != "before"+string(want) {
		t.Fatalf("%T is written as\n%s\nwant\n%s", obj, got, want)
	}
	return true
}

// Objects of every built-in kind, filled at random, are written as encoding/json
// writes them.
func TestObjectsAreWritten(t *testing.T) {
	const times = 5
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(2), serializer.NewCodecFactory(scheme.Scheme))
	kinds, objects, done := 0, 0, 0
	for kind, typ := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == "__internal" || kind.Kind == "WatchEvent" {
			continue
		}
		kinds++
		written(t, reflect.New(typ).Interface())
		for range times {
			obj := reflect.New(typ).Interface()
			fill.Fill(obj)
			if _, err := json.Marshal(obj); err != nil {
				continue // such as a quantity that there is not
			}
			if written(t, obj) {
				done++
			} else {
				t.Logf("not written: %v", kind)
			}
			objects++
		}
	}
	t.Logf("%d objects of %d kinds: %d written", objects, kinds, done)
	if objects < kinds || done < objects {
		t.Error("too few")
	}
}

// byPointer is written by a method of its pointer, and only where it has one.
type byPointer struct{ N int }

func (*byPointer) MarshalJSON() ([]byte, error) { return []byte(`"by <pointer>"`), nil }

// loose is written with white space in it.
type loose struct{}

func (loose) MarshalJSON() ([]byte, error) { return []byte("{ \"a\" : [ 1 ,\n2 ] }"), nil }

// broken is not written as JSON.
type broken struct{}

func (broken) MarshalJSON() ([]byte, error) { return []byte(`{"a":`), nil }

// asText is written as the text that it makes of itself.
type asText struct{}

func (asText) MarshalText() ([]byte, error) { return []byte("text"), nil }

// blank says by itself when it is zero.
type blank struct{ N int }

func (b *blank) IsZero() bool { return b == nil || b.N == 7 }

func TestWritten(t *testing.T) {
	type all struct {
		Text    string            `json:"text"`
		Quoted  string            `json:"<a&b>"`
		Small   int8              `json:"small"`
		Middle  uint16            `json:"middle,omitempty"`
		Number  float64           `json:"number,omitempty"`
		Bytes   []byte            `json:"bytes"`
		Pointer *int64            `json:"pointer"`
		Texts   map[string]string `json:"texts"`
		Lists   [][]string        `json:"lists"`
		Deep    map[string][]bool `json:"deep,omitempty"`
		Without int
		Left    string `json:"-"`
	}
	n := int64(-5)
	deep := []corev1.Pod{{}}
	type list struct {
		Next *list `json:"next,omitempty"`
	}
	var chain *list
	for range 1000 {
		chain = &list{chain}
	}
	for _, test := range []struct {
		name string
		obj  any
		ok   bool
	}{
		{"nothing", &all{}, true},
		{"empty", &all{Bytes: []byte{}, Texts: map[string]string{}, Lists: [][]string{}, Deep: map[string][]bool{}}, true},
		{"everything", &all{
			Text: "\x00\b\f\n\r\t\x1f\"\\/<>&\x7fé\u2028\u2029😀\xff\xc3", Small: -128, Middle: 65535, Number: 1e21, Bytes: []byte("abcd"), Pointer: &n,
			Texts: map[string]string{"b": "<", "a": "", "\xff": "é"}, Lists: [][]string{nil, {}, {"x"}}, Deep: map[string][]bool{"x": {true, false}, "nil": nil}, Left: "l",
		}, true},
		{"more names than usual", &corev1.ConfigMap{Data: many(100)}, true},
		{"quantities", &corev1.Container{Resources: corev1.ResourceRequirements{Limits: amounts(40)}}, true},
		{"times", &metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Unix(1, 999)), DeletionTimestamp: &metav1.Time{}}, true},
		{"what others have written", &metav1.ManagedFieldsEntry{FieldsV1: metav1.NewFieldsV1(`{"f:a b":{ },"f:é":{},"f:<":{}}`)}, true},
		{"what others have written badly", &metav1.ManagedFieldsEntry{FieldsV1: metav1.NewFieldsV1(`{"f:a":}`)}, false},
		{"a method of a pointer", &struct{ A byPointer }{}, true},
		{"the same in a list", &struct{ A []byPointer }{[]byPointer{{1}}}, true},
		{"the same in a map", &struct{ A map[string]byPointer }{map[string]byPointer{"x": {1}}}, false},
		{"the same within a map", &struct {
			A map[string]struct{ B byPointer }
		}{map[string]struct{ B byPointer }{"x": {}}}, false},
		{"white space", &struct{ A loose }{}, true},
		{"no JSON", &struct{ A broken }{}, false},
		{"a text", &struct{ A asText }{}, false},
		{"names that are texts", &struct{ A map[asString]int }{map[asString]int{"a": 1}}, false},
		{"zero", &struct {
			A blank  `json:"a,omitzero"`
			B *blank `json:"b,omitzero"`
			C *blank `json:"c,omitzero"`
			D int    `json:"d,omitzero"`
		}{blank{7}, &blank{7}, nil, 0}, true},
		{"not zero", &struct {
			A blank  `json:"a,omitzero"`
			B *blank `json:"b,omitempty,omitzero"`
			D int    `json:"d,omitzero"`
		}{blank{1}, &blank{}, 1}, true},
		{"infinity", &all{Number: math.Inf(1)}, false},
		{"an interface", &struct{ A any }{1}, false},
		{"a number as a text", &struct {
			N int `json:"n,string"`
		}{1}, false},
		{"too deep", chain, false},
		{"no struct", &deep, false},
		{"no pointer", corev1.Pod{}, false},
		{"nil", (*corev1.Pod)(nil), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if written(t, test.obj) != test.ok {
				t.Errorf("written: %v", !test.ok)
			}
		})
	}
}

// asString writes itself as a name.
type asString string

func (asString) MarshalText() ([]byte, error) { return []byte("name"), nil }

func many(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("name", i)] = strings.Repeat("x", i)
	}
	return m
}

func amounts(n int) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := range n {
		q := l["cpu"]
		q.Set(int64(i))
		l[corev1.ResourceName(fmt.Sprint("r", i))] = q
	}
	return l
}

func FuzzAppendText(f *testing.F) {
	f.Add("")
	f.Add("a\x00\b\f\n\r\t\"\\/<>&\x7fé\u2028\u2029😀\xff\xc3\xed\xa0\x80")
	f.Fuzz(func(t *testing.T, s string) {
		want, err := json.Marshal(s)
		if got := onepass.AppendText(nil, s); err != nil || string(got) != string(want) {
			t.Errorf("%q is written as %s, want %s (%v)", s, got, want, err)
		}
	})
}
