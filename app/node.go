package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node"
	"setpoint.dev/setpoint/node/admit"
	"setpoint.dev/setpoint/node/certificate"
	"setpoint.dev/setpoint/node/cgroup"
	"setpoint.dev/setpoint/node/cni"
	"setpoint.dev/setpoint/node/collect"
	"setpoint.dev/setpoint/node/cri"
	"setpoint.dev/setpoint/node/dns"
	"setpoint.dev/setpoint/node/evict"
	nodelog "setpoint.dev/setpoint/node/log"
	"setpoint.dev/setpoint/node/process"
	"setpoint.dev/setpoint/node/register"
	nodeserver "setpoint.dev/setpoint/node/server"
	"setpoint.dev/setpoint/node/static"
	"setpoint.dev/setpoint/node/stats"
	"setpoint.dev/setpoint/server"
)

// Runtimes by name. Anything else is an endpoint.
const (
	Containerd = "containerd"
	Process    = "process"
)

// nodePort is where a node's server listens, if nobody else does. Compat: it is
// kubelet's.
const nodePort = 10250

// patience is how long a runtime has to answer at first.
const patience = 10 * time.Second

// Node says whether pods are run here, and how.
type Node struct {
	// On says that they are.
	On bool
	// Name is the node's; "" means the machine's.
	Name string
	// IP is the node's address; the zero one means that of the machine.
	IP netip.Addr
	// Runtime runs containers: Containerd, Process, or an endpoint such as
	// unix:///run/containerd/containerd.sock. "" means containerd when it answers,
	// else Process.
	Runtime string
	// HostImages has the process runtime take the machine's files for every image.
	HostImages bool
	// Dir is the folder of everything that pods are given. It is needed.
	Dir string
	// PodRange is where pods have their addresses from, where nobody else has set
	// up a network; the zero one means 10.244.0.0/24.
	PodRange netip.Prefix
	// StaticPods is a folder of pods that are run whether or not the control plane
	// says so; "" means that there are none.
	StaticPods string
	// ImagesHigh is how full the disk of images may be, in percent, before those that
	// no container uses are removed; 0 means 85, and 100 keeps all.
	ImagesHigh int64
	// Thresholds say below what of memory, disk or processes pods are evicted and
	// refused; without any, only those go that use more disk than they may.
	Thresholds []evict.Threshold
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// Member is how a node is known to its control plane.
type Member struct {
	// Client asks as the node.
	Client kubernetes.Interface
	// Issue makes the certificate that the node serves with.
	Issue func(user string, groups, hosts []string) (*tls.Certificate, error)
	// ClientCAs are who vouches for those that ask the node.
	ClientCAs *x509.CertPool
}

// NodeUser is who a node is to the API.
func NodeUser(name string) *user.DefaultInfo {
	return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
}

// Complete fills in what is not said.
func (n *Node) Complete() error {
	if n.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		n.Name = strings.ToLower(host)
	}
	if !n.PodRange.IsValid() {
		n.PodRange = netip.MustParsePrefix("10.244.0.0/24")
	}
	if n.Logger == nil {
		n.Logger = slog.Default()
	}
	return nil
}

// runNode runs pods of the control plane's own until ctx ends. A node that cannot
// run is told of and is no reason to end the control plane.
func (a *App) runNode(ctx context.Context) error {
	n := a.cfg.Node
	n.Logger = a.cfg.Logger
	if err := n.Complete(); err != nil {
		return err
	}
	self, err := client.New(client.Config{Handler: a.server, UserAgent: "kubelet/setpoint", User: NodeUser(n.Name)}).Kubernetes()
	if err != nil {
		return err
	}
	err = n.Run(ctx, Member{Client: self, Issue: a.authority.IssueServing, ClientCAs: a.authority.ClientPool()})
	if err != nil && ctx.Err() == nil {
		a.cfg.Logger.Error("no pods are run on this machine", "error", err)
	}
	return nil
}

// Run runs pods until ctx ends. It leaves containers running, but for those of the
// process runtime, whose supervisors live on as well.
func (n *Node) Run(ctx context.Context, m Member) error {
	if err := os.MkdirAll(n.Dir, 0o755); err != nil {
		return err
	}
	dir, err := filepath.Abs(n.Dir)
	if err != nil {
		return err
	}
	n.Dir = dir
	release, err := hold(filepath.Join(n.Dir, "lock"))
	if err != nil {
		return fmt.Errorf("another node uses %s: %w", n.Dir, err)
	}
	defer release()
	g, ctx := errgroup.WithContext(ctx)
	runtime, err := n.openRuntime(ctx, g)
	if err != nil {
		return errors.Join(err, g.Wait())
	}
	g.Go(func() error { return n.serve(ctx, m, runtime) })
	return g.Wait()
}

// hold takes a file for as long as this process lives, or until it is released.
func hold(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// openRuntime connects with the runtime that was asked for, or the best there is.
func (n *Node) openRuntime(ctx context.Context, g *errgroup.Group) (*cri.Client, error) {
	endpoints := []string{n.Runtime}
	switch n.Runtime {
	case Process:
		return n.openProcess(ctx, g)
	case Containerd, "":
		endpoints = cri.Find()
	}
	var errs []error
	for _, endpoint := range endpoints {
		bounded, cancel := context.WithTimeout(ctx, patience)
		runtime, err := cri.Dial(bounded, endpoint)
		cancel()
		if err == nil {
			return runtime, nil
		}
		errs = append(errs, err)
	}
	if n.Runtime == "" {
		return n.openProcess(ctx, g)
	}
	return nil, errors.Join(append(errs, fmt.Errorf("no runtime %s answers", n.Runtime))...)
}

// openProcess runs the runtime that is built in.
func (n *Node) openProcess(ctx context.Context, g *errgroup.Group) (*cri.Client, error) {
	address := "127.0.0.1"
	if ips := n.addresses(); len(ips) > 0 {
		address = ips[0]
	}
	built, err := process.Open(ctx, process.Config{Dir: filepath.Join(n.Dir, "process"), Address: address, HostImages: n.HostImages, Logger: n.Logger})
	if err != nil {
		return nil, err
	}
	g.Go(func() error { return built.Run(ctx) })
	return cri.Dial(ctx, built.Endpoint())
}

// addresses are the node's: the one that was given, or the machine's.
func (n *Node) addresses() []string {
	if n.IP.IsValid() {
		return []string{n.IP.String()}
	}
	all, err := register.Addresses(n.Name)
	if err != nil {
		return nil
	}
	var ips []string
	for _, a := range all {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	return ips
}

// nodeAddresses are the same, as a Node object has them.
func (n *Node) nodeAddresses() ([]corev1.NodeAddress, error) {
	if !n.IP.IsValid() {
		return register.Addresses(n.Name)
	}
	return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.IP.String()}, {Type: corev1.NodeHostName, Address: n.Name}}, nil
}

// serve runs the parts of a node.
func (n *Node) serve(ctx context.Context, m Member, runtime *cri.Client) error {
	ips := n.addresses()
	listener, err := listen(ips)
	if err != nil {
		return err
	}
	who := NodeUser(n.Name)
	keeper, err := certificate.New(func() (*tls.Certificate, error) {
		return m.Issue(who.Name, []string{user.NodesGroup}, append([]string{n.Name}, ips...))
	}, n.Logger)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	var own func(ctx context.Context, changed func([]*corev1.Pod)) error
	if n.StaticPods != "" {
		own = func(ctx context.Context, changed func([]*corev1.Pod)) error {
			return static.New(static.Config{Dir: n.StaticPods, Node: n.Name, Default: completePod, Changed: changed, Logger: n.Logger}).Run(ctx)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	var evictor *evict.Manager // it is there before anybody asks
	agent := node.New(node.Config{
		Client: m.Client, Name: n.Name, Runtime: runtime.Runtime, Images: runtime.Images, Tells: runtime.Follow, RuntimeName: runtime.Name, Dir: n.Dir, Logger: n.Logger,
		Cgroups: cgroup.Config{Systemd: systemd(ctx, runtime)}, HostIPs: func() []string { return ips }, Tail: tail, Static: own,
		DNS: dns.Config{Domain: "cluster.local", ResolvConf: resolvConf()}, Seccomp: filepath.Join(n.Dir, "seccomp"),
		Admit: func(p *corev1.Pod) *admit.Refusal { return evictor.Admit(p) },
	})
	tell := func(kind, reason, message string) { agent.Tell(ctx, kind, reason, message) }
	collector := stats.New(stats.Config{Node: n.Name, Runtime: runtime.Runtime, Images: runtime.Images, Dir: n.Dir, Logs: agent.Logs})
	serving := nodeserver.New(nodeserver.Config{
		Name: n.Name, Pods: agent, Runtime: runtime.Runtime, Stats: collector, Client: m.Client, ClientCAs: m.ClientCAs, Certificate: keeper.Get, Logger: n.Logger,
	})
	registrar := register.New(register.Config{
		Client: m.Client, Name: n.Name, Runtime: runtime.Runtime, Addresses: n.nodeAddresses, Port: port(listener), Version: server.Version(), Dir: n.Dir, Logger: n.Logger,
		Images:     func(ctx context.Context) ([]*runtimeapi.Image, error) { return runtime.Images.ListImages(ctx, nil) },
		Thresholds: n.Thresholds, Pressure: func() register.Pressure { return pressure(evictor) }, Event: tell,
	})
	rotator := &nodelog.Rotator{Runtime: agent.Owned(), Logger: n.Logger}
	garbage := collect.New(collect.Config{
		Runtime: agent.Owned(), Images: runtime.Images, Logs: filepath.Join(n.Dir, "logs"), Pods: agent.Known, ImageDisk: imageDisk(agent, runtime), High: n.ImagesHigh,
		Event: tell, Logger: n.Logger,
	})
	evictor = evict.New(evict.Config{
		Summary: func(ctx context.Context) (*statsapi.Summary, error) { return collector.Summary(ctx, false) }, Pods: agent.Active, Evict: agent.Evict, Volumes: agent.Used,
		Reclaim: reclaim(agent, garbage), Thresholds: n.Thresholds, OwnImageDisk: apart(ctx, runtime, n.Dir), Event: tell, Changed: registrar.Refresh, Logger: n.Logger,
	})
	g.Go(func() error { return serving.Run(ctx, listener) })
	for _, run := range []func(context.Context) error{keeper.Run, agent.Run, registrar.Run, evictor.Run, rotator.Run, garbage.Run} {
		g.Go(func() error { return run(ctx) })
	}
	g.Go(func() error { n.connect(ctx, runtime); return nil })
	return g.Wait()
}

// connect gives pods a network where the runtime waits for one and nobody has set
// it up.
func (n *Node) connect(ctx context.Context, runtime *cri.Client) {
	status, err := runtime.Runtime.Status(ctx, true)
	if err != nil {
		n.Logger.Warn("it is not known whether pods have a network", "error", err)
		return
	}
	folders, waits := cni.Of(status)
	if !waits {
		return
	}
	switch wrote, err := cni.Ensure(folders, filepath.Join(n.Dir, "addresses"), []netip.Prefix{n.PodRange}); {
	case err != nil:
		n.Logger.Warn("pods have no network", "error", err)
	case wrote:
		n.Logger.Info("pods are put on a bridge", "configuration", folders.Conf, "addresses", n.PodRange)
	}
}

// listen opens a node's port: the usual one, or any when that is taken.
func listen(ips []string) (net.Listener, error) {
	host := "127.0.0.1"
	if len(ips) > 0 {
		host = ips[0]
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(nodePort))) //nolint:noctx // it does not wait
	if err != nil {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0")) //nolint:noctx // it does not wait
	}
	return l, err
}

func port(l net.Listener) int32 {
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		return int32(a.Port)
	}
	return 0
}

// systemd says whether a runtime leaves cgroups to systemd; one that does not tell
// does not.
func systemd(ctx context.Context, runtime *cri.Client) bool {
	cfg, err := runtime.Runtime.RuntimeConfig(ctx)
	return err == nil && cfg.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD
}

// resolvConf is the machine's file, "" when it has none.
func resolvConf() string {
	const file = "/etc/resolv.conf"
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// tail is the end of a container's log.
func tail(ctx context.Context, path string, lines int64, most int) string {
	var b bytes.Buffer
	ended := func(context.Context) (bool, error) { return false, nil }
	if err := nodelog.Read(ctx, path, &corev1.PodLogOptions{TailLines: &lines}, ended, &b, &b); err != nil {
		return fmt.Sprintf("Error on reading termination message from logs: %v", err)
	}
	return string(b.Bytes()[max(0, b.Len()-most):])
}
