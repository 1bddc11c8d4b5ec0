// Command images makes the container images that the conformance specs start,
// and runs a containerd that has them:
//
//	images -bin FOLDER -work FOLDER
//
// No registry is asked. The first folder holds the programs that test/e2e/build.sh
// builds; the rest is Debian's, fetched by apt into the second, which can be used
// again, and unpacked there without running anything of it. The images are
// stand-ins: they have the names of the originals and do what the specs need.
// It prints the socket of containerd and runs it until it is told to end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"setpoint.dev/setpoint/node/nodetest"
)

const (
	registry = "registry.k8s.io/"
	tests    = registry + "e2e-test-images/"
)

// tools are Debian's packages with what agnhost's image has beside agnhost.
var tools = []string{
	"bash", "coreutils", "curl", "bind9-dnsutils", "bind9-host", "netcat-openbsd", "iproute2", "iperf", "util-linux", "libc-bin", "hostname",
}

func main() {
	bin := flag.String("bin", "", "folder with agnhost, nnp, localhost.crt and localhost.key")
	work := flag.String("work", "", "folder for what is fetched")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *bin, *work)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, work string) (err error) {
	if bin == "" || work == "" {
		return errors.New("-bin and -work are needed")
	}
	if err := nodetest.Possible(); err != nil {
		return err
	}
	images, err := standIns(bin, work)
	if err != nil {
		return err
	}
	r, err := nodetest.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for _, image := range images {
		if err := r.Load(ctx, image); err != nil {
			return err
		}
	}
	fmt.Println(r.Socket)
	<-ctx.Done()
	return nil
}

// standIns makes the images.
func standIns(bin, work string) ([]nodetest.Image, error) {
	busybox, err := nodetest.BusyboxLayer()
	if err != nil {
		return nil, err
	}
	// Debian's busybox runs programs of its own before those on the path, and
	// drops variables that are no identifiers. Specs rely on neither.
	shell, err := debian(work, "shell", "bash")
	if err != nil {
		return nil, err
	}
	shell.Link("bin/sh", "bash")
	more, err := debian(work, "tools", tools...)
	if err != nil {
		return nil, err
	}
	more.Link("bin/nc", "nc.openbsd")
	more.File("etc/nsswitch.conf", 0o644, "passwd: files\ngroup: files\nhosts: files dns\n")
	agnhost := agnhostLayer(bin)
	base := []*nodetest.Layer{busybox, shell}
	with := func(layers ...*nodetest.Layer) []*nodetest.Layer {
		return append(append([]*nodetest.Layer(nil), base...), layers...)
	}
	serve := []string{"httpd", "-f", "-p", "80", "-h", "/usr/share/nginx/html"}
	return []nodetest.Image{
		{Names: []string{tests + "busybox:1.37.0-1"}, Layers: base, Cmd: []string{"sh"}},
		{Names: []string{tests + "agnhost:2.63.0", tests + "agnhost:2.55"}, Layers: with(more, agnhost), Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		{Names: []string{tests + "nautilus:1.8"}, Layers: with(more, agnhost, picture("nautilus")), Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		{Names: []string{tests + "kitten:1.8"}, Layers: with(more, agnhost, picture("kitten")), Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		{Names: []string{tests + "nginx:1.15-4", tests + "nginx:1.27-0"}, Layers: with(page()), Cmd: serve},
		{Names: []string{tests + "nonroot:1.5"}, Layers: base, Cmd: []string{"sh"}, User: "1234"},
		{Names: []string{tests + "nonewprivs:1.4"}, Layers: with(program(bin, "nnp", "usr/local/bin/nnp", 0o6755)), Cmd: []string{"nnp"}},
	}, nil
}

// agnhostLayer has agnhost, the users that specs run it as, and the name of the
// system that its image is made from, which a spec looks for.
func agnhostLayer(bin string) *nodetest.Layer {
	l := program(bin, "agnhost", "agnhost", 0o755)
	l.Link("agnhost-2", "agnhost")
	l.Dir("uploads", 0o755)
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		l.HostFile(name, 0o644, filepath.Join(bin, name))
	}
	l.File("etc/passwd", 0o644, nodetest.Passwd+"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")
	l.File("etc/group", 0o644, nodetest.Group+"user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")
	l.File("etc/os-release", 0o644, "ID=stand-in\nPRETTY_NAME=\"stand-in for an image based on Alpine Linux\"\n")
	return l
}

// picture is what a web page shows.
func picture(of string) *nodetest.Layer {
	l := nodetest.NewLayer()
	l.File("data.json", 0o644, "{\n  \"image\": \""+of+".jpg\"\n}\n")
	l.File(of+".jpg", 0o644, "stand-in for a picture\n")
	return l
}

// page is what a web server shows.
func page() *nodetest.Layer {
	l := nodetest.NewLayer()
	l.File("usr/share/nginx/html/index.html", 0o644, "<title>Welcome to nginx!</title>\nA stand-in, served by busybox.\n")
	return l
}

// program is one that was built.
func program(bin, name, at string, mode int64) *nodetest.Layer {
	l := nodetest.NewLayer()
	l.HostFile(at, mode, filepath.Join(bin, name))
	return l
}
