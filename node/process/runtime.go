//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"

	"setpoint.dev/setpoint/node/process/cgroup"
	"setpoint.dev/setpoint/node/process/image"
	"setpoint.dev/setpoint/node/process/supervise"
)

// mounts says how containers get mounts of their own.
type mounts string

const (
	mountsAsRoot mounts = "root"
	mountsAsUser mounts = "user namespace"
	mountsNone   mounts = "none"
)

// Runtime is a container runtime.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer

	cfg    Config
	logger *slog.Logger
	mounts mounts
	// why says why there are no better mounts.
	why    string
	groups *cgroup.Hierarchy // nil if there are none
	images *image.Store
	events events

	listener  net.Listener
	streams   streaming.Server
	streaming net.Listener

	// life ends with the runtime; watches are those who wait for containers.
	life    context.Context //nolint:containedctx // it is what ends the watches, which begin before Run
	end     context.CancelFunc
	watches sync.WaitGroup

	mu         sync.Mutex // guards the fields below, and what it says of sandboxes and containers
	sandboxes  map[string]*sandbox
	containers map[string]*container
	names      map[string]string // of sandboxes and containers, to their IDs
}

// Main is the life of a container's supervisor, if this process was started as
// one; then it does not return. Every binary that opens a runtime calls it first.
func Main() { supervise.Main() }

// Open finds what an earlier runtime left in the folder, and listens. Nobody is
// answered until Run.
func Open(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.Socket == "" {
		cfg.Socket = filepath.Join(cfg.Dir, "cri.sock")
	}
	if cfg.Version == "" {
		cfg.Version = "1.0.0"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1"
	}
	r := &Runtime{
		cfg: cfg, logger: cfg.Logger,
		sandboxes: map[string]*sandbox{}, containers: map[string]*container{}, names: map[string]string{},
	}
	r.life, r.end = context.WithCancel(context.Background())
	for _, dir := range []string{"", "sandboxes", "containers", "images", "unpacked"} {
		if err := os.MkdirAll(filepath.Join(cfg.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	r.detect(ctx)
	var err error
	if r.images, err = image.Open(filepath.Join(cfg.Dir, "images"), filepath.Join(cfg.Dir, "unpacked")); err != nil {
		return nil, err
	}
	if err := r.listen(); err != nil {
		return nil, err
	}
	if err := r.adopt(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// detect finds out what is permitted here.
func (r *Runtime) detect(ctx context.Context) {
	r.mounts = mountsNone
	switch {
	case r.cfg.NoMounts:
		r.why = "mounts are switched off"
	default:
		err := supervise.Probe(ctx, false)
		if err == nil {
			r.mounts = mountsAsRoot
			break
		}
		if err = supervise.Probe(ctx, true); err == nil {
			r.mounts = mountsAsUser
			break
		}
		r.why = err.Error()
	}
	groups, err := cgroup.Mounted()
	if err == nil && os.Geteuid() == 0 {
		r.groups = groups
	}
}

// listen opens both sockets: that of CRI, and that of streams.
func (r *Runtime) listen() error {
	// A runtime that was killed left its socket. One that lives answers.
	if conn, err := net.Dial("unix", r.cfg.Socket); err == nil {
		_ = conn.Close()
		return fmt.Errorf("a runtime serves at %s already", r.cfg.Socket)
	}
	if err := os.Remove(r.cfg.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var err error
	if r.listener, err = net.Listen("unix", r.cfg.Socket); err != nil {
		return err
	}
	if err := os.Chmod(r.cfg.Socket, 0o600); err != nil {
		return err
	}
	if r.streaming, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	config := streaming.DefaultConfig
	config.Addr = r.streaming.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	r.streams, err = streaming.NewServer(config, streamer{r})
	return err
}

// Endpoint is where the runtime serves, as its callers name it.
func (r *Runtime) Endpoint() string { return "unix://" + r.cfg.Socket }

// grace is how long calls may take that are under way when the runtime ends.
const grace = 2 * time.Second

// Run serves until ctx ends. Containers go on.
func (r *Runtime) Run(ctx context.Context) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(16<<20), grpc.MaxSendMsgSize(16<<20))
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, &imageService{r: r})
	web := &http.Server{Handler: r.streams, ReadHeaderTimeout: time.Minute}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(r.listener) })
	g.Go(func() error {
		if err := web.Serve(r.streaming); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		r.end()
		stopped := time.AfterFunc(grace, server.Stop)
		server.GracefulStop()
		stopped.Stop()
		return web.Close()
	})
	err := g.Wait()
	return errors.Join(err, r.close())
}

// close lets go of everything but containers.
func (r *Runtime) close() error {
	r.end()
	r.watches.Wait()
	var errs []error
	for _, l := range []net.Listener{r.listener, r.streaming} {
		if l != nil {
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Version says who this is.
func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	// Compat: the first field is that of the kubelet's API, which every runtime answers so.
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: Name, RuntimeVersion: r.cfg.Version, RuntimeApiVersion: "v1"}, nil
}

// Status says that the runtime is there, and what it cannot do here.
func (r *Runtime) Status(_ context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	resp := &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true, Reason: "HostNetwork", Message: "pods share the network of the host"},
			r.isolation(),
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{
			Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: r.mounts != mountsNone},
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: r.mounts == mountsAsRoot},
	}
	if req.GetVerbose() {
		resp.Info = map[string]string{
			"mounts": string(r.mounts), "network": "host", "cgroups": r.groupsText(), "images": filepath.Join(r.cfg.Dir, "images"),
		}
	}
	return resp, nil
}

// isolation is a condition of ours: what containers of this node have of their
// own.
func (r *Runtime) isolation() *runtimeapi.RuntimeCondition {
	c := &runtimeapi.RuntimeCondition{Type: "ContainersIsolated", Status: r.mounts != mountsNone}
	switch r.mounts {
	case mountsAsRoot:
		c.Reason, c.Message = "MountNamespaces", "containers are processes of the host with mounts of their own"
	case mountsAsUser:
		c.Reason, c.Message = "UserNamespaces", "containers are processes of the user who runs the node, with mounts of their own"
	default:
		c.Reason, c.Message = "NoMounts", "containers see the host's files and can have no volumes: "+r.why
	}
	return c
}

func (r *Runtime) groupsText() string {
	if r.groups == nil {
		return "none: limits are not enforced"
	}
	return fmt.Sprintf("v%d", r.groups.Version())
}

// RuntimeConfig says how control groups are named.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig takes note of the pods' addresses, of which there are none
// here.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
