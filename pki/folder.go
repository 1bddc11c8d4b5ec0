package pki

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// folder is where files are read from and written to; without a dir it holds
// nothing and forgets what it is given.
type folder struct {
	dir     string
	pending []file // put, not yet flushed
}

type file struct {
	name string
	data []byte
}

func openFolder(dir string) (*folder, error) {
	if dir == "" {
		return &folder{}, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &folder{dir: dir}, closeToOthers(dir, 0o700)
}

// closeToOthers takes rights from all but the owner: a folder may be older than
// its use, and copies lose modes. What is closed already, perhaps on a disk
// that cannot be written, is left alone.
func closeToOthers(path string, mode fs.FileMode) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return os.Chmod(path, mode)
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// pair reads a certificate with its key; nil when there is no such file.
func (f *folder) pair(name string) (*pair, error) { return read(f, name, decodePair) }

// key reads a private key; nil when there is no such file.
func (f *folder) key(name string) (*ecdsa.PrivateKey, error) { return read(f, name, decodeKey) }

func read[T any](f *folder, name string, decode func([]byte) (*T, error)) (*T, error) {
	if f.dir == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := closeToOthers(f.path(name), 0o600); err != nil {
		return nil, err
	}
	v, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; restore it, or remove it to have a new one made", f.path(name), err)
	}
	return v, nil
}

// put notes a file to be written by flush.
func (f *folder) put(name string, data []byte) {
	if f.dir != "" {
		f.pending = append(f.pending, file{name, data})
	}
}

// flush writes what was put: each file beside its place and synced, all of
// them at once because the syncs are what takes time; then renamed in the
// order they were put, so that an authority is there before what it signed;
// then the folder is synced.
func (f *folder) flush() error {
	if len(f.pending) == 0 {
		return nil
	}
	temps := make([]string, len(f.pending))
	defer func() {
		for _, temp := range temps {
			if temp != "" {
				_ = os.Remove(temp) // gone already unless something failed
			}
		}
	}()
	var g errgroup.Group
	for i, p := range f.pending {
		g.Go(func() (err error) {
			temps[i], err = f.writeTemp(p)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, p := range f.pending {
		if err := os.Rename(temps[i], f.path(p.name)); err != nil {
			return err
		}
		temps[i] = ""
	}
	f.pending = nil
	return syncDir(f.dir)
}

// writeTemp writes a file under another name; os.CreateTemp makes it 0600.
func (f *folder) writeTemp(p file) (name string, err error) {
	w, err := os.CreateTemp(f.dir, "."+p.name+".*")
	if err != nil {
		return "", err
	}
	_, err = w.Write(p.data)
	if err == nil {
		err = w.Sync()
	}
	return w.Name(), errors.Join(err, w.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
