package onepass_test

import (
	"encoding/json"
	"reflect"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"setpoint.dev/setpoint/api/onepass"
)

func TestPatch(t *testing.T) {
	for _, test := range []struct {
		name, object, patch string
		ok                  bool
	}{
		{"nothing", `{"a":1}`, `[]`, true},
		{"add", `{"a":{"b":1}}`, `[{"op":"add","path":"/a/c","value":"x"}]`, true},
		{"add what is there", `{"a":{"b":1}}`, `[{"op":"add","path":"/a/b","value":{"c":[1,null]}}]`, true},
		{"add to what is not there", `{"a":1}`, `[{"op":"add","path":"/b/c","value":1}]`, false},
		{"add below a text", `{"a":"x"}`, `[{"op":"add","path":"/a/c","value":1}]`, false},
		{"replace", `{"a":1,"b":"x"}`, `[{"op":"replace","path":"/b","value":[1,2]}]`, true},
		{"replace an object", `{"a":{"b":1,"c":2}}`, `[{"op":"replace","path":"/a","value":{"d":3}}]`, true},
		{"replace what is not there", `{"a":1}`, `[{"op":"replace","path":"/b","value":1}]`, false},
		{"remove", `{"a":1,"b":{"c":1,"d":2}}`, `[{"op":"remove","path":"/b/c"}]`, true},
		{"remove what is not there", `{"a":1}`, `[{"op":"remove","path":"/b"}]`, false},
		{"several", `{"a":{"b":1},"c":{"d":2}}`, `[{"op":"add","path":"/a/x","value":1},{"op":"remove","path":"/c/d"},{"op":"replace","path":"/a/b","value":3}]`, true},
		{"the same twice", `{"a":1}`, `[{"op":"add","path":"/a","value":2},{"op":"add","path":"/a","value":3}]`, false},
		{"one above the other", `{"a":{"b":1}}`, `[{"op":"add","path":"/a/b","value":2},{"op":"remove","path":"/a"}]`, false},
		{"one below the other", `{"a":{"b":1}}`, `[{"op":"replace","path":"/a","value":{"b":2}},{"op":"remove","path":"/a/b"}]`, false},
		{"test", `{"a":{"b":"x"}}`, `[{"op":"test","path":"/a/b","value":"x"},{"op":"add","path":"/a/c","value":1}]`, true},
		{"test and change", `{"a":{"b":"x"}}`, `[{"op":"test","path":"/a/b","value":"x"},{"op":"replace","path":"/a/b","value":"y"}]`, true},
		{"test and add", `{"a":"x"}`, `[{"op":"test","path":"/a","value":"x"},{"op":"add","path":"/a","value":"y"}]`, true},
		{"test that fails", `{"a":"x"}`, `[{"op":"test","path":"/a","value":"y"},{"op":"add","path":"/a","value":"z"}]`, false},
		{"test in other words", `{"a":{"b":1,"c":2}}`, `[{"op":"test","path":"/a","value":{"c":2,"b":1}}]`, false},
		{"test after the change", `{"a":"x"}`, `[{"op":"replace","path":"/a","value":"y"},{"op":"test","path":"/a","value":"y"}]`, false},
		{"two tests", `{"a":"x"}`, `[{"op":"test","path":"/a","value":"x"},{"op":"test","path":"/a","value":"x"}]`, false},
		{"names that are escaped", `{"x/y":{"~":1}}`, `[{"op":"add","path":"/x~1y/~0","value":2}]`, true},
		{"names that JSON escapes", `{"é":1}`, `[{"op":"add","path":"/é","value":2}]`, false},
		{"white space", "{ \"a\" : { } }", " [ { \"op\" : \"add\" , \"path\" : \"/a/b\" , \"value\" : 1 } ] ", true},
		{"an item of a list", `{"a":[1,2]}`, `[{"op":"remove","path":"/a/0"}]`, false},
		{"the end of a list", `{"a":[1,2]}`, `[{"op":"add","path":"/a/-","value":3}]`, false},
		{"null", `{"a":1}`, `[{"op":"add","path":"/a","value":null}]`, false},
		{"the whole", `{"a":1}`, `[{"op":"add","path":"","value":{}}]`, false},
		{"an empty name", `{"":1}`, `[{"op":"add","path":"/","value":2}]`, true},
		{"move", `{"a":1}`, `[{"op":"move","from":"/a","path":"/b"}]`, false},
		{"no value", `{"a":1}`, `[{"op":"add","path":"/b"}]`, false},
		{"more than there is", `{"a":1}`, `[{"op":"add","path":"/b","value":1,"why":"x"}]`, false},
		{"a field twice", `{"a":1}`, `[{"op":"add","path":"/b","path":"/c","value":1}]`, false},
		{"an object", `{"a":1}`, `{}`, false},
		{"cut off", `{"a":1}`, `[{"op":"add"`, false},
		{"rubbish behind", `{"a":1}`, `[]x`, false},
		{"an object that is none", `[]`, `[]`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if comparePatch(t, []byte(test.object), []byte(test.patch)) != test.ok {
				t.Errorf("patched: %v", !test.ok)
			}
		})
	}
}

func comparePatch(t *testing.T, object, patch []byte) bool {
	t.Helper()
	patched, ok := onepass.Patch(object, patch)
	if !ok {
		return false
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("patched, but cannot be read: %v\n%q", err, patch)
	}
	want, err := operations.Apply(object)
	if err != nil {
		t.Fatalf("patched, but is wrong: %v\n%q\n%q", err, object, patch)
	}
	var a, b any
	if err := json.Unmarshal(patched, &a); err != nil {
		t.Fatalf("%v: %q\n%q\n%q", err, patched, object, patch)
	}
	if err := json.Unmarshal(want, &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%q\n%q\ngives %q\nnot   %q", object, patch, patched, want)
	}
	return true
}

func FuzzPatch(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1,"c":[1,"x"]},"d":"e"}`), []byte(`[{"op":"add","path":"/a/x","value":{"y":1}},{"op":"remove","path":"/a/b"},{"op":"test","path":"/d","value":"e"},{"op":"replace","path":"/d","value":2}]`))
	f.Add([]byte(`{"metadata":{"labels":{"a":"b"}}}`), []byte(`[{"op":"replace","path":"/metadata/labels","value":{"a~1b":"c"}}]`))
	f.Fuzz(func(t *testing.T, object, patch []byte) { comparePatch(t, object, patch) })
}
