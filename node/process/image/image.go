//go:build linux

// Package image keeps images: archives and layouts that lie in a folder become
// folders of files.
//
// In come the names of images; out come folders that hold an image's files, and
// what the image says about its process. The folder of archives is to this node
// what a registry is to others: nothing is unpacked before it is pulled, and what
// is removed can be pulled again. What always holds: every layer has the digest
// that the image says it has; no entry of an archive, whatever it is called or
// links to, is written outside of the image's folder; an image is there whole or
// not at all.
package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
)

// ErrNotFound says that an image is not there.
var ErrNotFound = errors.New("not found")

// Image is an image that was unpacked.
type Image struct {
	// ID is the digest of its configuration.
	ID string `json:"id"`
	// Names are those it goes by, in full.
	Names []string `json:"names"`
	// Digest is that of its manifest; empty if it came without one.
	Digest string `json:"digest,omitempty"`
	// Size is that of its files, Entries their number.
	Size    uint64 `json:"size"`
	Entries uint64 `json:"entries"`
	Process
	// Root is the folder of its files.
	Root string `json:"-"`
}

// Process is what an image says of the process that runs in it.
type Process struct {
	User       string   `json:"user,omitempty"`
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	StopSignal string   `json:"stopSignal,omitempty"`
}

// Store keeps images.
type Store struct {
	archives, unpacked string

	pull sync.Mutex // one image is unpacked at a time
	mu   sync.Mutex // guards the field below
	byID map[string]*Image
}

// Open reads which images were unpacked. Halves of images are removed.
func Open(archives, unpacked string) (*Store, error) {
	s := &Store{archives: archives, unpacked: unpacked, byID: map[string]*Image{}}
	entries, err := os.ReadDir(unpacked)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		dir := filepath.Join(unpacked, e.Name())
		im, err := load(dir)
		if err != nil {
			if err := removeAll(dir); err != nil {
				return nil, err
			}
			continue
		}
		s.byID[im.ID] = im
	}
	return s, nil
}

func load(dir string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil {
		return nil, err
	}
	im := &Image{Root: filepath.Join(dir, "rootfs")}
	if err := json.Unmarshal(b, im); err != nil {
		return nil, err
	}
	return im, nil
}

// removeAll removes a folder of an image, with folders that nobody may enter.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// Normal is the full form of an image's name.
func Normal(name string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("failed to parse image reference %q: %w", name, err)
	}
	return named.String(), nil
}

// Get finds an image by its ID, or a name.
func (s *Store) Get(ref string) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getLocked(ref)
}

func (s *Store) getLocked(ref string) (*Image, error) {
	for _, id := range []string{ref, "sha256:" + ref} {
		if im := s.byID[id]; im != nil {
			return im, nil
		}
	}
	name, err := Normal(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	for _, im := range s.byID {
		if slices.Contains(im.Names, name) || slices.Contains(im.Digests(), name) {
			return im, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", ref, ErrNotFound)
}

// Digests are the image's names with its digest instead of a tag.
func (im *Image) Digests() []string {
	digests := map[string]bool{}
	for _, name := range im.Names {
		named, err := reference.ParseNormalizedNamed(name)
		if err == nil && im.Digest != "" {
			digests[named.Name()+"@"+im.Digest] = true
		}
	}
	return slices.Sorted(maps.Keys(digests))
}

// List gives all images, by ID.
func (s *Store) List() []*Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.byID))
	slices.SortFunc(all, func(a, b *Image) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Pull unpacks the image of a name that lies in the folder of archives. One that
// has been unpacked stays as it is, if it is still what the name means.
func (s *Store) Pull(ref string) (*Image, error) {
	name, err := Normal(ref)
	if err != nil {
		return nil, err
	}
	s.pull.Lock()
	defer s.pull.Unlock()
	found, err := find(s.archives, name)
	if errors.Is(err, ErrNotFound) {
		// Its archive may be gone since.
		if im, gerr := s.Get(ref); gerr == nil {
			return im, nil
		}
	}
	if err != nil {
		return nil, err
	}
	defer found.source.close() //nolint:errcheck // it was only read
	if have, err := s.Get(found.id); err == nil {
		return s.name(have, name)
	}
	im, err := found.unpack(s.unpacked)
	if err != nil {
		return nil, fmt.Errorf("failed to pull and unpack image %q: %w", name, err)
	}
	return s.name(im, name)
}

// name has an image go by a name, and no other image.
func (s *Store) name(im *Image, name string) (*Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, other := range s.byID {
		if id == im.ID || !slices.Contains(other.Names, name) {
			continue
		}
		changed := *other
		changed.Names = slices.DeleteFunc(slices.Clone(other.Names), func(n string) bool { return n == name })
		if err := s.saveLocked(&changed); err != nil {
			return nil, err
		}
	}
	changed := *im
	if !slices.Contains(im.Names, name) {
		changed.Names = append(slices.Clone(im.Names), name)
	}
	return &changed, s.saveLocked(&changed)
}

// saveLocked writes what is known of an image.
func (s *Store) saveLocked(im *Image) error {
	if err := writeImage(filepath.Dir(im.Root), im); err != nil {
		return err
	}
	s.byID[im.ID] = im
	return nil
}

func writeImage(dir string, im *Image) error {
	b, err := json.Marshal(im)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "image.json")
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Remove removes an image, by ID or name. It is no error if it is not there.
func (s *Store) Remove(ref string) error {
	s.pull.Lock()
	defer s.pull.Unlock()
	s.mu.Lock()
	im, err := s.getLocked(ref)
	if err != nil {
		s.mu.Unlock()
		return nil // it is not there
	}
	delete(s.byID, im.ID)
	s.mu.Unlock()
	// Without its description it is no image; its files may take a while.
	dir := filepath.Dir(im.Root)
	if err := os.Remove(filepath.Join(dir, "image.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeAll(dir)
}
