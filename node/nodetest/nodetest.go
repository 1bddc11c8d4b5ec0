// Package nodetest gives tests a container runtime: a containerd of their own,
// with its own folders, socket and pod network, and images that are made on the
// spot. A test gets it by one call, which skips the test, and says why, where
// this machine cannot run one; at the end of the test nothing of it is left.
package nodetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is a container runtime of a test.
type Runtime struct {
	// Socket is where it serves CRI, as a path.
	Socket string
	// Dir is a folder with all that it keeps, Log a file with all that it says.
	Dir, Log string
	// Bridge is the network interface of its pods, Subnet their addresses.
	Bridge, Subnet string

	process *exec.Cmd
}

// settings of containerd. Compat: a negative oom_score_adj needs a right that
// root in a container may lack, and every sandbox asks for one.
var settings = template.Must(template.New("").Parse(`version = 2
root = "{{.Dir}}/root"
state = "{{.Dir}}/state"
[grpc]
  address = "{{.Socket}}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{{.Snapshotter}}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Plugins}}"
    conf_dir = "{{.Dir}}/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{{.Dir}}/hosts.d"
`))

// network is how pods get addresses: by a bridge of the test's own.
var network = template.Must(template.New("").Parse(`{"cniVersion": "1.0.0", "name": "{{.Bridge}}", "plugins": [
  {"type": "bridge", "bridge": "{{.Bridge}}", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "{{.Dir}}/addresses", "ranges": [[{"subnet": "{{.Subnet}}"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}]}
`))

// started numbers the runtimes of this process.
var started atomic.Int32

// plugins are where Debian and others have the programs of CNI.
var plugins = []string{"/usr/lib/cni", "/opt/cni/bin"}

// Containerd starts a containerd that ends with the test. It skips the test
// where there is none, or nobody who may run it.
func Containerd(t testing.TB) *Runtime {
	t.Helper()
	if err := Possible(); err != nil {
		t.Skip(err)
	}
	r, err := Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("containerd of the test: %v", err)
		}
	})
	return r
}

// Possible says why no containerd can be started here, if none can.
func Possible() error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	for _, program := range []string{"containerd", "runc", "ctr", "busybox", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("no %s on this machine (Debian's packages containerd, runc, busybox-static and iproute2 have it)", program)
		}
	}
	if programs() == "" {
		return errors.New("no CNI plugins on this machine (Debian's package containernetworking-plugins has them)")
	}
	return nil
}

// programs is the folder with the programs of CNI; "" when there is none.
func programs() string {
	for _, dir := range plugins {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return dir
		}
	}
	return ""
}

// Open starts a containerd with the images that tests need. Close ends it.
func Open(ctx context.Context) (*Runtime, error) {
	dir, err := os.MkdirTemp("", "setpoint-containerd-") // sockets have short names
	if err != nil {
		return nil, err
	}
	n := started.Add(1)
	r := &Runtime{
		Dir: dir, Socket: filepath.Join(dir, "containerd.sock"), Log: filepath.Join(dir, "log"),
		Bridge: fmt.Sprintf("sp%d-%d", os.Getpid()%1000000, n),
		Subnet: fmt.Sprintf("10.%d.%d.0/24", 64+os.Getpid()/256%64, (os.Getpid()+int(n))%256),
	}
	if err := r.start(programs()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := r.load(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// start starts containerd with settings of its own.
func (r *Runtime) start(bin string) error {
	in := map[string]string{"Dir": r.Dir, "Socket": r.Socket, "Pause": PauseImage, "Plugins": bin, "Bridge": r.Bridge, "Subnet": r.Subnet, "Snapshotter": snapshotter(r.Dir)}
	for name, text := range map[string]*template.Template{"config.toml": settings, "net.d/10-setpoint.conflist": network} {
		var b bytes.Buffer
		if err := text.Execute(&b, in); err != nil {
			return err
		}
		file := filepath.Join(r.Dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return r.Start()
}

// snapshotter is overlayfs where the folder's file system can carry one.
func snapshotter(dir string) string {
	parts := map[string]string{"lowerdir": "lower", "upperdir": "upper", "workdir": "work"}
	options := []string{}
	for option, name := range parts {
		name = filepath.Join(dir, "overlay", name)
		if err := os.MkdirAll(name, 0o755); err != nil {
			return "native"
		}
		options = append(options, option+"="+name)
	}
	on := filepath.Join(dir, "overlay", "on")
	if os.Mkdir(on, 0o755) != nil || unix.Mount("overlay", on, "overlay", 0, strings.Join(options, ",")) != nil || unix.Unmount(on, 0) != nil {
		return "native"
	}
	return "overlayfs"
}

// Start starts the runtime again after Kill. It returns when it answers.
func (r *Runtime) Start() error {
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has it
	r.process = exec.Command("containerd", "--config", filepath.Join(r.Dir, "config.toml"))
	r.process.Stdout, r.process.Stderr = log, log
	r.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.process.Start(); err != nil {
		return err
	}
	// It listens before it is ready to run pods.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := r.cri(func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
			_, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
			return err
		})
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(r.Log)
			return fmt.Errorf("containerd does not answer: %w\n%s", err, said)
		}
	}
}

// cri speaks to the runtime for a minute at most.
func (r *Runtime) cri(speak func(context.Context, runtimeapi.RuntimeServiceClient) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+r.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	return speak(ctx, runtimeapi.NewRuntimeServiceClient(conn))
}

// Kill ends the runtime at once, and leaves what it runs.
func (r *Runtime) Kill() error {
	if r.process == nil {
		return nil
	}
	err := r.process.Process.Kill()
	_ = r.process.Wait() // it says that it was killed
	r.process = nil
	return err
}

// load gives the runtime its images.
func (r *Runtime) load(ctx context.Context) error {
	images, err := Images(r.Dir)
	if err != nil {
		return err
	}
	return r.Load(ctx, images...)
}

// Load gives the runtime more images.
func (r *Runtime) Load(ctx context.Context, images ...Image) error {
	f, err := os.CreateTemp(r.Dir, "images-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it goes with the folder
	if err := WriteArchive(f, images...); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return r.ctr(ctx, "-n", "k8s.io", "images", "import", "--all-platforms", f.Name())
}

func (r *Runtime) ctr(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "ctr", append([]string{"--address", r.Socket}, args...)...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
