package envtest

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// release is what the archive is offered as.
const release = "1.36.0"

// setup runs setup-envtest with a store of its own, and returns what it says.
func setup(t *testing.T, store string, stdin []byte, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "setup-envtest", "--bin-dir", store}, args...)...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("setup-envtest %v: %v\n%s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// writable lets the test's folder be removed: setup-envtest takes the right to
// write away from what it unpacks.
func writable(t *testing.T, dir string) {
	t.Cleanup(func() {
		_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error { return os.Chmod(path, 0o700) }) // removing says what is wrong
	})
}

// The archive is found by an index and taken from a file, as setup-envtest does
// it, and what it unpacks runs.
func TestSetupEnvtest(t *testing.T) {
	dir := t.TempDir()
	site := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer site.Close()
	index, err := exec.CommandContext(t.Context(), Binary(t), "envtest", "pack", "--version", release, "--output", dir, "--url", site.URL).Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "index.yaml"), index, 0o600); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(filepath.Join(dir, "envtest-v"+release+"-"+runtime.GOOS+"-"+runtime.GOARCH+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the archive has %d MiB", len(archive)>>20)
	t.Run("by an index", func(t *testing.T) {
		store := t.TempDir()
		writable(t, store)
		tryOut(t, setup(t, store, nil, "use", "1.36.x", "--index", site.URL+"/index.yaml", "-p", "path"))
	})
	t.Run("from a file", func(t *testing.T) {
		store := t.TempDir()
		writable(t, store)
		setup(t, store, archive, "sideload", release)
		tryOut(t, setup(t, store, nil, "use", "-i", release, "-p", "path"))
	})
}

// tryOut starts a control plane from a folder.
func tryOut(t *testing.T, assets string) {
	t.Helper()
	if want := release + "-" + runtime.GOOS + "-" + runtime.GOARCH; filepath.Base(assets) != want {
		t.Errorf("the folder is %s, want one that is called %s", assets, want)
	}
	configMap(t, client(t, start(t, assets)), "m", nil)
}
