package scenarios

import (
	"strings"
)

// A script is a story, read from a file:
//
//	# what it is about
//	verb resource/name/subresource option=value "option=with blanks"
//	body, if any
//	----
//	ending
//
// An empty line ends an act. "only json cbor" before the first act keeps a story
// to some formats.
type script struct {
	only []string
	acts []act
	tail string
}

// act is one request and what came of it.
type act struct {
	before string // comments and empty lines
	line   string
	body   string
	ending []string
}

const divider = "----"

func parse(text string) *script {
	s := &script{}
	lines := strings.Split(text, "\n")
	var before []string
	for i := 0; i < len(lines); {
		line := lines[i]
		i++
		only, isOnly := strings.CutPrefix(line, "only ")
		if isOnly {
			s.only = strings.Fields(only)
		}
		if isOnly || strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			before = append(before, line)
			continue
		}
		a := act{line: line}
		if len(before) > 0 {
			a.before = strings.Join(before, "\n") + "\n"
		}
		before = nil
		var body []string
		for i < len(lines) && lines[i] != divider {
			body = append(body, lines[i])
			i++
		}
		a.body = strings.Join(body, "\n")
		i++ // the divider
		for i < len(lines) && lines[i] != "" {
			i++ // the old ending
		}
		s.acts = append(s.acts, a)
	}
	s.tail = strings.Join(before, "\n")
	return s
}

// String is the file's text, with the endings that the acts have now.
func (s *script) String() string {
	var b strings.Builder
	for _, a := range s.acts {
		b.WriteString(a.before)
		b.WriteString(a.line + "\n")
		if a.body != "" {
			b.WriteString(a.body + "\n")
		}
		b.WriteString(divider + "\n")
		for _, line := range a.ending {
			b.WriteString(line + "\n")
		}
	}
	b.WriteString(s.tail)
	return b.String()
}

// order is an act's first line, taken apart.
type order struct {
	verb, resource, name, sub string
	// query goes to the server; the rest is for the teller.
	query   [][2]string
	as      string   // representation to ask for
	patch   string   // type of patch
	show    []string // fields to tell of
	id      string   // name of a watch
	count   string   // how many events to wait for
	ns      string
	raw     bool // leave the body as it is
	headers [][2]string
}

func parseOrder(line string) order {
	words := split(line)
	o := order{verb: words[0]}
	if len(words) > 1 {
		parts := strings.SplitN(words[1], "/", 3)
		o.resource = parts[0]
		if len(parts) > 1 {
			o.name = parts[1]
		}
		if len(parts) > 2 {
			o.sub = parts[2]
		}
	}
	for _, w := range words[min(2, len(words)):] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "as":
			o.as = value
		case "type":
			o.patch = value
		case "show":
			o.show = append(o.show, value)
		case "id":
			o.id = value
		case "count":
			o.count = value
		case "ns":
			o.ns = value
		case "raw":
			o.raw = true
		case "user":
			o.headers = append(o.headers, [2]string{"Impersonate-User", value})
		case "group":
			o.headers = append(o.headers, [2]string{"Impersonate-Group", value})
		case "accept", "content-type":
			o.headers = append(o.headers, [2]string{key, value})
		default:
			o.query = append(o.query, [2]string{key, value})
		}
	}
	return o
}

// split cuts a line at blanks outside quotes.
func split(line string) []string {
	quoted := false
	return strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
			return true
		}
		return r == ' ' && !quoted
	})
}
