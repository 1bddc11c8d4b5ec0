package planes

import "testing"

func TestSplit(t *testing.T) {
	for _, test := range []struct {
		path, name, at, rest string
		is                   bool
	}{
		{"/api/v1/pods", "", "", "", false},
		{"/planes", "", "", "", false},
		{"/planes/a", "", "", "", false},
		{"/planes/a/", "a", "", "/", true},
		{"/planes//api", "", "", "", false},
		{"/planes/a/api/v1", "a", "", "/api/v1", true},
		{"/at/5/api/v1", "main", "5", "/api/v1", true},
		{"/at/5", "main", "5", "/", true},
		{"/planes/a/at/5/apis", "a", "5", "/apis", true},
		{"/planes/a/at/x/apis", "a", "x", "/apis", true},
	} {
		name, at, rest, is := split(test.path)
		if is != test.is || is && (name != test.name || at != test.at || rest != test.rest) {
			t.Errorf("%s is %q at %q, %q, %v", test.path, name, at, rest, is)
		}
	}
}
