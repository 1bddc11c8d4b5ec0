//go:build linux

package supervise

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	const head = "2026-01-02T03:04:05.000000006Z stdout "
	long := strings.Repeat("x", longest)
	for name, test := range map[string]struct {
		writes []string
		want   string
	}{
		"nothing":             {nil, ""},
		"a line":              {[]string{"a\n"}, head + "F a\n"},
		"two at once":         {[]string{"a\nb\n"}, head + "F a\n" + head + "F b\n"},
		"one in two writes":   {[]string{"a", "b\n"}, head + "F ab\n"},
		"an empty line":       {[]string{"\n"}, head + "F \n"},
		"no end":              {[]string{"a"}, head + "F a\n"},
		"as long as may be":   {[]string{long + "\n"}, head + "F " + long + "\n"},
		"longer":              {[]string{long + "y\n"}, head + "P " + long + "\n" + head + "F y\n"},
		"longer, in pieces":   {[]string{long, "y", "z\n"}, head + "P " + long + "\n" + head + "F yz\n"},
		"much longer, no end": {[]string{long + long + "y"}, head + "P " + long + "\n" + head + "P " + long + "\n" + head + "F y\n"},
		"carriage return":     {[]string{"a\r\n"}, head + "F a\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := lines{stream: stdout}
			var got []byte
			for _, w := range test.writes {
				got = append(got, l.add([]byte(w), at)...)
			}
			got = append(got, l.end(at)...)
			if diff := cmp.Diff(test.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
