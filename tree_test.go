// Package setpoint_test checks that the tree is the architecture: who imports
// whom, and that every package says what it is.
package setpoint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "setpoint.dev/setpoint"

// mayImport says which rooms a room may import. A room is a folder at the
// root; what lies below it belongs to it. Tests may import what they like.
var mayImport = map[string][]string{
	"api":        {},
	"metrics":    {},
	"pki":        {},
	"store":      {},
	"patch":      {"api"},
	"kinds":      {"api", "patch"},
	"crd":        {"api", "kinds", "patch"},
	"watch":      {"store"},
	"client":     {},
	"controller": {"client", "metrics"},
	"scheduler":  {"client", "metrics"},
	"node":       {"client", "metrics"},
	"envtest":    {},
	"admission":  {"api", "kinds", "patch"},
	"server":     {"admission", "api", "client", "patch", "kinds", "crd", "metrics"},
	"app":        {"admission", "api", "client", "controller", "pki", "crd", "kinds", "metrics", "node", "patch", "scheduler", "server", "store", "watch"},
	"initclient": {},
	"examples":   {"initclient"},
	"cli":        {"admission", "app", "envtest", "node", "server"},
	"cmd":        {"cli"},
	"test":       {"app", "store", "watch"},

	"setpointtest": {}, // a module of its own
}

// reaches are the parts of a room that may import more than the room may.
var reaches = map[string][]string{
	"server/rest":  {"store", "watch"},
	"server/route": {"store"},
	"test/images":  {"node"}, // it runs the containerd of tests
}

// sources yields every Go file of this module with its folder, parsed no
// further than asked.
func sources(t *testing.T, mode parser.Mode, visit func(path string, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, mode)
		if err != nil {
			return err
		}
		visit(path, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImportsRunOneWay(t *testing.T) {
	sources(t, parser.ImportsOnly, func(path string, file *ast.File) {
		room, _, inRoom := strings.Cut(filepath.ToSlash(path), "/")
		if !inRoom || strings.HasSuffix(path, "_test.go") {
			return
		}
		allowed, known := mayImport[room]
		if !known {
			t.Errorf("%s: room %s is not in the table", path, room)
		}
		for _, spec := range file.Imports {
			imported, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			other, _, _ := strings.Cut(imported, "/")
			part := filepath.ToSlash(filepath.Dir(path))
			if ours && other != room && !slices.Contains(allowed, other) && !slices.Contains(reaches[part], other) {
				t.Errorf("%s imports %s, which %s may not", path, imported, room)
			}
		}
	})
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	said := map[string]bool{}
	sources(t, parser.ImportsOnly|parser.ParseComments, func(path string, file *ast.File) {
		dir := filepath.Dir(path)
		said[dir] = said[dir] || file.Doc != nil
	})
	for dir, ok := range said {
		if !ok && dir != "." {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

func TestTheTableHasNoRoomThatIsGone(t *testing.T) {
	for room := range mayImport {
		if matches, err := filepath.Glob(room); err != nil || len(matches) == 0 {
			t.Errorf("room %s is in the table but not in the tree", room)
		}
	}
}
