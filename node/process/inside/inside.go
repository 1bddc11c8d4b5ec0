//go:build linux

// Package inside reads and writes below a folder as if it were the root of all
// files.
//
// In come paths as a process sees them whose root is that folder; out come open
// files. What always holds: links are followed as such a process would follow
// them, so no path leads out of the folder, whatever lies in it and whoever
// changes it meanwhile. The kernel does the walk (openat2).
package inside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is a folder that is the root of all files.
type Root struct{ dir *os.File }

// Open opens a folder as a root.
func Open(dir string) (*Root, error) {
	f, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Root{dir: f}, nil
}

// Close lets go of the folder.
func (r *Root) Close() error { return r.dir.Close() }

// tries bounds the walks that are begun anew because files moved meanwhile.
const tries = 64

// At opens what a path names, with the flags of open(2).
func (r *Root) At(name string, flags int) (*os.File, error) {
	name = path.Clean("/" + name)
	how := &unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for range tries {
		fd, err := unix.Openat2(int(r.dir.Fd()), name, how)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: unix.EAGAIN}
}

// Open opens a file for reading.
func (r *Root) Open(name string) (*os.File, error) { return r.At(name, unix.O_RDONLY|unix.O_NOCTTY) }

// Parent opens the folder that a path's last part lies in, and gives that part.
// Folders that are missing are made. The last part is not followed.
func (r *Root) Parent(name string) (*os.File, string, error) {
	name = path.Clean("/" + name)
	if name == "/" {
		return nil, "", &fs.PathError{Op: "open", Path: name, Err: unix.EISDIR}
	}
	above, err := r.MkdirAll(path.Dir(name), 0o755)
	return above, path.Base(name), err
}

// MkdirAll opens a folder, and makes it and those above it if they are missing.
func (r *Root) MkdirAll(name string, mode fs.FileMode) (*os.File, error) {
	const folder = unix.O_PATH | unix.O_DIRECTORY
	name = path.Clean("/" + name)
	if f, err := r.At(name, folder); err == nil || !errors.Is(err, fs.ErrNotExist) || name == "/" {
		return f, err
	}
	above, err := r.MkdirAll(path.Dir(name), mode)
	if err != nil {
		return nil, err
	}
	defer above.Close() //nolint:errcheck // only a handle to a folder
	base := path.Base(name)
	switch err := unix.Mkdirat(int(above.Fd()), base, uint32(mode.Perm())); {
	case errors.Is(err, unix.EEXIST):
		// A link to what is not there, or somebody was faster.
		if target, err := readlinkat(above, base); err == nil {
			return r.follow(name, target, mode)
		}
	case err != nil:
		return nil, &fs.PathError{Op: "mkdir", Path: name, Err: err}
	default:
		// The umask of the process is not the business of what is made here.
		if err := unix.Fchmodat(int(above.Fd()), base, uint32(mode.Perm()), 0); err != nil {
			return nil, &fs.PathError{Op: "chmod", Path: name, Err: err}
		}
	}
	return r.At(name, folder)
}

// follow makes the folder that a link at name points to.
func (r *Root) follow(name, target string, mode fs.FileMode) (*os.File, error) {
	if !path.IsAbs(target) {
		target = path.Join(path.Dir(name), target)
	}
	if target = path.Clean("/" + target); strings.HasPrefix(target+"/", name+"/") {
		return nil, &fs.PathError{Op: "mkdir", Path: name, Err: unix.ELOOP}
	}
	return r.MkdirAll(target, mode)
}

func readlinkat(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// Handle is a path to an open file, for calls that take paths.
func Handle(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// Executable finds a program as execvp does, among the folders of a search path
// and from a working folder. It gives the program's path inside the root.
func (r *Root) Executable(program, search, dir string) (string, error) {
	if strings.Contains(program, "/") {
		full := program
		if !path.IsAbs(full) {
			full = path.Join("/", dir, full)
		}
		if err := r.executable(full); err != nil {
			return "", fmt.Errorf("exec: %q: stat %s: %w", program, full, err)
		}
		return full, nil
	}
	var denied bool
	for folder := range strings.SplitSeq(search, ":") {
		if !path.IsAbs(folder) {
			continue
		}
		full := path.Join(folder, program)
		err := r.executable(full)
		if err == nil {
			return full, nil
		}
		denied = denied || errors.Is(err, fs.ErrPermission)
	}
	if denied {
		return "", fmt.Errorf("exec: %q: permission denied", program)
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", program)
}

func (r *Root) executable(name string) error {
	f, err := r.At(name, unix.O_PATH)
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			return pe.Err
		}
		return err
	}
	defer f.Close() //nolint:errcheck // only a handle to a file
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("is a directory: %w", fs.ErrPermission)
	}
	if info.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}
