//go:build linux

package inside_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"setpoint.dev/setpoint/node/process/inside"
)

// build makes a root with links that would lead out of it, beside a secret.
func build(t *testing.T) (*inside.Root, string) {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"etc", "bin", "usr/bin"} {
		must(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("outside"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "etc", "file"), []byte("inside"), 0o600))
	must(t, os.WriteFile(filepath.Join(root, "bin", "tool"), nil, 0o755))
	must(t, os.WriteFile(filepath.Join(root, "bin", "text"), nil, 0o644))
	for link, target := range map[string]string{
		"absolute": "/etc/file", "up": "../../../../../etc/file", "out": "../secret", "dir": "/etc", "missing": "/made/here", "loop": "loop", "usr/bin/linked": "/bin/tool",
	} {
		must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	r, err := inside.Open(root)
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r, root
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpen(t *testing.T) {
	r, _ := build(t)
	for name, want := range map[string]string{
		"etc/file": "inside", "/etc/file": "inside", "../../etc/file": "inside", "absolute": "inside", "up": "inside", "dir/file": "inside",
		"dir/../etc/file": "inside", "out": "no such file", "loop": "too many levels", "/secret": "no such file",
	} {
		f, err := r.Open(name)
		got := ""
		if err == nil {
			b, rerr := io.ReadAll(f)
			must(t, rerr)
			got = string(b)
			must(t, f.Close())
		} else {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestMkdirAll(t *testing.T) {
	r, root := build(t)
	for name, want := range map[string]string{
		"a/b/c": "a/b/c", "dir/below": "etc/below", "missing/more": "made/here/more", "../../x": "x", "loop/y": "",
	} {
		f, err := r.MkdirAll(name, 0o755)
		if (err != nil) != (want == "") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		must(t, f.Close())
		if info, err := os.Stat(filepath.Join(root, want)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExecutable(t *testing.T) {
	r, _ := build(t)
	for name, test := range map[string]struct{ program, search, dir, want string }{
		"searched":       {"tool", "/none:/bin", "/", "/bin/tool"},
		"a link":         {"linked", "/usr/bin", "/", "/usr/bin/linked"},
		"a path":         {"/bin/tool", "", "/", "/bin/tool"},
		"from a folder":  {"./tool", "", "/bin", "/bin/tool"},
		"nowhere":        {"none", "/bin", "/", `exec: "none": executable file not found in $PATH`},
		"no path at all": {"tool", "", "/", `exec: "tool": executable file not found in $PATH`},
		"no program":     {"text", "/bin", "/", `exec: "text": permission denied`},
		"a folder":       {"/etc", "", "/", "is a directory"},
		"no such path":   {"/bin/none", "", "/", `exec: "/bin/none": stat /bin/none: no such file or directory`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := r.Executable(test.program, test.search, test.dir)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
