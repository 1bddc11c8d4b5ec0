package onepass_test

import (
	"encoding/json"
	"math/rand"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/onepass"
)

// Objects of every built-in kind, filled at random, are read as sigs.k8s.io/json
// reads them.
func TestObjects(t *testing.T) {
	const times = 5
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(scheme.Scheme))
	kinds, objects, read := 0, 0, 0
	for kind, typ := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == "__internal" || strings.HasSuffix(kind.Kind, "Options") || kind.Kind == "WatchEvent" {
			continue
		}
		kinds++
		for range times {
			obj := reflect.New(typ)
			fill.Fill(obj.Interface())
			want, err := json.Marshal(obj.Interface())
			if err != nil {
				continue // such as a quantity that there is not
			}
			if compare(t, typ, want) {
				read++
			}
			objects++
		}
	}
	t.Logf("%d objects of %d kinds: %d read", objects, kinds, read)
	if objects < kinds || read < objects {
		t.Error("too few")
	}
}

// compare reads an object of a type in both ways. It says whether this package
// could.
func compare(t *testing.T, typ reflect.Type, data []byte) bool {
	t.Helper()
	got := reflect.New(typ)
	read := onepass.Read(data, got.Interface())
	want := reflect.New(typ)
	strict, err := kjson.UnmarshalStrict(data, want.Interface())
	if !read {
		return false
	}
	if err != nil || len(strict) > 0 {
		t.Fatalf("read, but is wrong: %v, %v\n%s", err, strict, data)
	}
	if !reflect.DeepEqual(want.Interface(), got.Interface()) {
		t.Fatalf("%s: %s", data, cmp.Diff(want.Interface(), got.Interface()))
	}
	return true
}

// What is not plain is left to others.
func TestNotPlain(t *testing.T) {
	for name, data := range map[string]string{
		"nothing":             ``,
		"no object":           `[]`,
		"null":                `null`,
		"cut off":             `{"metadata":{"name":"x"`,
		"more behind":         `{} {}`,
		"unknown field":       `{"matadata":{}}`,
		"unknown deep inside": `{"spec":{"containers":[{"name":"a","imagee":"x"}]}}`,
		"other case":          `{"Metadata":{}}`,
		"field twice":         `{"kind":"Pod","kind":"Pod"}`,
		"key twice":           `{"metadata":{"labels":{"a":"1","a":"2"}}}`,
		"wrong type":          `{"metadata":{"name":1}}`,
		"fraction":            `{"spec":{"priority":1.0}}`,
		"exponent":            `{"spec":{"priority":1e2}}`,
		"too large":           `{"spec":{"priority":2147483648}}`,
		"leading zero":        `{"spec":{"priority":012}}`,
		"bad text":            "{\"kind\":\"a\xff\"}",
		"control character":   "{\"kind\":\"a\nb\"}",
		"half of a pair":      `{"kind":"\ud800"}`,
		"bad escape":          `{"kind":"\x"}`,
		"trailing comma":      `{"kind":"a",}`,
		"no comma":            `{"kind":"a" "apiVersion":"v1"}`,
		"bad time":            `{"metadata":{"creationTimestamp":"yesterday"}}`,
		"bad quantity":        `{"spec":{"overhead":{"cpu":"much"}}}`,
		"too deep":            `{"metadata":{"managedFields":[{"fieldsV1":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if onepass.Read([]byte(data), &corev1.Pod{}) {
				t.Error("was read")
			}
		})
	}
	t.Run("a type with more than fields", func(t *testing.T) {
		type quoted struct {
			N int `json:"n,string"`
		}
		if onepass.Read([]byte(`{"n":"1"}`), &quoted{}) {
			t.Error("was read")
		}
	})
}

func TestPlain(t *testing.T) {
	for name, data := range map[string]string{
		"empty":            ` { } `,
		"nulls":            `{"metadata":{"name":null,"labels":null,"creationTimestamp":null,"finalizers":null,"deletionTimestamp":null},"spec":null,"status":{"podIPs":[null]}}`,
		"empty lists":      `{"metadata":{"finalizers":[],"labels":{}},"spec":{"containers":[]}}`,
		"white space":      "{\n \"metadata\" : {\t\"name\" : \"a\" , \"labels\" : { \"x\" : \"y\" } }\r\n}",
		"escapes":          `{"metadata":{"annotations":{"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00":"b\u0000"}}}`,
		"other alphabets":  `{"metadata":{"annotations":{"ключ":"значение","鍵":"値 😀"}}}`,
		"many items":       `{"spec":{"containers":[{"name":"1"},{"name":"2"},{"name":"3"},{"name":"4"},{"name":"5"}]}}`,
		"numbers and text": `{"spec":{"containers":[{"name":"1","ports":[{"containerPort":-0}],"readinessProbe":{"httpGet":{"port":80}},"livenessProbe":{"httpGet":{"port":"http"}}}]}}`,
		"quantities":       `{"spec":{"containers":[{"name":"1","resources":{"limits":{"cpu":1,"memory":"1Gi","x":"0.5"}}}]}}`,
		"any order":        `{"spec":{"nodeName":"n"},"kind":"Pod","metadata":{"uid":"u","name":"a"},"apiVersion":"v1"}`,
	} {
		t.Run(name, func(t *testing.T) {
			if !compare(t, reflect.TypeFor[corev1.Pod](), []byte(data)) {
				t.Error("was not read")
			}
		})
	}
}

func TestFields(t *testing.T) {
	for _, test := range []struct {
		name, data string
		ok         bool
	}{
		{"empty", `{}`, true},
		{"all kinds", `{"a":[1,-2,3.5,1e3,true,false,null,"x",{"b":{}},[]],"c":{"d":"e\n"}}`, true},
		{"numbers", `{"a":[9223372036854775807,9223372036854775808,-9223372036854775808,-0,0.0,1E-2,1e400]}`, false},
		{"large numbers", `{"a":[9223372036854775807,9223372036854775808,-9223372036854775808,-0,0.0,1E-2]}`, true},
		{"twice", `{"a":1,"a":1}`, false},
		{"a list", `[]`, false},
		{"cut off", `{"a":{"b":[1,2`, false},
		{"rubbish behind", `{}x`, false},
		{"nan", `{"a":NaN}`, false},
		{"no value", `{"a":}`, false},
		{"no colon", `{"a" 1}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if compareFields(t, []byte(test.data)) != test.ok {
				t.Errorf("read: %v", !test.ok)
			}
		})
	}
}

func compareFields(t *testing.T, data []byte) bool {
	t.Helper()
	got, read := onepass.Fields(data)
	if !read {
		return false
	}
	var want map[string]any
	strict, err := kjson.UnmarshalStrict(data, &want)
	if err != nil || len(strict) > 0 {
		t.Fatalf("read, but is wrong: %v, %v\n%q", err, strict, data)
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%q: %s", data, cmp.Diff(want, got))
	}
	return true
}

func TestYAML(t *testing.T) {
	for _, test := range []struct {
		name, data string
		ok         bool
	}{
		{"empty", `{}`, true},
		{"all kinds", `{"a":[1,-2,3.5,1e3,true,false,null,"x",{"b":{}},[]],"c":{"d":"e\n\u003c\"\\"}}`, true},
		{"large numbers", `{"a":[9223372036854775807,9223372036854775808,18446744073709551616,-9223372036854775808,0.0,1E-2,-0.0,-0.5]}`, true},
		{"words of YAML", `{"a":["yes","no","~","null","1","0x10","1_000","2001-01-01","<<","!!int 3","- x",": ","# no"],"yes":"on","1":2,"~":3}`, true},
		{"indented", "{\n  \"a\": {\n    \"b\": [\n      1,\n      2\n    ]\n  }\n}\n", true},
		{"a zero below zero", `{"a":-0}`, false},
		{"twice", `{"a":1,"a":1}`, false},
		{"merge", `{"<<":{"a":1}}`, false},
		{"a slash", `{"a":"\/"}`, false},
		{"a pair", `{"a":"\ud83d\ude00"}`, false},
		{"other alphabets", `{"a":"é"}`, false},
		{"tabs", "{\t\"a\":1}", false},
		{"a space before the colon", `{"a" :1}`, false},
		{"a long name", `{"` + strings.Repeat("a", 1025) + `":1}`, false},
		{"no JSON", `a: 1`, false},
		{"a list", `[1]`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if compareYAML(t, []byte(test.data)) != test.ok {
				t.Errorf("read: %v", !test.ok)
			}
		})
	}
}

func compareYAML(t *testing.T, data []byte) bool {
	t.Helper()
	got, read := onepass.YAML(data)
	if !read {
		return false
	}
	var want map[string]any
	if err := yaml.UnmarshalStrict(data, &want); err != nil {
		t.Fatalf("read, but is wrong: %v\n%q", err, data)
	}
	if !reflect.DeepEqual(want, got) {
		t.Fatalf("%q: %s", data, cmp.Diff(want, got))
	}
	return true
}

func FuzzRead(f *testing.F) {
	types := []reflect.Type{reflect.TypeFor[corev1.Pod](), reflect.TypeFor[corev1.Secret](), reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()}
	for i, typ := range types {
		fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(int64(i)), serializer.NewCodecFactory(scheme.Scheme))
		obj := reflect.New(typ)
		fill.Fill(obj.Interface())
		if data, err := json.Marshal(obj.Interface()); err == nil {
			f.Add(uint8(i), data)
		}
		f.Add(uint8(i), []byte(`{"metadata":{"labels":{"a":"b\u00e9"},"creationTimestamp":null},"spec":{"priority":1},"data":{"x":"YQ=="}}`))
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		typ := types[int(which)%len(types)]
		compareFields(t, data)
		compareYAML(t, data)
		compare(t, typ, data)
	})
}

func BenchmarkPod(b *testing.B) {
	container := corev1.Container{
		Name: "web", Image: "registry.example.org/web:1.2.3", Args: []string{"--listen=:8080", "--verbose"},
		Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1Gi")}},
	}
	for range 12 {
		container.Env = append(container.Env, corev1.EnvVar{Name: "SETTING", Value: strings.Repeat("v", 24)})
	}
	obj := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web", "tier": "front"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{container, container, container}, NodeName: "one"},
	}
	data, err := json.Marshal(obj)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if !onepass.Read(data, &corev1.Pod{}) {
				b.Fatal("not read")
			}
		}
	})
	b.Run("read by sigs.k8s.io/json", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := kjson.UnmarshalStrict(data, &corev1.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("write", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		var room []byte
		for b.Loop() {
			var ok bool
			if room, ok = onepass.Append(room[:0], obj); !ok {
				b.Fatal("not written")
			}
		}
	})
	b.Run("write by encoding/json", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(obj); err != nil {
				b.Fatal(err)
			}
		}
	})
}
