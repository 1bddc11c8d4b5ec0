package envtest

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is a stand-in for the program that says how it was run.
func program(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "setpoint")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestFolder(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "it's a cache")
	help := Help{APIServer: "  --secure-port\n", Etcd: "  --unsafe-no-fsync\n"}
	runs := program(t, t.TempDir())
	dir, err := Folder(parent, runs, help)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Folder(parent, runs, help); again != dir || err != nil {
		t.Errorf("the second time it is %s, %v", again, err)
	}
	if other, err := Folder(parent, runs+"2", help); other == dir || err != nil {
		t.Errorf("for another program it is %s, %v", other, err)
	}
	for _, test := range []struct{ file, arg, want string }{
		{"kube-apiserver", "--help", help.APIServer},
		{"etcd", "--help", help.Etcd},
		{"kubectl", "version", "kubectl version\n"},
	} {
		if got := output(t, filepath.Join(dir, test.file), test.arg); got != test.want {
			t.Errorf("%s %s says %q, want %q", test.file, test.arg, got, test.want)
		}
	}
	got := output(t, filepath.Join(dir, "etcd"), "--data-dir=a b")
	if !strings.HasPrefix(got, "etcd --parent=") || !strings.HasSuffix(got, " --data-dir=a b\n") {
		t.Errorf("etcd is run as %q", got)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 2 {
		t.Errorf("the cache has %v, %v", entries, err)
	}
}

func TestPack(t *testing.T) {
	dir := t.TempDir()
	path, entry, err := Pack(dir, Package{Program: program(t, t.TempDir()), OS: "linux", Arch: "amd64", Version: "v1.36.0", URL: "https://example.com/x/", Help: Help{Etcd: "help"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "envtest-v1.36.0-linux-amd64.tar.gz"); path != want {
		t.Errorf("the archive is %s, want %s", path, want)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha512.Sum512(data)
	for _, want := range []string{"  v1.36.0:\n", hex.EncodeToString(sum[:]), "selfLink: https://example.com/x/envtest-v1.36.0-linux-amd64.tar.gz\n"} {
		if !strings.Contains(entry, want) {
			t.Errorf("the entry lacks %q:\n%s", want, entry)
		}
	}
	out := unpack(t, path)
	if got := output(t, filepath.Join(out, "etcd"), "--help"); got != "help" {
		t.Errorf("etcd says %q", got)
	}
	if got := output(t, filepath.Join(out, "kubectl"), "get"); got != "kubectl get\n" {
		t.Errorf("kubectl is run as %q", got)
	}
	if _, _, err := Pack(dir, Package{Version: "latest"}); err == nil {
		t.Error("any word is a version")
	}
}

// unpack does as setup-envtest: regular files, all in one folder.
func unpack(t *testing.T, path string) string {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }() // it was only read
	z, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil || h.Typeflag != tar.TypeReg {
			t.Fatalf("%+v, %v", h, err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), data, h.FileInfo().Mode()&0o555); err != nil {
			t.Fatal(err)
		}
	}
}

// address is one that nobody listens on.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // it is only for its number
	return l.Addr().String()
}

func TestEtcd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	at := "http://" + address(t)
	want := Place{Folder: "/data", NoSync: true}
	ended := make(chan error, 1)
	go func() { ended <- Etcd{URLs: []string{at}, Place: want}.Serve(ctx) }()
	for {
		response, err := http.Get(at + "/health") //nolint:noctx // the test ends it
		if err == nil {
			if response.StatusCode != http.StatusOK {
				t.Errorf("health is %s", response.Status)
			}
			_ = response.Body.Close() // it was only read
			break
		}
	}
	if got, err := Ask(t.Context(), at+"/"); got != want || err != nil {
		t.Errorf("the place is %+v, %v", got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnotherEtcdIsRefused(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	for _, at := range []string{s.URL, "http://" + address(t), "::"} {
		if _, err := Ask(t.Context(), at); err == nil || !strings.Contains(err.Error(), "--etcd-servers") {
			t.Errorf("%s: %v", at, err)
		}
	}
	if err := (Etcd{URLs: []string{"https://127.0.0.1:0"}}).Serve(t.Context()); err == nil {
		t.Error("https is served")
	}
}
