package env

import (
	"fmt"
	"slices"
	"strings"
)

// Expand replaces each $(NAME) by the value that get has for NAME. $$ is a dollar
// sign, so $$(NAME) stays $(NAME); a name without a value, and what is not
// closed, stays as written.
func Expand(text string, get func(name string) (value string, ok bool)) string {
	return replace(text, func(reference, name string) string {
		if v, ok := get(name); ok {
			return v
		}
		return reference
	})
}

// Resolve is Expand for those who need a value for every name. It fails with
// the names that have none.
func Resolve(text string, values map[string]string) (string, error) {
	var missing []string
	resolved := replace(text, func(_, name string) string {
		if values[name] == "" && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
		return values[name]
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
	}
	return resolved, nil
}

// replace calls by with each $(NAME) and its name, and puts the answer there.
func replace(text string, by func(reference, name string) string) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(text, '$')
		if at < 0 || at+1 == len(text) {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:at])
		text = text[at:]
		switch end := strings.IndexByte(text, ')'); {
		case text[1] == '$':
			b.WriteByte('$')
			text = text[2:]
		case text[1] == '(' && end > 0:
			b.WriteString(by(text[:end+1], text[2:end]))
			text = text[end+1:]
		default:
			b.WriteString(text[:2])
			text = text[2:]
		}
	}
}
