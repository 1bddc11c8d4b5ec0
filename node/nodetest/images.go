package nodetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The images that every runtime for tests has.
const (
	PauseImage   = "registry.k8s.io/pause:3.10.2"
	BusyboxImage = "docker.io/library/busybox:1.36"
)

// Images are what every runtime for tests has: the process of a sandbox, and
// a shell with small programs. Scratch is a folder for what is built.
func Images(scratch string) ([]Image, error) {
	pause, err := PauseLayer(scratch)
	if err != nil {
		return nil, err
	}
	busybox, err := BusyboxLayer()
	if err != nil {
		return nil, err
	}
	return []Image{
		{Names: []string{PauseImage}, Layers: []*Layer{pause}, Entrypoint: []string{"/pause"}, User: "65535:65535"},
		{Names: []string{BusyboxImage}, Layers: []*Layer{busybox}, Cmd: []string{"sh"}},
	}, nil
}

// PauseLayer has the process of a sandbox, which is built for it.
func PauseLayer(scratch string) (*Layer, error) {
	_, self, _, _ := runtime.Caller(0)
	exe := filepath.Join(scratch, "pause")
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", exe, "./pause")
	c.Dir = filepath.Dir(self)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pause is not built: %w: %s", err, out)
	}
	l := NewLayer()
	l.HostFile("pause", 0o755, exe)
	return l, nil
}

// The users that an image knows.
const (
	Passwd = "root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/usr/sbin:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n"
	Group  = "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n"
)

// BusyboxLayer has the folders and users that programs expect, and a static
// busybox under the names of its programs.
func BusyboxLayer() (*Layer, error) {
	exe, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("no busybox, which Debian has in busybox-static: %w", err)
	}
	names, err := exec.Command(exe, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("programs of busybox: %w", err)
	}
	l := NewLayer()
	for _, dir := range []string{"dev", "proc", "sys", "run", "home", "usr/bin", "usr/sbin", "usr/local/bin", "sbin", "var/log", "var/run", "mnt", "opt"} {
		l.Dir(dir, 0o755)
	}
	l.Dir("root", 0o700)
	l.Dir("tmp", 0o1777)
	l.Dir("var/tmp", 0o1777)
	l.File("etc/passwd", 0o644, Passwd)
	l.File("etc/group", 0o644, Group)
	l.HostFile("bin/busybox", 0o755, exe)
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			l.Link("bin/"+name, "/bin/busybox")
		}
	}
	return l, nil
}
