//go:build linux

// Package rootfs builds the files that a container sees, in a mount namespace of
// the calling process's own.
//
// In comes a Plan: an image's files or the host's, and what to mount over them.
// Out comes a folder that is the container's root; it goes with the namespace,
// so there is nothing to take apart. What always holds: a target is found as a
// process inside the root would find it, so no link of an image leads a mount
// out; and the host's own files stay as they are: where a target is missing on
// the host, the folder that lacks it is covered by one that has everything the
// folder had, and the target.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"setpoint.dev/setpoint/node/process/inside"
)

// Mount is a folder or file of the host that is seen at a path of the container.
type Mount struct {
	Source string `json:"source"`
	Target string `json:"target"`
	// ReadOnly is for the mount itself, Deep for those below it, too.
	ReadOnly bool `json:"readOnly,omitempty"`
	Deep     bool `json:"deep,omitempty"`
	// Follow lets what the host mounts below Source later on appear.
	Follow bool `json:"follow,omitempty"`
}

// Plan says what a container sees.
type Plan struct {
	// At is an empty folder that becomes the root.
	At string `json:"at"`
	// Image is a folder with the image's files; empty for the host's.
	Image string `json:"image,omitempty"`
	// Upper and Work are empty folders, for what the container writes over an image.
	Upper string `json:"upper,omitempty"`
	Work  string `json:"work,omitempty"`
	// ReadOnly is for the root itself, not for Mounts.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Masked are paths whose files are not to be seen, Fixed those not to be
	// written. Paths that are not there are left out.
	Masked []string `json:"masked,omitempty"`
	Fixed  []string `json:"fixed,omitempty"`
	// Mounts are made in this order.
	Mounts []Mount `json:"mounts,omitempty"`
	// User says that the namespace belongs to a user namespace.
	User bool `json:"user,omitempty"`
}

// kernels are the folders of the host that an image's root has, too.
var kernels = []string{"/proc", "/sys", "/dev"}

// builder is a root while it is built.
type builder struct {
	Plan
	root *inside.Root
	// covered are folders that were covered to have something more; volumes are
	// where mounts of the plan are, in which what is missing is made in place.
	covered, volumes []string
}

// Build builds the root in the mount namespace of the calling process, which
// nobody else is in.
func Build(p Plan) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	b := &builder{Plan: p}
	if err := b.base(); err != nil {
		return err
	}
	root, err := inside.Open(p.At)
	if err != nil {
		return err
	}
	b.root = root
	defer func() { _ = b.root.Close() }()
	if p.Image != "" {
		for _, dir := range kernels {
			if err := b.mount(Mount{Source: dir, Target: dir, Follow: true}); err != nil {
				return err
			}
		}
		b.volumes = nil
	}
	for _, m := range p.Mounts {
		if err := b.mount(m); err != nil {
			return err
		}
	}
	if err := b.hide(); err != nil {
		return err
	}
	return b.seal()
}

// hide covers what is not to be seen, and keeps what is not to be written.
func (b *builder) hide() error {
	each := func(paths []string, do func(at string, folder bool) error) error {
		for _, name := range paths {
			f, err := b.root.At(name, unix.O_PATH)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
				continue
			}
			if err != nil {
				return err
			}
			info, err := f.Stat()
			if err == nil {
				err = do(inside.Handle(f), info.IsDir())
			}
			_ = f.Close()
			if err != nil {
				return fmt.Errorf("cover %s: %w", name, err)
			}
		}
		return nil
	}
	// A handle is of what lies below a mount on it; the mount is found by its path.
	fixed := func(at string, _ bool) error {
		if err := unix.Mount(at, at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		where, err := os.Readlink(at)
		if err != nil {
			return err
		}
		return readOnly(where, false)
	}
	masked := func(at string, folder bool) error {
		if folder {
			return unix.Mount("tmpfs", at, "tmpfs", unix.MS_RDONLY, "")
		}
		return unix.Mount("/dev/null", at, "", unix.MS_BIND, "")
	}
	if err := each(b.Fixed, fixed); err != nil {
		return err
	}
	return each(b.Masked, masked)
}

// base mounts the image, or the host's files, as the root.
func (b *builder) base() error {
	if b.Image == "" {
		if err := unix.Mount("/", b.At, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("take the host's files as root: %w", err)
		}
		if !b.ReadOnly {
			return nil
		}
		return readOnly(b.At, true)
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", escape(b.Image), escape(b.Upper), escape(b.Work))
	if b.User {
		options += ",userxattr"
	}
	if err := unix.Mount("overlay", b.At, "overlay", 0, options); err != nil {
		return fmt.Errorf("take the image's files as root: overlay: %w", err)
	}
	return nil
}

// escape writes a path as overlayfs reads one in its options.
func escape(p string) string {
	return strings.NewReplacer(`\`, `\\`, `:`, `\:`, `,`, `\,`).Replace(p)
}

// mount makes one mount.
func (b *builder) mount(m Mount) error {
	failed := func(err error) error { return fmt.Errorf("mount %s at %s: %w", m.Source, m.Target, err) }
	source, err := os.Stat(m.Source)
	if err != nil {
		return failed(err)
	}
	target, err := b.target(m.Target, source.IsDir())
	if err != nil {
		return failed(err)
	}
	defer target.Close() //nolint:errcheck // only a handle to a file
	info, err := target.Stat()
	if err != nil {
		return failed(err)
	}
	if info.IsDir() != source.IsDir() {
		return failed(errors.New("not a directory: are you trying to mount a directory onto a file (or vice-versa)"))
	}
	if err := unix.Mount(m.Source, inside.Handle(target), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return failed(err)
	}
	// The handle is of what lies below; the mount is found by its path.
	over, err := b.root.At(m.Target, unix.O_PATH)
	if err != nil {
		return failed(err)
	}
	defer over.Close() //nolint:errcheck // only a handle to a file
	kind := uintptr(unix.MS_PRIVATE)
	if m.Follow {
		kind = unix.MS_SLAVE
	}
	if err := unix.Mount("", inside.Handle(over), "", kind|unix.MS_REC, ""); err != nil {
		return failed(err)
	}
	if m.ReadOnly {
		if err := readOnly(inside.Handle(over), m.Deep); err != nil {
			return failed(err)
		}
	}
	where, err := os.Readlink(inside.Handle(over))
	b.volumes = append(b.volumes, where)
	return err
}

// ours says whether a folder is one in which files may be made: one that was
// covered, a volume, or an image's.
func (b *builder) ours(where string) bool {
	if slices.Contains(b.covered, where) {
		return true
	}
	below := func(dir string) bool { return strings.HasPrefix(where+"/", dir+"/") }
	if slices.ContainsFunc(b.volumes, below) {
		return true
	}
	return b.Image != "" && !slices.ContainsFunc(kernels, func(dir string) bool { return below(b.At + dir) })
}

// target opens what will be mounted on, and makes it if it is missing.
func (b *builder) target(name string, folder bool) (*os.File, error) {
	f, err := b.root.At(name, unix.O_PATH)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := b.cover(path.Dir(path.Clean("/" + name))); err != nil {
		return nil, err
	}
	if folder {
		return b.root.MkdirAll(name, 0o755)
	}
	above, base, err := b.root.Parent(name)
	if err != nil {
		return nil, err
	}
	defer above.Close() //nolint:errcheck // only a handle to a folder
	fd, err := unix.Openat(int(above.Fd()), base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Close(fd); err != nil {
		return nil, err
	}
	return b.root.At(name, unix.O_PATH)
}

// most is how many files a folder may have that is covered: each is a mount.
const most = 4096

// cover covers the deepest folder that is there, of a path and those above it,
// by one of ours with the same in it, unless it is ours.
func (b *builder) cover(name string) error {
	var below *os.File
	var err error
	for {
		if below, err = b.root.At(name, unix.O_PATH|unix.O_DIRECTORY); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || name == "/" {
			return err
		}
		name = path.Dir(name)
	}
	defer below.Close() //nolint:errcheck // only a handle to a folder
	where, err := os.Readlink(inside.Handle(below))
	if err != nil {
		return err
	}
	if b.ours(where) {
		return nil
	}
	entries, err := os.ReadDir(inside.Handle(below))
	if err != nil {
		return err
	}
	if len(entries) > most {
		return fmt.Errorf("%s has more than %d files: it cannot be given one more", name, most)
	}
	info, err := below.Stat()
	if err != nil {
		return err
	}
	options := fmt.Sprintf("mode=%#o", info.Mode().Perm())
	if err := unix.Mount("tmpfs", inside.Handle(below), "tmpfs", 0, options); err != nil {
		return err
	}
	for _, e := range entries {
		if err := again(inside.Handle(below), where, e); err != nil {
			return fmt.Errorf("show %s again: %w", path.Join(name, e.Name()), err)
		}
	}
	b.covered = append(b.covered, where)
	if where != b.At {
		return nil
	}
	// The root itself is covered: what is below it is no longer the root.
	root, err := inside.Open(b.At)
	if err != nil {
		return err
	}
	b.root, root = root, b.root
	return root.Close()
}

// again shows in a covered folder what it had before.
func again(below, where string, e fs.DirEntry) error {
	from, to := path.Join(below, e.Name()), path.Join(where, e.Name())
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(to, nil, 0o600); err != nil {
			return err
		}
	}
	err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has ended meanwhile, as sockets do
	}
	return err
}

// seal makes the root read-only, if that is asked for, without what was mounted.
func (b *builder) seal() error {
	if !b.ReadOnly {
		return nil
	}
	for _, dir := range b.covered {
		if err := readOnly(dir, false); err != nil {
			return err
		}
	}
	if b.Image == "" {
		return nil // it was read-only from the start
	}
	return readOnly(b.At, false)
}

// readOnly makes a mount read-only, and those below it, if asked.
func readOnly(at string, deep bool) error {
	flags := uint(0)
	if deep {
		flags = unix.AT_RECURSIVE
	}
	return unix.MountSetattr(unix.AT_FDCWD, at, flags, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}
