package onepass_test

import (
	"encoding/json"
	"reflect"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"setpoint.dev/setpoint/api/onepass"
)

func TestMerge(t *testing.T) {
	for _, test := range []struct {
		name, object, patch string
		ok                  bool
	}{
		{"nothing", `{"a":1}`, `{}`, true},
		{"replace", `{"a":1,"b":"x"}`, `{"a":2}`, true},
		{"add", `{"a":1}`, `{"b":{"c":[1,2]}}`, true},
		{"add to nothing", `{}`, `{"b":{"c":"d"}}`, true},
		{"remove", `{"a":1,"b":2,"c":3}`, `{"b":null}`, true},
		{"remove the first", `{"a":1,"b":2}`, `{"a":null}`, true},
		{"remove all", `{"a":1}`, `{"a":null}`, true},
		{"remove what is not there", `{"a":1}`, `{"b":null}`, true},
		{"deep", `{"a":{"b":{"c":1,"d":2}},"e":[{"a":1}]}`, `{"a":{"b":{"c":null,"f":{"g":null,"h":1}}}}`, true},
		{"object in place of a text", `{"a":"x"}`, `{"a":{"b":1,"c":null}}`, true},
		{"object in place of a list", `{"a":[1]}`, `{"a":{"b":null}}`, true},
		{"object in place of null", `{"a":null}`, `{"a":{"b":null,"c":1}}`, true},
		{"text in place of an object", `{"a":{"b":1}}`, `{"a":"x"}`, true},
		{"list in place of an object", `{"a":{"b":1}}`, `{"a":[1]}`, true},
		{"names that are escaped", `{"a\u00e9":1,"x/y":2}`, `{"aé":3,"x\/y":4,"z\"":5}`, true},
		{"white space", "{ \"a\" : 1 ,\n\"b\":{ } }", " { \"b\" : { \"c\" : 2 } } ", true},
		{"list with null", `{"a":1}`, `{"a":[{"b":null}]}`, false},
		{"twice", `{"a":1}`, `{"a":1,"a":2}`, false},
		{"twice in the object", `{"a":1,"a":2}`, `{"a":1}`, false},
		{"a list", `{"a":1}`, `[]`, false},
		{"cut off", `{"a":1}`, `{"a":`, false},
		{"rubbish behind", `{"a":1}`, `{"a":1}x`, false},
		{"an object that is none", `[]`, `{"a":1}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if compareMerge(t, []byte(test.object), []byte(test.patch)) != test.ok {
				t.Errorf("merged: %v", !test.ok)
			}
		})
	}
}

func compareMerge(t *testing.T, object, patch []byte) bool {
	t.Helper()
	merged, ok := onepass.Merge(object, patch)
	if !ok {
		return false
	}
	want, err := jsonpatch.MergePatch(object, patch)
	if err != nil {
		t.Fatalf("merged, but is wrong: %v\n%q\n%q", err, object, patch)
	}
	var a, b any
	if err := json.Unmarshal(merged, &a); err != nil {
		t.Fatalf("%v: %q\n%q\n%q", err, merged, object, patch)
	}
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%q\n%q\ngives %q\nnot   %q", object, patch, merged, want)
	}
	return true
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1,"c":[1,"x"]},"d":null}`), []byte(`{"a":{"b":null,"e":{"f":1}},"d":{"g":null}}`))
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}}}`), []byte(`{"metadata":{"labels":{"a":null,"c":"d"},"annotations":{"x":"y"}}}`))
	f.Fuzz(func(t *testing.T, object, patch []byte) { compareMerge(t, object, patch) })
}
