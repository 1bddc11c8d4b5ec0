//go:build linux

package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"setpoint.dev/setpoint/node/process/image"
)

// file is an entry of a layer; its type is told by what it has.
type file struct {
	name, body, link string
	mode             int64
	kind             byte
}

func layer(t *testing.T, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Linkname: f.link, Mode: f.mode, Typeflag: f.kind, Size: int64(len(f.body))}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeDir && f.mode == 0 {
			h.Mode = 0o755
		}
		h.Uid, h.Gid = os.Getuid(), os.Getgid()
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

// layout writes an OCI layout with one image.
func layout(t *testing.T, dir, name string, pack func([]byte) []byte, layers ...[]byte) {
	t.Helper()
	blob := func(b []byte) map[string]any {
		path := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(sum(b), "sha256:"))
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, b, 0o600))
		return map[string]any{"digest": sum(b), "size": len(b)}
	}
	var diffs []string
	var packed []map[string]any
	for _, l := range layers {
		diffs = append(diffs, sum(l))
		packed = append(packed, blob(pack(l)))
	}
	config := blob(document(t, map[string]any{
		"config": map[string]any{"User": "7:8", "Env": []string{"A=b"}, "Entrypoint": []string{"/run"}, "Cmd": []string{"it"}, "WorkingDir": "/w", "StopSignal": "SIGINT"},
		"rootfs": map[string]any{"diff_ids": diffs},
	}))
	manifest := blob(document(t, map[string]any{"config": config, "layers": packed}))
	manifest["platform"] = map[string]string{"os": "linux", "architecture": runtime.GOARCH}
	other := map[string]any{"digest": "sha256:" + strings.Repeat("0", 64), "platform": map[string]string{"os": "plan9", "architecture": "mips"}}
	inner := blob(document(t, map[string]any{"manifests": []any{other, manifest}}))
	inner["annotations"] = map[string]string{"org.opencontainers.image.ref.name": name}
	must(t, os.WriteFile(filepath.Join(dir, "index.json"), document(t, map[string]any{"manifests": []any{inner}}), 0o600))
}

// saved writes an archive as docker saves one.
func saved(t *testing.T, path, name string, layers ...[]byte) {
	t.Helper()
	var diffs, names []string
	var files []file
	for i, l := range layers {
		diffs = append(diffs, sum(l))
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		files = append(files, file{name: names[i], body: string(l)})
	}
	config := document(t, map[string]any{"rootfs": map[string]any{"diff_ids": diffs}})
	manifest := document(t, []any{map[string]any{"Config": "c.json", "RepoTags": []string{name}, "Layers": names}})
	files = append(files, file{name: "c.json", body: string(config)}, file{name: "manifest.json", body: string(manifest)})
	must(t, os.WriteFile(path, layer(t, files...), 0o600))
}

func document(t *testing.T, value any) []byte {
	t.Helper()
	b, err := json.Marshal(value)
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func plain(b []byte) []byte { return b }

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func zstandard(b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		return nil
	}
	return w.EncodeAll(b, nil)
}

func store(t *testing.T) (s *image.Store, archives, unpacked string) {
	t.Helper()
	archives, unpacked = t.TempDir(), t.TempDir()
	s, err := image.Open(archives, unpacked)
	must(t, err)
	return s, archives, unpacked
}

// tree says what lies in a folder.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	got := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			got[rel] = info.Mode().String()
		case d.Type()&fs.ModeSymlink != 0:
			got[rel], _ = os.Readlink(path)
		default:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			got[rel] = string(b)
		}
		return nil
	}))
	return got
}

func TestLayers(t *testing.T) {
	below := layer(t,
		file{name: "etc/", kind: tar.TypeDir}, file{name: "etc/kept", body: "kept"}, file{name: "etc/gone", body: "gone"},
		file{name: "etc/changed", body: "old"}, file{name: "opaque/a", body: "a"}, file{name: "opaque/b", body: "b"},
		file{name: "dir/sub/x", body: "x"}, file{name: "becomes-file/x", body: "x"}, file{name: "becomes-dir", body: "f"},
		file{name: "private/", kind: tar.TypeDir, mode: 0o700}, file{name: "absolute", link: "/run", kind: tar.TypeSymlink},
	)
	above := layer(t,
		file{name: "etc/.wh.gone"}, file{name: "etc/changed", body: "new"}, file{name: "opaque/c", body: "c"}, file{name: "opaque/.wh..wh..opq"},
		file{name: ".wh.dir"}, file{name: "becomes-file", body: "now"}, file{name: "becomes-dir/", kind: tar.TypeDir},
		file{name: "hard", link: "etc/kept", kind: tar.TypeLink}, file{name: "soft", link: "../../etc/kept", kind: tar.TypeSymlink},
		file{name: "absolute/inside", body: "through a link"}, file{name: ".wh..wh.plnk/note", body: "of a tool"}, file{name: ".wh.never"},
	)
	want := map[string]string{
		"etc": "drwxr-xr-x", "etc/kept": "kept", "etc/changed": "new", "opaque": "drwxr-xr-x", "opaque/c": "c", "becomes-file": "now",
		"becomes-dir": "drwxr-xr-x", "hard": "kept", "soft": "../../etc/kept", "private": "drwx------", "absolute": "/run", "run": "drwxr-xr-x", "run/inside": "through a link",
	}
	for name, write := range map[string]func(t *testing.T, archives string){
		"layout": func(t *testing.T, dir string) {
			layout(t, filepath.Join(dir, "l"), "example.org/a:1", plain, below, above)
		},
		"gzip": func(t *testing.T, dir string) {
			layout(t, filepath.Join(dir, "l"), "example.org/a:1", gzipped, below, above)
		},
		"zstd": func(t *testing.T, dir string) {
			layout(t, filepath.Join(dir, "l"), "example.org/a:1", zstandard, below, above)
		},
		"docker saved": func(t *testing.T, dir string) { saved(t, filepath.Join(dir, "a.tar"), "example.org/a:1", below, above) },
	} {
		t.Run(name, func(t *testing.T) {
			s, archives, unpacked := store(t)
			write(t, archives)
			im, err := s.Pull("example.org/a:1")
			must(t, err)
			got := tree(t, im.Root)
			for path := range got { // notes of tools are for nobody
				if strings.HasPrefix(path, ".wh.") {
					delete(got, path)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			again, err := image.Open(archives, unpacked)
			must(t, err)
			back, err := again.Get("example.org/a:1")
			must(t, err)
			if diff := cmp.Diff(im, back); diff != "" {
				t.Errorf("after a restart: %s", diff)
			}
			must(t, again.Remove("example.org/a:1"))
			if left := tree(t, unpacked); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestWhatAnImageSays(t *testing.T) {
	s, archives, _ := store(t)
	layout(t, filepath.Join(archives, "l"), "busybox:1.36", gzipped, layer(t, file{name: "a", body: "b"}))
	if _, err := s.Get("busybox:1.36"); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("before it was pulled: %v", err)
	}
	im, err := s.Pull("busybox:1.36")
	must(t, err)
	want := image.Process{User: "7:8", Env: []string{"A=b"}, Entrypoint: []string{"/run"}, Cmd: []string{"it"}, WorkingDir: "/w", StopSignal: "SIGINT"}
	if diff := cmp.Diff(want, im.Process); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"docker.io/library/busybox:1.36"}, im.Names); diff != "" {
		t.Error(diff)
	}
	for _, ref := range []string{"docker.io/library/busybox:1.36", im.ID, strings.TrimPrefix(im.ID, "sha256:"), im.Digests()[0]} {
		if got, err := s.Get(ref); err != nil || got.ID != im.ID {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if im.Size != 1 || im.Entries != 1 {
		t.Errorf("size %d, entries %d", im.Size, im.Entries)
	}
}

// TestNoEscape: whatever an archive holds, nothing outside of the image's folder
// is touched.
func TestNoEscape(t *testing.T) {
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	for name, layers := range map[string][][]byte{
		"dots":            {layer(t, file{name: "../../../../../../../.." + outside + "/new", body: "x"})},
		"absolute":        {layer(t, file{name: outside + "/new", body: "x"})},
		"through a link":  {layer(t, file{name: "l", link: outside, kind: tar.TypeSymlink}, file{name: "l/new", body: "x"})},
		"onto a link":     {layer(t, file{name: "l", link: secret, kind: tar.TypeSymlink}, file{name: "l", body: "x"})},
		"whiteout":        {layer(t, file{name: "l", link: outside, kind: tar.TypeSymlink}), layer(t, file{name: "l/.wh.secret"})},
		"opaque":          {layer(t, file{name: "l", link: outside, kind: tar.TypeSymlink}), layer(t, file{name: "l/.wh..wh..opq"})},
		"whiteout up":     {layer(t, file{name: ".wh..."})},
		"hard link":       {layer(t, file{name: "h", link: "../../../../../../../.." + secret, kind: tar.TypeLink}, file{name: "h", body: "x"})},
		"mode of a link":  {layer(t, file{name: "l", link: outside, kind: tar.TypeSymlink}, file{name: "l/", kind: tar.TypeDir, mode: 0o777})},
		"dangling parent": {layer(t, file{name: "l", link: outside + "/made", kind: tar.TypeSymlink}, file{name: "l/new", body: "x"})},
	} {
		t.Run(name, func(t *testing.T) {
			s, archives, _ := store(t)
			saved(t, filepath.Join(archives, "a.tar"), "example.org/a:1", layers...)
			_, _ = s.Pull("example.org/a:1") // it may be refused, too
			if diff := cmp.Diff(map[string]string{"secret": "secret"}, tree(t, outside)); diff != "" {
				t.Error(diff)
			}
			if info, err := os.Stat(outside); err != nil || info.Mode().Perm() == 0o777 {
				t.Errorf("the folder outside: %v %v", info.Mode(), err)
			}
		})
	}
}

func TestBroken(t *testing.T) {
	for name, test := range map[string]struct {
		write func(t *testing.T, dir string)
		want  string
	}{
		"nothing there": {func(*testing.T, string) {}, "not found"},
		"no archive":    {func(t *testing.T, dir string) { must(t, os.WriteFile(filepath.Join(dir, "a.tar"), []byte("x"), 0o600)) }, "not found"},
		"another layer": {func(t *testing.T, dir string) {
			layout(t, dir+"/l", "example.org/a:1", plain, layer(t, file{name: "a", body: "1"}))
			swap(t, dir+"/l", `"diff_ids"`, "sha256:")
		}, "unexpected digest"},
		"a short layer": {func(t *testing.T, dir string) {
			layout(t, dir+"/l", "example.org/a:1", func(b []byte) []byte { return gzipped(b)[:20] }, layer(t, file{name: "a", body: "1"}))
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s, archives, unpacked := store(t)
			test.write(t, archives)
			_, err := s.Pull("example.org/a:1")
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
			if left := tree(t, unpacked); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// swap changes a digest in the blob that has a text.
func swap(t *testing.T, dir, having, what string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	must(t, err)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		must(t, err)
		if at := bytes.Index(b, []byte(what)); at >= 0 && bytes.Contains(b, []byte(having)) {
			b[at+len(what)] ^= 1
			must(t, os.WriteFile(path, b, 0o600))
		}
	}
}
