package scenarios

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// field reads a field of a decoded object; nil when there is none.
func field(obj map[string]any, path ...string) any {
	var at any = obj
	for _, p := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[p]
	}
	return at
}

func text(obj map[string]any, path ...string) string {
	v, _ := field(obj, path...).(string)
	return v
}

// describe tells of an answer in a line or a few.
func (s *teller) describe(o order, code int, obj map[string]any) []string {
	lines := []string{strconv.Itoa(code) + " "}
	kind := text(obj, "kind")
	items, isList := obj["items"].([]any)
	switch {
	case kind == "Status":
		lines[0] += s.status(obj)
		causes, _ := field(obj, "details", "causes").([]any)
		for _, c := range causes {
			c := c.(map[string]any)
			lines = append(lines, fmt.Sprintf("  %v %v: %v", c["reason"], c["field"], c["message"]))
		}
	case kind == "Table":
		return append([]string{lines[0] + kind}, table(obj)...)
	case isList || strings.HasSuffix(kind, "List"):
		lines[0] += kind + s.page(obj)
		for _, item := range items {
			item := item.(map[string]any)
			lines = append(lines, "  "+s.object(item))
			lines = append(lines, indent(s.show(o, item))...)
		}
		return lines
	default:
		lines[0] += kind + " " + s.object(obj)
	}
	return append(lines, s.show(o, obj)...)
}

func indent(lines []string) []string {
	for i := range lines {
		lines[i] = "    " + lines[i]
	}
	return lines
}

func (s *teller) status(obj map[string]any) string {
	if text(obj, "status") == "Success" {
		return "Success"
	}
	return text(obj, "reason") + ": " + text(obj, "message")
}

func (s *teller) page(obj map[string]any) string {
	words := ""
	if s.next = text(obj, "metadata", "continue"); s.next != "" {
		words += " continues"
	}
	if n, ok := field(obj, "metadata", "remainingItemCount").(float64); ok {
		words += fmt.Sprintf(" remaining=%v", n)
	}
	if rev := text(obj, "metadata", "resourceVersion"); rev != "" && slices.Contains(s.revisions, rev) {
		words += " rev=" + s.revision(rev)
	}
	return words
}

// revision is the number of a revision in this story.
func (s *teller) revision(rev string) string {
	i := slices.Index(s.revisions, rev)
	if i < 0 {
		i = len(s.revisions)
		s.revisions = append(s.revisions, rev)
	}
	return strconv.Itoa(i + 1)
}

// object tells what an object's metadata says about its life.
func (s *teller) object(obj map[string]any) string {
	name := text(obj, "metadata", "name")
	if prefix := text(obj, "metadata", "generateName"); prefix != "" && name != "" {
		if _, known := s.madeUp[name]; !known {
			s.madeUp[name] = prefix + "#" + strconv.Itoa(len(s.madeUp)+1)
		}
	}
	if uid := text(obj, "metadata", "uid"); uid != "" {
		s.uids[name] = uid
	}
	words := []string{name}
	if name == "" {
		words = nil
	}
	if rev := text(obj, "metadata", "resourceVersion"); rev != "" {
		words = append(words, "rev="+s.revision(rev))
	}
	if gen, ok := field(obj, "metadata", "generation").(float64); ok {
		words = append(words, fmt.Sprintf("gen=%v", gen))
	}
	if text(obj, "metadata", "deletionTimestamp") != "" {
		grace, _ := field(obj, "metadata", "deletionGracePeriodSeconds").(float64)
		words = append(words, fmt.Sprintf("deleting(grace=%v)", grace))
	}
	if held, _ := field(obj, "metadata", "finalizers").([]any); len(held) > 0 {
		words = append(words, fmt.Sprintf("held-by%v", held))
	}
	if text(obj, "metadata", "annotations", "k8s.io/initial-events-end") == "true" {
		words = append(words, "initial-events-end")
	}
	return strings.Join(words, " ")
}

func (s *teller) show(o order, obj map[string]any) []string {
	var lines []string
	for _, path := range o.show {
		j := jsonpath.New("show").AllowMissingKeys(true)
		if err := j.Parse("{" + path + "}"); err != nil {
			s.t.Fatalf("show=%s: %v", path, err)
		}
		results, err := j.FindResults(obj)
		if err != nil {
			s.t.Fatalf("show=%s: %v", path, err)
		}
		var values []string
		for _, r := range slices.Concat(results...) {
			b, err := json.Marshal(r.Interface())
			if err != nil {
				s.t.Fatal(err)
			}
			values = append(values, string(b))
		}
		if len(values) == 0 {
			values = []string{"none"}
		}
		lines = append(lines, path+": "+strings.Join(values, " "))
	}
	return lines
}

// table shows a table's columns that do not depend on the time.
func table(obj map[string]any) []string {
	var lines []string
	columns, _ := obj["columnDefinitions"].([]any)
	var header []string
	age := -1
	for i, c := range columns {
		name := text(c.(map[string]any), "name")
		header = append(header, name)
		if name == "Age" {
			age = i
		}
	}
	if len(header) > 0 {
		lines = append(lines, "  "+strings.Join(header, " | "))
	}
	rows, _ := obj["rows"].([]any)
	for _, r := range rows {
		var cells []string
		row := r.(map[string]any)
		values, _ := row["cells"].([]any)
		for i, v := range values {
			if i == age {
				v = "..."
			}
			cells = append(cells, fmt.Sprint(v))
		}
		line := "  " + strings.Join(cells, " | ")
		if kind := text(row, "object", "kind"); kind != "" {
			line += " (with " + kind + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

var changing = regexp.MustCompile(`(current: |precondition \(|record \()[0-9]+`)

// plain replaces what differs from run to run by the story's words for it.
func (s *teller) plain(lines []string) []string {
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "\n\n", "\n") // an empty line ends an act
		for name, uid := range s.uids {
			lines[i] = strings.ReplaceAll(lines[i], uid, "UID("+name+")")
		}
		for made, called := range s.madeUp {
			lines[i] = strings.ReplaceAll(lines[i], made, called)
		}
		lines[i] = strings.ReplaceAll(lines[i], s.ns, s.title)
		lines[i] = changing.ReplaceAllString(lines[i], "${1}N")
	}
	return lines
}
