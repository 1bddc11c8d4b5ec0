// Package differential sends the same requests to Setpoint and to a
// kube-apiserver and compares the answers.
//
// The requests are text files in testdata, sent in order. A request is
//
//	== its name
//	METHOD /path?query
//	Header: value
//	Keep: name = path.of.a.field
//
//	body, up to the next ==
//
// A header of "-" is not sent; a body without Content-Type goes as JSON. With
// "Body: cbor" the JSON that is written goes as CBOR, with "Body: hex" the bytes
// whose digits are written. Keep
// remembers a field of the answer, for each server its own: ${name} stands for
// it further on, as ${hook} and ${ca} do for the address of a webhook of the
// test and who vouches for it. User and Group stand for impersonation; with Certificate: -
// the client does not say who it is.
//
// Until sends the request again until the answer contains a text, each text
// when it stands several times, for what one of the servers does a little later. Ignore names fields of the answer that
// are not compared, since one of the servers fills them in later. Only compares
// no more of a document than what is under names that contain a text. With "Body: long N"
// ${long} in the body is a text of N letters.
package differential

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kjson "sigs.k8s.io/json"
)

// Request is one request of the list.
type Request struct {
	Name   string
	Method string
	Path   string
	Header http.Header
	Body   string
	// Form is what the body is turned into before it is sent: cbor, hex, long with a
	// number, or "".
	Form string
	// Nobody says that the client does not say who it is.
	Nobody bool
	// Keep is field by the name it is remembered under.
	Keep map[string]string
	// Until is what the answer has to contain.
	Until []string
	Part
}

// Part is what of an answer is compared.
type Part struct {
	// Ignore are paths of fields that are not compared.
	Ignore []string
	// Only is a text; what is compared is named by something that contains it. ""
	// means everything.
	Only string
}

// Read reads the requests of those files of a folder whose name matches, in the
// order of the names.
func Read(folder, pattern string) ([]Request, error) {
	files, err := filepath.Glob(filepath.Join(folder, pattern+".txt"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var all []Request
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		prefix := strings.TrimLeft(strings.TrimSuffix(filepath.Base(file), ".txt"), "0123456789-")
		for i, text := range strings.Split("\n"+string(b), "\n== ") {
			if i == 0 {
				continue // what stands before the first request
			}
			r, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			r.Name = prefix + ": " + r.Name
			all = append(all, r)
		}
	}
	return all, nil
}

func parse(text string) (Request, error) {
	head, body, _ := strings.Cut(text, "\n\n")
	r := Request{Header: http.Header{}, Keep: map[string]string{}, Body: strings.TrimRight(body, "\n")}
	lines := bufio.NewScanner(strings.NewReader(head))
	for n := 0; lines.Scan(); n++ {
		line := lines.Text()
		switch {
		case n == 0:
			r.Name = line
		case strings.HasPrefix(line, "#"):
			n--
		case n == 1:
			var ok bool
			if r.Method, r.Path, ok = strings.Cut(line, " "); !ok {
				return r, fmt.Errorf("%s: %q is no request", r.Name, line)
			}
		default:
			name, value, ok := strings.Cut(line, ": ")
			if !ok {
				return r, fmt.Errorf("%s: %q is no header", r.Name, line)
			}
			r.set(name, value)
		}
	}
	if r.Method == "" {
		return r, fmt.Errorf("%s: no request", r.Name)
	}
	if r.Body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
		if r.Form == "cbor" || r.Form == "hex" {
			r.Header.Set("Content-Type", runtime.ContentTypeCBOR)
		}
	}
	return r, nil
}

// content is what is sent when text is the body.
func (r *Request) content(text string) ([]byte, error) {
	if size, is := strings.CutPrefix(r.Form, "long "); is {
		n, err := strconv.Atoi(size)
		return []byte(strings.ReplaceAll(text, "${long}", strings.Repeat("x", max(0, n)))), err
	}
	switch r.Form {
	case "":
		return []byte(text), nil
	case "hex":
		return hex.DecodeString(strings.Join(strings.Fields(text), ""))
	case "cbor":
		var v any
		if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(text), &v); err != nil {
			return nil, err
		}
		b, err := direct.Marshal(v)
		return append([]byte{0xd9, 0xd9, 0xf7}, b...), err
	default:
		return nil, fmt.Errorf("a body cannot be turned into %s", r.Form)
	}
}

func (r *Request) set(name, value string) {
	switch name {
	case "Keep":
		kept, field, _ := strings.Cut(value, " = ")
		r.Keep[kept] = field
	case "Body":
		r.Form = value
	case "Until":
		r.Until = append(r.Until, value)
	case "Only":
		r.Only = value
	case "Ignore":
		r.Ignore = append(r.Ignore, strings.Fields(value)...)
	case "Certificate":
		r.Nobody = value == "-"
	case "User", "Group":
		r.Header.Add("Impersonate-"+name, value)
	default:
		r.Header.Add(name, value)
	}
}
