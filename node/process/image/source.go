//go:build linux

package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
)

// longestDocument bounds manifests and configurations.
const longestDocument = 4 << 20

// source is an archive or a layout: files under names.
type source interface {
	open(name string) (io.ReadCloser, error)
	close() error
}

// folder is a layout.
type folder struct{ root *inside.Root }

func (f folder) open(name string) (io.ReadCloser, error) { return f.root.At(name, unix.O_RDONLY) }
func (f folder) close() error                            { return f.root.Close() }

// archive is a tar file, with where its files are in it.
type archive struct {
	file  *os.File
	files map[string]*io.SectionReader
}

func (a *archive) close() error { return a.file.Close() }

func (a *archive) open(name string) (io.ReadCloser, error) {
	section, ok := a.files[path.Clean(name)]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(io.NewSectionReader(section, 0, section.Size())), nil
}

// mostFiles bounds the files of an archive, which are blobs and documents.
const mostFiles = 100_000

// openArchive finds the files of a tar file. Old archives link a layer that
// several images have.
func openArchive(name string) (*archive, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	a := &archive{file: f, files: map[string]*io.SectionReader{}}
	links := map[string]string{}
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var at int64
		if err == nil {
			at, err = f.Seek(0, io.SeekCurrent)
		}
		if err == nil && len(a.files)+len(links) > mostFiles {
			err = errors.New("too many files")
		}
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		switch h.Typeflag {
		case tar.TypeReg:
			a.files[path.Clean(h.Name)] = io.NewSectionReader(f, at, h.Size)
		case tar.TypeSymlink:
			links[path.Clean(h.Name)] = path.Join(path.Dir(h.Name), h.Linkname)
		case tar.TypeLink:
			links[path.Clean(h.Name)] = path.Clean(h.Linkname)
		}
	}
	for from, to := range links {
		if section := a.files[to]; section != nil {
			a.files[from] = section
		}
	}
	return a, nil
}

// candidate is an image of a source.
type candidate struct {
	source source
	names  []string
	id     string // the digest of its configuration, after resolve
	digest string // that of its manifest
	config string // a file
	layers []string
	// digests are those of the layers as they lie there; empty if unknown.
	digests []string
}

// find finds the image of a full name among archives and layouts, whose source
// is then the caller's to close. Files that are neither are passed over.
func find(dir, name string) (*candidate, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var broken []error
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		src, err := openSource(at, e)
		if err != nil {
			broken = append(broken, err)
			continue
		}
		if src == nil {
			continue
		}
		found, err := among(src, name)
		if err == nil && found != nil {
			return found, nil
		}
		_ = src.close()
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", at, err))
		}
	}
	return nil, errors.Join(append([]error{fmt.Errorf("failed to resolve reference %q: %s: %w", name, name, ErrNotFound)}, broken...)...)
}

func openSource(at string, e fs.DirEntry) (source, error) {
	if info, err := os.Stat(at); err != nil {
		return nil, err
	} else if info.IsDir() {
		if _, err := os.Stat(filepath.Join(at, "index.json")); err != nil {
			return nil, nil //nolint:nilerr // it is no layout
		}
		root, err := inside.Open(at)
		if err != nil {
			return nil, err
		}
		return folder{root}, nil
	}
	if !strings.HasSuffix(e.Name(), ".tar") {
		return nil, nil
	}
	return openArchive(at)
}

// among looks for a full name in a source.
func among(src source, name string) (*candidate, error) {
	all, err := candidates(src)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if slices.ContainsFunc(c.names, func(carried string) bool {
			full, err := Normal(carried)
			return err == nil && full == name
		}) {
			return c, nil
		}
	}
	return nil, nil
}

func document(src source, name string, into any) ([]byte, error) {
	f, err := src.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, longestDocument+1))
	if err != nil {
		return nil, err
	}
	if len(b) > longestDocument {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, longestDocument)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// candidates reads the images of a source: those of an OCI layout, and those of
// an archive as docker saves it.
func candidates(src source) ([]*candidate, error) {
	var all []*candidate
	var index ociIndex
	if _, err := document(src, "index.json", &index); err == nil {
		for _, d := range index.Manifests {
			c, err := ociImage(src, d, 0)
			if err != nil {
				return nil, err
			}
			if c != nil {
				all = append(all, c)
			}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if _, err := document(src, "manifest.json", &saved); err == nil {
		for _, s := range saved {
			all = append(all, &candidate{source: src, names: s.RepoTags, config: s.Config, layers: s.Layers, digests: make([]string, len(s.Layers))})
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, c := range all {
		if err := c.resolve(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

type ociDescriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
	Platform    *struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

// here says whether what it describes may run on this machine.
func (d ociDescriptor) here() bool {
	return d.Platform == nil || (d.Platform.OS == "linux" && d.Platform.Architecture == runtime.GOARCH)
}

type ociIndex struct {
	Manifests []ociDescriptor `json:"manifests"`
}

// deepest bounds indexes in indexes.
const deepest = 4

// ociImage reads the image that a descriptor leads to; nil if there is none for
// this machine.
func ociImage(src source, d ociDescriptor, depth int) (*candidate, error) {
	if depth > deepest {
		return nil, errors.New("indexes are nested too deep")
	}
	if !d.here() {
		return nil, nil
	}
	name, err := blob(d.Digest)
	if err != nil {
		return nil, err
	}
	var m struct {
		ociIndex
		Config ociDescriptor   `json:"config"`
		Layers []ociDescriptor `json:"layers"`
	}
	b, err := document(src, name, &m)
	if err != nil {
		return nil, err
	}
	if err := same(b, d.Digest); err != nil {
		return nil, err
	}
	c := &candidate{source: src, digest: d.Digest, names: carried(d.Annotations)}
	for _, below := range m.Manifests {
		inner, err := ociImage(src, below, depth+1)
		if err != nil {
			return nil, err
		}
		if inner != nil {
			inner.names = append(inner.names, c.names...)
			return inner, nil
		}
	}
	if m.Config.Digest == "" {
		return nil, nil
	}
	if c.config, err = blob(m.Config.Digest); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		at, err := blob(l.Digest)
		if err != nil {
			return nil, err
		}
		c.layers = append(c.layers, at)
		c.digests = append(c.digests, l.Digest)
	}
	return c, nil
}

// carried are the names that annotations give an image. The first is containerd's
// and whole; the second may be a mere tag.
func carried(annotations map[string]string) []string {
	if name := annotations["io.containerd.image.name"]; name != "" {
		return []string{name}
	}
	if name := annotations["org.opencontainers.image.ref.name"]; name != "" {
		return []string{name}
	}
	return nil
}

// blob is where a layout keeps what has a digest.
func blob(digest string) (string, error) {
	hex, ok := strings.CutPrefix(digest, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", fmt.Errorf("unsupported digest %q", digest)
	}
	return "blobs/sha256/" + hex, nil
}
