package codec

import (
	"encoding/json"
	"testing"

	kjson "k8s.io/apimachinery/pkg/util/json"
)

func FuzzValuesAreWrittenAsJSONMarshalDoes(f *testing.F) {
	for _, seed := range []string{
		`null`, `{}`, `[]`, `{"b":[1,-2,2.5,1e30,true,false,null],"a":{"z":"","a":"text"}}`, `"<a href=\"x\">&\u2028\u0000\\é</a>"`,
		`{"<":1,"é":2,"\n":3}`, `"\ud800"`, `9223372036854775807`, `-9223372036854775808`, `[[],{},[{}]]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if kjson.Unmarshal(text, &v) != nil {
			return
		}
		want, wantErr := json.Marshal(v)
		got, err := appendValue(nil, v)
		if string(got) != string(want) || (err == nil) != (wantErr == nil) {
			t.Errorf("%s\nis written as %s, %v\nwant %s, %v", text, got, err, want, wantErr)
		}
	})
}

func BenchmarkAppendValue(b *testing.B) {
	var v any
	if err := kjson.Unmarshal([]byte(`{"name":"part","count":1,"ready":true,"ports":[{"port":80,"protocol":"TCP"}],"labels":{"app":"aaaaaaaaaaaa"}}`), &v); err != nil {
		b.Fatal(err)
	}
	b.Run("append", func(b *testing.B) {
		for b.Loop() {
			if _, err := appendValue(nil, v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("marshal", func(b *testing.B) {
		for b.Loop() {
			if _, err := json.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
}
