// Package crds takes the CustomResourceDefinitions that others ship, and shows
// that each of them installs and is served.
//
// They come from Go modules, which modules.txt names: path, version and
// checksum. `make deps` fetches them; from then on all is read from the module
// cache.
package crds

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

//go:embed modules.txt
var modules string

// folders are where the modules lie. An error says which are missing.
func folders(ctx context.Context, elsewhere string) ([]string, error) {
	args := []string{"mod", "download", "-json"}
	sums := map[string]string{}
	for line := range strings.Lines(modules) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("modules.txt: %q is not a path, a version and a checksum", line)
		}
		args = append(args, f[0]+"@"+f[1])
		sums[f[0]] = f[2]
	}
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = elsewhere // in no module
	c.Env = append(os.Environ(), "GOPROXY=off", "GONOSUMDB=*", "GOFLAGS=-mod=mod", "GOWORK=off")
	out, failed := c.Output() // what is wrong with a module is in what it prints
	var dirs []string
	var errs []error
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var m struct{ Path, Dir, Sum, Error string }
		if err := d.Decode(&m); err != nil {
			return nil, errors.Join(failed, err)
		}
		switch {
		case m.Error != "":
			errs = append(errs, errors.New(m.Error))
		case m.Sum != sums[m.Path]:
			errs = append(errs, fmt.Errorf("%s has the checksum %s", m.Path, m.Sum))
		default:
			dirs = append(dirs, m.Dir)
		}
	}
	if failed != nil && len(errs) == 0 {
		errs = append(errs, failed)
	}
	return dirs, errors.Join(errs...)
}

// found is what the modules hold.
type found struct {
	// definitions by name, each as the first file has it.
	definitions map[string]*unstructured.Unstructured
	// examples of objects by group and kind.
	examples map[schema.GroupKind][]*unstructured.Unstructured
}

// What is kept of examples for one kind.
const maxExamples = 12

var (
	divider   = regexp.MustCompile(`(?m)^---.*$`)
	isKind    = regexp.MustCompile(`(?m)^kind: *["']?(\w+)`)
	hasGroup  = regexp.MustCompile(`(?m)^apiVersion: *["']?([\w.-]+)/`)
	unwelcome = regexp.MustCompile(`\{\{|\$\{`) // of a template
)

// find reads all YAML files of the modules: definitions first, then examples of
// what they define.
func find(dirs []string) (*found, error) {
	f := &found{map[string]*unstructured.Unstructured{}, map[schema.GroupKind][]*unstructured.Unstructured{}}
	var others []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, doc := range divider.Split(string(text), -1) {
				kind := isKind.FindStringSubmatch(doc)
				switch {
				case kind == nil || unwelcome.MatchString(doc):
				case kind[1] == "CustomResourceDefinition":
					f.define(doc)
				case hasGroup.MatchString(doc):
					others = append(others, doc)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, d := range f.definitions {
		group, _, _ := unstructured.NestedString(d.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		f.examples[schema.GroupKind{Group: group, Kind: kind}] = nil
	}
	for _, doc := range others {
		gk := schema.GroupKind{Group: hasGroup.FindStringSubmatch(doc)[1], Kind: isKind.FindStringSubmatch(doc)[1]}
		if have, wanted := f.examples[gk]; wanted && len(have) < maxExamples {
			if u := object(doc); u != nil {
				f.examples[gk] = append(have, u)
			}
		}
	}
	return f, nil
}

// define keeps a definition that is one: part of the files are meant to be
// wrong, and say so by their lack of names.
func (f *found) define(doc string) {
	u := object(doc)
	if u == nil {
		return
	}
	group, _, _ := unstructured.NestedString(u.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(u.Object, "spec", "names", "plural")
	if group != "" && u.GetName() == plural+"."+group && f.definitions[u.GetName()] == nil {
		f.definitions[u.GetName()] = u
	}
}

// object reads a document; nil when it is not an object.
func object(doc string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil || u.Object == nil {
		return nil
	}
	return u
}

// typed is a stored definition in the type of v1.
func typed(u *unstructured.Unstructured) (*apiextensions.CustomResourceDefinition, error) {
	crd := &apiextensions.CustomResourceDefinition{}
	return crd, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, crd)
}
