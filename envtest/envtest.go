// Package envtest makes the folder that operator test suites take their control
// plane from (KUBEBUILDER_ASSETS), and plays the etcd in it.
//
// In comes this program; out come small files kube-apiserver, etcd and kubectl
// that run it, as a folder or as an archive that setup-envtest unpacks. What
// always holds:
//   - A file that is asked for --help answers from a text beside it: suites ask
//     at every start, and nothing has to be started for the answer.
//   - A file says who started it, so that what it runs ends with that process
//     even if it dies before the program has begun.
//   - A folder is complete when it is there, and is never changed: its name is
//     made from what is in it.
package envtest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Help is what the stand-ins print when asked what they can do.
type Help struct{ APIServer, Etcd string }

// file is one of the assets.
type file struct {
	name string
	mode fs.FileMode
	data string
}

// assets are the files of a folder whose program is found at a path, which is
// quoted for the shell already.
func assets(program string, help Help) []file {
	script := func(name string) file {
		return file{name, 0o755, fmt.Sprintf(`#!/bin/sh
[ "$1" = --help ] && exec cat "${0%%/*}/%[1]s.help"
exec %[2]s %[1]s --parent="$PPID" "$@"
`, name, program)}
	}
	return []file{
		script("kube-apiserver"),
		script("etcd"),
		{"kubectl", 0o755, "#!/bin/sh\nexec " + program + " kubectl \"$@\"\n"},
		{"kube-apiserver.help", 0o644, help.APIServer},
		{"etcd.help", 0o644, help.Etcd},
	}
}

// quote makes a text one word for the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Folder returns a folder of assets under parent that run a program, and makes
// it if it is not there.
func Folder(parent, program string, help Help) (string, error) {
	files := assets(quote(program), help)
	sum := sha256.New()
	for _, f := range files {
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", f.name, len(f.data), f.data) // a sum takes everything
	}
	dir := filepath.Join(parent, hex.EncodeToString(sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("envtest: %w", err)
	}
	temp, err := os.MkdirTemp(parent, ".new-")
	if err != nil {
		return "", fmt.Errorf("envtest: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // renamed unless something failed
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(temp, f.name), []byte(f.data), f.mode); err != nil {
			return "", fmt.Errorf("envtest: %w", err)
		}
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return "", fmt.Errorf("envtest: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil && !isThere(dir) { // somebody else may have been faster
		return "", fmt.Errorf("envtest: %w", err)
	}
	return dir, nil
}

func isThere(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}
