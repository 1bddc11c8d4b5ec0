package env_test

import (
	"strings"
	"testing"

	"setpoint.dev/setpoint/node/env"
)

// FuzzExpand: text with every dollar sign doubled comes out as it was, and what
// nobody knows stays.
func FuzzExpand(f *testing.F) {
	for _, text := range []string{"", "$", "$(A)", "$$(A)", "$(A", "$()", "a$b$(c)d$$"} {
		f.Add(text)
	}
	none := func(string) (string, bool) { return "", false }
	f.Fuzz(func(t *testing.T, text string) {
		if got := env.Expand(strings.ReplaceAll(text, "$", "$$"), none); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
		if !strings.Contains(text, "$$") {
			if got := env.Expand(text, none); got != text {
				t.Errorf("%q becomes %q", text, got)
			}
		}
	})
}

// FuzzParse: what is written in quotes is read as it is, and nothing makes the
// reader fall over.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "x", "a\nb", " # c", "A=B", "\r\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = env.Parse(text, "A")
		value := strings.ReplaceAll(text, "'", "")
		if got, err := env.Parse("Z='1'\nA='"+value+"' # end\n", "A"); err != nil || got != value {
			t.Errorf("%q is read as %q, %v", value, got, err)
		}
	})
}
