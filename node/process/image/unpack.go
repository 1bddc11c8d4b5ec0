//go:build linux

package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
)

// Bounds of an image's files.
const (
	mostBytes   = 32 << 30
	mostEntries = 2_000_000
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// same says whether bytes have a digest.
func same(b []byte, digest string) error {
	if got := digestOf(b); got != digest {
		return fmt.Errorf("unexpected digest %s, expected %s", got, digest)
	}
	return nil
}

// configuration is what an image says of itself.
type configuration struct {
	Config struct {
		User       string
		Env        []string
		Entrypoint []string
		Cmd        []string
		WorkingDir string
		StopSignal string
	} `json:"config"`
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// resolve finds the ID of an image.
func (c *candidate) resolve() error {
	var conf configuration
	b, err := document(c.source, c.config, &conf)
	if err != nil {
		return err
	}
	c.id = digestOf(b)
	if hex, ok := strings.CutPrefix(c.config, "blobs/sha256/"); ok {
		return same(b, "sha256:"+hex)
	}
	return nil
}

// unpack unpacks an image below a folder.
func (c *candidate) unpack(below string) (*Image, error) {
	var conf configuration
	if _, err := document(c.source, c.config, &conf); err != nil {
		return nil, err
	}
	if len(conf.RootFS.DiffIDs) != len(c.layers) {
		return nil, fmt.Errorf("mismatched image rootfs and manifest layers: %d and %d", len(conf.RootFS.DiffIDs), len(c.layers))
	}
	tmp, err := os.MkdirTemp(below, ".new-")
	if err != nil {
		return nil, err
	}
	im := &Image{ID: c.id, Digest: c.digest, Process: Process(conf.Config)}
	if err := c.fill(tmp, im, conf.RootFS.DiffIDs); err != nil {
		return nil, errors.Join(err, removeAll(tmp))
	}
	dir := filepath.Join(below, strings.TrimPrefix(c.id, "sha256:"))
	if err := os.Rename(tmp, dir); err != nil {
		return nil, errors.Join(err, removeAll(tmp))
	}
	im.Root = filepath.Join(dir, "rootfs")
	return im, nil
}

func (c *candidate) fill(dir string, im *Image, diffs []string) error {
	// The root of an image is for all its users to enter.
	files := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(files, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(files, 0o755); err != nil {
		return err
	}
	root, err := inside.Open(files)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // only a handle to a folder
	u := &unpacker{root: root, owner: os.Geteuid() == 0}
	for i, name := range c.layers {
		f, err := c.source.open(name)
		if err != nil {
			return err
		}
		err = u.layer(f, c.digests[i], diffs[i])
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("layer %s: %w", name, err)
		}
	}
	if err := u.modes(); err != nil {
		return err
	}
	im.Size, im.Entries = u.bytes, u.entries
	return writeImage(dir, im)
}

// unpacker unpacks layers over each other.
type unpacker struct {
	root           *inside.Root
	owner          bool // files get their owners
	bytes, entries uint64
	// here are the paths that the layer at hand has brought.
	here map[string]bool
	// late are modes of folders, which are set when nothing more is written there.
	late map[string]fs.FileMode
}

// layer unpacks one layer, which has a digest as it lies there and one when it is
// unpacked.
func (u *unpacker) layer(from io.Reader, digest, diff string) error {
	packed, plain := sha256.New(), sha256.New()
	stream, err := decompress(io.TeeReader(from, packed))
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it was only read
	tee := io.TeeReader(stream, plain)
	u.here = map[string]bool{}
	for t := tar.NewReader(tee); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, t); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	for _, rest := range []io.Reader{tee, io.TeeReader(from, packed)} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return err
		}
	}
	if got := "sha256:" + hex.EncodeToString(plain.Sum(nil)); got != diff {
		return fmt.Errorf("unexpected diff id %s, expected %s", got, diff)
	}
	if got := "sha256:" + hex.EncodeToString(packed.Sum(nil)); digest != "" && got != digest {
		return fmt.Errorf("unexpected digest %s, expected %s", got, digest)
	}
	return nil
}

// decompress tells by its first bytes how a layer is compressed.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	head, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		return gzip.NewReader(b)
	case string(head) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

// Compat: how a layer says that files of those below it are gone.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// entry unpacks one entry of a layer.
func (u *unpacker) entry(h *tar.Header, body io.Reader) error {
	name := path.Clean("/" + h.Name)
	if u.entries++; u.entries > mostEntries {
		return errors.New("the image has too many files")
	}
	base := path.Base(name)
	switch {
	case base == opaque:
		return u.clear(path.Dir(name))
	case strings.HasPrefix(base, whiteout+whiteout):
		return nil // a note of the tool that made the layer
	case strings.HasPrefix(base, whiteout):
		return u.remove(path.Join(path.Dir(name), strings.TrimPrefix(base, whiteout)))
	}
	u.here[name] = true
	if name == "/" {
		u.later(name, h)
		return nil
	}
	above, base, err := u.root.Parent(name)
	if err != nil {
		return err
	}
	defer above.Close() //nolint:errcheck // only a handle to a folder
	return u.put(above, base, name, h, body)
}

// put makes a file in a folder, instead of what is there.
func (u *unpacker) put(above *os.File, base, name string, h *tar.Header, body io.Reader) error {
	dir := int(above.Fd())
	if err := u.clash(dir, base, h); err != nil {
		return err
	}
	mode := uint32(h.FileInfo().Mode().Perm())
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		// Until the end it is ours to write to.
		if err = unix.Mkdirat(dir, base, 0o700); errors.Is(err, unix.EEXIST) {
			err = nil
		}
		u.later(name, h)
	case tar.TypeReg:
		err = u.file(dir, base, body)
	case tar.TypeSymlink:
		err = unix.Symlinkat(h.Linkname, dir, base)
	case tar.TypeLink:
		return u.link(dir, base, h.Linkname)
	case tar.TypeFifo:
		err = unix.Mknodat(dir, base, unix.S_IFIFO|mode, 0)
	case tar.TypeChar, tar.TypeBlock:
		return nil // devices are the host's
	case tar.TypeXGlobalHeader:
		return nil
	default:
		return fmt.Errorf("unknown type %q", h.Typeflag)
	}
	if err != nil {
		return err
	}
	return u.attributes(dir, base, h)
}

// clash removes what is in the way; a folder stays for a folder.
func (u *unpacker) clash(dir int, base string, h *tar.Header) error {
	var st unix.Stat_t
	err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && h.Typeflag == tar.TypeDir {
		return nil
	}
	return os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", dir, base))
}

func (u *unpacker) file(dir int, base string, body io.Reader) error {
	fd, err := unix.Openat(dir, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	n, err := io.Copy(f, io.LimitReader(body, mostBytes-int64(u.bytes)+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if u.bytes += uint64(n); err == nil && u.bytes > mostBytes {
		err = errors.New("the image is too large")
	}
	return err
}

// link makes a second name of a file that the image has.
func (u *unpacker) link(dir int, base, target string) error {
	above, name, err := u.root.Parent(target)
	if err != nil {
		return err
	}
	defer above.Close() //nolint:errcheck // only a handle to a folder
	return unix.Linkat(int(above.Fd()), name, dir, base, 0)
}

// attributes sets owner and mode of what is no folder, and the owner of folders.
func (u *unpacker) attributes(dir int, base string, h *tar.Header) error {
	if u.owner {
		if err := unix.Fchownat(dir, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeFifo {
		if err := unix.Fchmodat(dir, base, bits(h), 0); err != nil {
			return err
		}
		for key, value := range h.PAXRecords {
			// File capabilities; only root may give them.
			if attr, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && u.owner && attr == "security.capability" {
				_ = unix.Setxattr(fmt.Sprintf("/proc/self/fd/%d/%s", dir, base), attr, []byte(value), 0)
			}
		}
	}
	at := unix.NsecToTimespec(h.ModTime.UnixNano())
	return unix.UtimesNanoAt(dir, base, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// bits are a file's mode with setuid, setgid and sticky.
func bits(h *tar.Header) uint32 { return uint32(h.Mode) & 0o7777 }

// later notes the mode of a folder.
func (u *unpacker) later(name string, h *tar.Header) {
	if u.late == nil {
		u.late = map[string]fs.FileMode{}
	}
	u.late[name] = fs.FileMode(bits(h))
}

// modes sets the modes of folders. Without root the folders stay ours to write
// to, so that they can be removed.
func (u *unpacker) modes() error {
	for name, mode := range u.late {
		f, err := u.root.At(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // a later layer has something else there
		}
		if err != nil {
			return err
		}
		if !u.owner {
			mode |= 0o700
		}
		err = unix.Chmod(inside.Handle(f), uint32(mode))
		_ = f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes what lower layers brought.
func (u *unpacker) remove(name string) error {
	if name == "/" || u.here[name] {
		return nil
	}
	above, base, err := u.root.Parent(name)
	if err != nil {
		return err
	}
	defer above.Close() //nolint:errcheck // only a handle to a folder
	return os.RemoveAll(filepath.Join(inside.Handle(above), base))
}

// clear removes from a folder all that lower layers brought.
func (u *unpacker) clear(name string) error {
	dir, err := u.root.MkdirAll(name, 0o755)
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // only a handle to a folder
	entries, err := os.ReadDir(inside.Handle(dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if u.here[path.Join(name, e.Name())] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(inside.Handle(dir), e.Name())); err != nil {
			return err
		}
	}
	return nil
}
