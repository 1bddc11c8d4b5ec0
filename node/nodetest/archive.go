package nodetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Image is a container image that is made here, since no registry is within
// reach of a test.
type Image struct {
	// Names are the full references that it goes by. Each becomes an image of its
	// own: of two names of one digest a runtime reports either for both.
	Names []string
	// Layers lie on each other, the first one lowest.
	Layers []*Layer
	// Entrypoint, Cmd and User say how its process starts.
	Entrypoint, Cmd []string
	User            string
}

// Layer is a tree of files, as a tar. The same files give the same digest.
type Layer struct {
	data   bytes.Buffer
	tar    *tar.Writer
	seen   map[string]bool
	err    error
	digest string
}

// NewLayer is a layer without files.
func NewLayer() *Layer {
	l := &Layer{seen: map[string]bool{}}
	l.tar = tar.NewWriter(&l.data)
	return l
}

// made is when every file of every image was made.
var made = time.Unix(1700000000, 0).UTC()

// put adds an entry with the folders above it, unless it is there.
func (l *Layer) put(h *tar.Header, body io.Reader) {
	name := strings.Trim(h.Name, "/")
	if l.err != nil || name == "" || l.seen[name] {
		return
	}
	if above := path.Dir(name); above != "." {
		l.Dir(above, 0o755)
	}
	l.seen[name] = true
	h.Name, h.ModTime = name, made
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	if l.err = l.tar.WriteHeader(h); l.err == nil && body != nil {
		_, l.err = io.Copy(l.tar, body)
	}
}

// Dir adds a folder.
func (l *Layer) Dir(name string, mode int64) {
	l.put(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode}, nil)
}

// Link adds a symbolic link.
func (l *Layer) Link(name, target string) {
	l.put(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil)
}

// File adds a file.
func (l *Layer) File(name string, mode int64, body string) {
	l.put(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(body))}, strings.NewReader(body))
}

// HostFile adds a file of this machine.
func (l *Layer) HostFile(name string, mode int64, from string) {
	f, err := os.Open(from)
	if err != nil {
		l.fail(err)
		return
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		l.fail(err)
		return
	}
	l.put(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size()}, f)
}

// HostTree adds what lies below a folder of this machine, as root's, but for
// what leave names by its path below the folder.
func (l *Layer) HostTree(root string, leave func(rel string) bool) {
	l.fail(filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if leave(rel) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := permissions(info.Mode()); {
		case d.IsDir():
			l.Dir(rel, mode)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			l.Link(rel, target)
		case info.Mode().IsRegular():
			l.HostFile(rel, mode, p)
		}
		return l.err
	}))
}

// permissions are the bits of a mode as a tar has them.
func permissions(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for bit, tarBit := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			bits |= tarBit
		}
	}
	return bits
}

func (l *Layer) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// close ends the layer. It can be closed again.
func (l *Layer) close() error {
	if l.err != nil || l.digest != "" {
		return l.err
	}
	if err := l.tar.Close(); err != nil {
		return err
	}
	l.digest = digest(l.data.Bytes())
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// descriptor names a part of an image by what is in it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    map[string]string `json:"platform,omitempty"`
}

const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// platform is what images are made for.
var platform = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}

// WriteArchive writes images as one OCI layout in a tar, which container
// runtimes import.
func WriteArchive(w io.Writer, images ...Image) error {
	out := NewLayer() // a layout is a tree of files, too
	out.File("oci-layout", 0o644, `{"imageLayoutVersion":"1.0.0"}`)
	blob := func(mediaType string, data []byte) descriptor {
		d := descriptor{MediaType: mediaType, Digest: digest(data), Size: len(data)}
		out.File("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), 0o644, string(data))
		return d
	}
	index := []descriptor{}
	for _, im := range images {
		layers, diffs := []descriptor{}, []string{}
		for _, l := range im.Layers {
			if err := l.close(); err != nil {
				return err
			}
			layers = append(layers, blob(layerType, l.data.Bytes()))
			diffs = append(diffs, l.digest) // it is not compressed
		}
		for _, name := range im.Names {
			m, err := manifest(im, name, layers, diffs, blob)
			if err != nil {
				return err
			}
			index = append(index, m)
		}
	}
	data, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": index})
	if err != nil {
		return err
	}
	out.File("index.json", 0o644, string(data))
	if err := out.close(); err != nil {
		return err
	}
	_, err = out.data.WriteTo(w)
	return err
}

// manifest adds an image under one of its names.
func manifest(im Image, name string, layers []descriptor, diffs []string, blob func(string, []byte) descriptor) (descriptor, error) {
	type process struct {
		Env             []string
		Labels          map[string]string
		Entrypoint, Cmd []string `json:",omitempty"`
		User            string   `json:",omitempty"`
	}
	config, err := json.Marshal(map[string]any{
		"architecture": platform["architecture"], "os": platform["os"],
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
		"config": process{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Labels:     map[string]string{"org.opencontainers.image.title": "stand-in for " + name},
			Entrypoint: im.Entrypoint, Cmd: im.Cmd, User: im.User,
		},
	})
	if err != nil {
		return descriptor{}, err
	}
	data, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": blob(configType, config), "layers": layers,
	})
	if err != nil {
		return descriptor{}, err
	}
	m := blob(manifestType, data)
	m.Platform = platform
	m.Annotations = map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
	}
	return m, nil
}
