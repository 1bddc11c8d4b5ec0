package differential

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"sort"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Answer is what a server said, without what no two servers say alike.
type Answer struct {
	Code int
	// Text is the code, the headers that matter and the body, one field a line.
	Text string
}

// headers are those that clients look at.
var headers = []string{
	"Content-Type", "Warning", "Retry-After", "Allow", "Cache-Control", "Www-Authenticate", "Location",
	"X-Content-Type-Options", "Accept-Patch",
}

// replacements blank what differs between any two servers wherever it stands.
var replacements = []struct {
	old *regexp.Regexp
	to  string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`([Rr]esource ?[Vv]ersion[^\d]{0,24}|current: )\d+`), "${1}N"},
	{regexp.MustCompile(`Bad_[a-z0-9]{5}\b`), "Bad_~"},
	{regexp.MustCompile(`"https://127\.0\.0\.1:\d+`), `"https://HOST`},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "HOST"},
}

// blank are fields whose value is not compared, only whether there is one.
var blank = map[string]bool{
	"resourceVersion": true, "continue": true, "clusterIP": true, "clusterIPs": true, "nodePort": true, "token": true,
	"serverAddress": true,
}

// own are fields whose value says which server it is.
var own = map[string]bool{"gitVersion": true, "gitCommit": true, "buildDate": true, "goVersion": true, "gitTreeState": true}

// NewAnswer reads an answer. Kept values are written as the names they have;
// fields whose paths are to be ignored are left out.
func NewAnswer(r *http.Response, body []byte, kept map[string]string, of Part) Answer {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", r.StatusCode)
	for _, name := range headers {
		values := r.Header.Values(name)
		sort.Strings(values)
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	b.WriteString("\n")
	b.WriteString(normalBody(r.Header.Get("Content-Type"), body, of))
	text := b.String()
	for name, value := range kept {
		if len(value) >= minKept {
			text = strings.ReplaceAll(text, value, "${"+name+"}")
		}
	}
	for _, r := range replacements {
		text = r.old.ReplaceAllString(text, r.to)
	}
	return Answer{Code: r.StatusCode, Text: text}
}

// minKept keeps short numbers from being replaced where they mean something
// else.
const minKept = 8

// normalBody is a body as indented JSON; several, when it is a stream.
func normalBody(contentType string, body []byte, of Part) string {
	media, _, _ := strings.Cut(contentType, ";")
	switch {
	case len(body) == 0:
		return "(no body)"
	case media == "application/json":
		return normalJSON(body, of)
	case media == "application/yaml":
		j, err := yaml.YAMLToJSON(body)
		if err != nil {
			return string(body)
		}
		return normalJSON(j, of)
	case media == "application/vnd.kubernetes.protobuf" && !strings.Contains(contentType, "stream"):
		return normalProtobuf(body)
	case media == runtime.ContentTypeCBOR, media == runtime.ContentTypeCBORSequence:
		return normalCBOR(body, of)
	default:
		return string(body)
	}
}

// normalCBOR is one item or several as JSON. Neither server gives the pairs of
// a map an order.
func normalCBOR(body []byte, of Part) string {
	var text strings.Builder
	text.WriteString("CBOR\n")
	frames := cbor.NewFramer().NewFrameReader(io.NopCloser(bytes.NewReader(body)))
	frame := make([]byte, len(body))
	for {
		n, err := frames.Read(frame)
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		var v any
		if err == nil {
			err = direct.Unmarshal(frame[:n], &v)
		}
		j, jerr := json.Marshal(v)
		if err = errors.Join(err, jerr); err != nil {
			return fmt.Sprintf("CBOR that cannot be read: %v", err)
		}
		if !bytes.HasPrefix(frame, []byte{0xd9, 0xd9, 0xf7}) {
			text.WriteString("(does not say so)\n")
		}
		text.WriteString(normalJSON(append(j, '\n'), of))
	}
}

func normalProtobuf(body []byte) string {
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		var unknown runtime.Unknown
		if len(body) > 4 && unknown.Unmarshal(body[4:]) == nil {
			return fmt.Sprintf("protobuf of %s %s", unknown.APIVersion, unknown.Kind)
		}
		return fmt.Sprintf("protobuf that cannot be read: %v", err)
	}
	j, err := json.Marshal(obj)
	if err != nil {
		return err.Error()
	}
	return "protobuf of " + kind.String() + "\n" + normalJSON(j, Part{})
}

func normalJSON(body []byte, of Part) string {
	var b strings.Builder
	if n := bytes.Count(body, []byte("\n  ")); n > 0 {
		b.WriteString("(indented)\n")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	for d.More() {
		var v any
		if err := d.Decode(&v); err != nil {
			return string(body)
		}
		for _, path := range of.Ignore {
			drop(v, strings.Split(path, "."))
		}
		if of.Only != "" {
			v, _ = named(v, of.Only)
		}
		j, err := json.MarshalIndent(normal(v), "", " ")
		if err != nil {
			return err.Error()
		}
		b.Write(j)
		b.WriteString("\n")
	}
	if !bytes.HasSuffix(body, []byte("\n")) {
		b.WriteString("(no newline)\n")
	}
	return b.String()
}

// drop takes a field out of a decoded object.
func drop(v any, path []string) {
	m, _ := v.(map[string]any)
	if len(path) == 1 {
		delete(m, path[0])
	} else {
		drop(m[path[0]], path[1:])
	}
}

// named is what is under names that contain a text, and whether there is any. A
// list has the items whose own name does.
func named(v any, text string) (any, bool) {
	found := false
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			if strings.Contains(name, text) {
				found = true
				continue
			}
			if left, some := named(value, text); some {
				v[name], found = left, true
			} else {
				delete(v, name)
			}
		}
		return v, found
	case []any:
		var left []any
		for _, item := range v {
			m, _ := item.(map[string]any)
			about, _ := m["metadata"].(map[string]any)
			for _, name := range []any{m["name"], about["name"]} {
				if s, _ := name.(string); strings.Contains(s, text) {
					left = append(left, item)
					break
				}
			}
		}
		return left, len(left) > 0
	}
	return nil, false
}

var age = regexp.MustCompile(`^\d+m?s$|^<unknown>$`)

// normal blanks the fields that cannot be alike.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		generated(v)
		for name, value := range v {
			switch {
			case own[name]:
				v[name] = "~"
			case blank[name] && value != "" && value != "None" && isLeaf(value):
				v[name] = "~"
			case name == "cells":
				v[name] = normalCells(value)
			case name == "managedFields":
				v[name] = normalOwners(value)
			case name == "nonResourceRules", name == "resourceRules", name == "conditions" && isDefinitions(value):
				v[name] = sorted(normal(value))
			default:
				v[name] = normal(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = normal(v[i])
		}
	}
	return v
}

// normalOwners puts managedFields into an order of its own: theirs is that of
// their times, and the same two writes may fall into one second on the one
// server and into two on the other.
func normalOwners(v any) any {
	list, is := v.([]any)
	if !is {
		return v
	}
	for _, entry := range list {
		if m, is := entry.(map[string]any); is && m["time"] != nil {
			m["time"] = "TIME"
		}
	}
	return sorted(list)
}

// isDefinitions says that conditions are those of a custom resource definition,
// which several controllers set at the same time.
func isDefinitions(conditions any) bool {
	list, _ := conditions.([]any)
	return slices.ContainsFunc(list, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "NamesAccepted"
	})
}

// sorted puts a list that has no order into one.
func sorted(v any) any {
	list, _ := v.([]any)
	text := func(v any) string {
		b, _ := json.Marshal(v) // it was JSON
		return string(b)
	}
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(text(a), text(b)) })
	return list
}

func isLeaf(v any) bool {
	_, object := v.(map[string]any)
	return !object
}

// generated blanks a name that the server has made up.
func generated(m map[string]any) {
	prefix, _ := m["generateName"].(string)
	name, _ := m["name"].(string)
	if prefix != "" && strings.HasPrefix(name, prefix) && len(name) == len(prefix)+5 {
		m["name"] = prefix + "~"
	}
}

func normalCells(v any) any {
	cells, _ := v.([]any)
	for i, c := range cells {
		if s, ok := c.(string); ok && age.MatchString(s) {
			cells[i] = "AGE"
		}
	}
	return cells
}

// field finds a field of a JSON body by its path; "" when there is none.
func field(body []byte, path string) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return ""
	}
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}
