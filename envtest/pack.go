package envtest

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Package says what to pack, and for whom.
type Package struct {
	// Program is the file to pack, built for OS and Arch.
	Program, OS, Arch string
	// Version is the Kubernetes release that the archive is offered as.
	Version string
	// URL is where the archive will be found; "" means beside the index.
	URL  string
	Help Help
}

// version is a release as setup-envtest writes it.
var version = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

// Pack writes an archive into a folder and returns its path and the entry of it
// in an index that setup-envtest reads. The archive has everything in one
// folder, as regular files: setup-envtest drops links.
func Pack(dir string, p Package) (path, entry string, err error) {
	release := strings.TrimPrefix(p.Version, "v")
	if !version.MatchString(release) {
		return "", "", fmt.Errorf("envtest: %q is not a version like 1.36.0", p.Version)
	}
	name := fmt.Sprintf("envtest-v%s-%s-%s.tar.gz", release, p.OS, p.Arch)
	path = filepath.Join(dir, name)
	out, err := os.Create(path)
	if err != nil {
		return "", "", fmt.Errorf("envtest: %w", err)
	}
	sum := sha512.New()
	err = writeArchive(io.MultiWriter(out, sum), p)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", "", errors.Join(fmt.Errorf("envtest: %w", err), os.Remove(path))
	}
	link := name
	if p.URL != "" {
		link = strings.TrimSuffix(p.URL, "/") + "/" + name
	}
	entry = fmt.Sprintf("releases:\n  v%s:\n    %s:\n      hash: %s\n      selfLink: %s\n",
		release, name, hex.EncodeToString(sum.Sum(nil)), link)
	return path, entry, nil
}

// inArchive is where the program is when a file of the archive runs.
const inArchive = `"${0%/*}/setpoint"`

// writeArchive packs a program with its assets. The same input makes the same
// archive.
func writeArchive(w io.Writer, p Package) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	program, err := os.Open(p.Program)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // it was only read
	info, err := program.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(header("setpoint", info.Size(), 0o755)); err != nil {
		return err
	}
	if _, err := io.Copy(t, program); err != nil {
		return err
	}
	for _, f := range assets(inArchive, p.Help) {
		if err := t.WriteHeader(header(f.name, int64(len(f.data)), int64(f.mode))); err != nil {
			return err
		}
		if _, err := io.WriteString(t, f.data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func header(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: "controller-tools/envtest/" + name, Size: size, Mode: mode, ModTime: time.Unix(0, 0)}
}
