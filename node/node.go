// Package node runs the pods that are assigned to a node.
//
// In come pods from the API, or from the node's own files, and a container runtime
// that speaks CRI; out go containers, and what became of them. Each pod has one
// worker, which goes round: observe (the pod, the runtime, its probes) -> plan
// (node/pod) -> act. What the runtime does by itself it tells, or it is seen by
// listing everything; a worker is woken by what concerns its pod and sleeps otherwise.
//
// What always holds: nothing that is needed after a restart is kept in memory
// alone. An agent that starts finds what the one before it left in the runtime and
// in the API, goes on with it, and restarts nothing. A pod that the API does not
// know any more is stopped and removed.
package node

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/node/admit"
	"setpoint.dev/setpoint/node/cgroup"
	"setpoint.dev/setpoint/node/dns"
	"setpoint.dev/setpoint/node/image"
	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/probe"
	"setpoint.dev/setpoint/node/static"
	"setpoint.dev/setpoint/node/status"
)

// Data is what pods are given by the node.
type Data interface {
	pod.Data
	// Use says that a pod is to run, so that what it refers to is kept at hand.
	Use(pod *corev1.Pod)
	// Prepare makes or refreshes everything that a pod's containers mount, and the
	// cgroups they are in. It may be called at any time.
	Prepare(ctx context.Context, pod *corev1.Pod) error
	// Release removes it, once nothing of the pod runs. It may be called twice.
	Release(ctx context.Context, uid types.UID) error
	// Used is what a pod's emptyDir volumes take up.
	Used(pod *corev1.Pod) []statsapi.VolumeStats
	// Left are the pods of which something is left.
	Left() ([]types.UID, error)
	// Run keeps what pods refer to at hand until ctx ends.
	Run(ctx context.Context) error
	// Clear removes what is no pod's, once nobody is at work any more.
	Clear()
}

// Config says which node this is. Client, Name, Runtime, Images and Dir are
// needed.
type Config struct {
	// Client asks as the node.
	Client kubernetes.Interface
	// Name is the node's.
	Name string
	// Runtime and Images are the container runtime.
	Runtime cri.RuntimeService
	Images  cri.ImageManagerService
	// Tells is the runtime where it says what happens; nil means that it does not.
	Tells observe.Tells
	// RuntimeName is what container IDs begin with, such as containerd.
	RuntimeName string
	// Dir is the folder of everything that pods are given.
	Dir string
	// Cgroups says where pods' are.
	Cgroups cgroup.Config
	// Data is what pods are given; nil means what node/volume, node/env,
	// node/source and node/cgroup make in Dir.
	Data Data
	// HostIPs are the node's addresses; nil means none.
	HostIPs func() []string
	// DNS is where pods find names.
	DNS dns.Config
	// Logs is the folder of containers' logs; "" means logs in Dir.
	Logs string
	// Seccomp is the folder of profiles that pods name.
	Seccomp string
	// Admit says why a pod is not taken now, besides what node/admit knows, or nil;
	// nil means that there is nothing else.
	Admit func(pod *corev1.Pod) *admit.Refusal
	// Static follows the pods that the node's own files declare, and says which
	// these are; nil means that there are none.
	Static func(ctx context.Context, changed func(pods []*corev1.Pod)) error
	// Tail reads the end of a log; nil means that termination messages are never
	// taken from logs.
	Tail observe.Tail
	// Logger hears what happens; nil means slog.Default.
	Logger *slog.Logger
}

// Agent runs the pods of a node.
type Agent struct {
	cfg    Config
	writer *status.Writer
	probes *probe.Set
	runner *pod.Runner
	events record.EventRecorder // there once begun is closed
	begun  chan struct{}
	pods   cache.SharedIndexInformer
	node   cache.SharedIndexInformer
	// services are those that containers are told of.
	services cache.SharedIndexInformer

	// admission is held by who decides whether there is room for a pod.
	admission sync.Mutex
	life      context.Context // ends with the run
	alive     sync.WaitGroup  // workers

	mu      sync.Mutex // guards the fields below
	static  statics
	workers map[types.UID]*worker
	ended   bool
}

// New returns an agent. It starts nothing.
func New(cfg Config) *Agent {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.HostIPs == nil {
		cfg.HostIPs = func() []string { return nil }
	}
	if cfg.Logs == "" {
		cfg.Logs = filepath.Join(cfg.Dir, "logs")
	}
	a := &Agent{cfg: cfg, workers: map[types.UID]*worker{}, begun: make(chan struct{}), writer: status.NewWriter(cfg.Client, cfg.Logger)}
	a.static = statics{known: cfg.Static == nil, mirrors: map[types.NamespacedName]*corev1.Pod{}, changed: make(chan struct{}, 1)}
	a.pods = a.informer("spec.nodeName", func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Pods().Informer()
	})
	a.node = a.informer("metadata.name", func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Nodes().Informer()
	})
	a.services = a.informer("", func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Services().Informer()
	})
	if cfg.Data == nil {
		cfg.Data = newData(a, cfg.Client, cfg.Logger)
		a.cfg.Data = cfg.Data
	}
	a.probes = probe.New(probe.Config{Exec: cfg.Runtime, Expand: cfg.Data.Expand, Say: a.say, Changed: a.Wake})
	cfg.DNS.Say = func(p *corev1.Pod, kind, reason, message string) { a.say(p, nil, kind, reason, message) }
	a.runner = pod.NewRunner(pod.Config{
		Runtime: cfg.Runtime, Images: image.New(cfg.Images), ImageService: cfg.Images, Data: cfg.Data, Say: a.say, DNS: cfg.DNS.Of, Handler: a.handler, Features: a.features,
		Owner: a.owner(), Logs: cfg.Logs, Domain: cfg.DNS.Domain, Seccomp: cfg.Seccomp, Tail: cfg.Tail, Logger: cfg.Logger,
	})
	return a
}

// owner marks what is ours in the runtime: by where we keep our part of it, so that
// the next agent with the same folder knows.
func (a *Agent) owner() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.cfg.Dir))
	return strconv.FormatUint(h.Sum64(), 36)
}

// informer is one that sees objects whose field is the node's name; with no field,
// all objects.
func (a *Agent) informer(field string, of func(informers.SharedInformerFactory) cache.SharedIndexInformer) cache.SharedIndexInformer {
	return of(informers.NewSharedInformerFactoryWithOptions(a.cfg.Client, 0, informers.WithTransform(client.WithoutOwnership),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if field != "" {
				o.FieldSelector = fields.OneTermEqualSelector(field, a.cfg.Name).String()
			}
		})))
}

func (a *Agent) serviceLister() listers.ServiceLister {
	return listers.NewServiceLister(a.services.GetIndexer())
}

// Run runs pods until ctx ends. It leaves them running.
func (a *Agent) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	a.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: a.cfg.Name})
	close(a.begun)
	sink := broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.cfg.Client.CoreV1().Events("")})
	defer sink.Stop()
	if _, err := a.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: a.see, UpdateFunc: a.change, DeleteFunc: a.miss,
	}); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	a.life = ctx
	g.Go(func() error { return a.writer.Run(ctx) })
	g.Go(func() error { return a.probes.Run(ctx) })
	g.Go(func() error { return a.cfg.Data.Run(ctx) })
	g.Go(func() error { a.node.RunWithContext(ctx); return nil })
	g.Go(func() error { a.services.RunWithContext(ctx); return nil })
	if !cache.WaitForCacheSync(ctx.Done(), a.node.HasSynced, a.services.HasSynced) { // pods are judged by the one and told of the others
		return errors.Join(g.Wait())
	}
	g.Go(func() error { a.pods.RunWithContext(ctx); return nil })
	g.Go(func() error { a.relist(ctx); return nil })
	g.Go(func() error { a.reflect(ctx); return nil })
	if a.cfg.Static != nil {
		g.Go(func() error { return a.cfg.Static(ctx, a.setStatic) })
	}
	err := g.Wait()
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.alive.Wait()
	a.cfg.Data.Clear()
	return err
}

// see takes a pod that came.
func (a *Agent) see(obj any) {
	switch p, ok := obj.(*corev1.Pod); {
	case !ok:
	case static.IsMirror(p):
		a.setMirror(p, false)
	default:
		a.worker(p.UID).tell(p)
	}
}

// change takes a pod that changed, or another of its name. A worker need not look
// at what it has said itself.
func (a *Agent) change(before, obj any) {
	old, was := before.(*corev1.Pod)
	p, is := obj.(*corev1.Pod)
	switch {
	case !was || !is:
	case old.UID != p.UID:
		a.miss(old)
		a.see(p)
	case !static.IsMirror(p) && status.Told(old, p):
		a.worker(p.UID).note(p)
	default:
		a.see(p)
	}
}

// miss takes a pod that the API does not have any more.
func (a *Agent) miss(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	switch p, ok := obj.(*corev1.Pod); {
	case !ok:
	case static.IsMirror(p):
		a.setMirror(p, true)
	default:
		a.worker(p.UID).lose(p)
	}
}

// worker is a pod's, which begins with the first call.
func (a *Agent) worker(uid types.UID) *worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.workers[uid]
	if w == nil {
		w = newWorker(a, uid)
		a.workers[uid] = w
		if !a.ended {
			a.alive.Go(func() { w.run() })
		}
	}
	return w
}

// retire ends a worker, unless it has been woken since.
func (a *Agent) retire(w *worker) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(w.wake) > 0 {
		return false
	}
	delete(a.workers, w.uid)
	return true
}

// Wake has a pod looked at.
func (a *Agent) Wake(uid types.UID) {
	a.mu.Lock()
	w := a.workers[uid]
	a.mu.Unlock()
	if w != nil {
		w.nudge()
	}
}

// knowsStatic says whether the node's files have been read.
func (a *Agent) knowsStatic() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.static.known
}

// adoptOrphans begins workers for pods that something is left of and that nobody
// knows: in the runtime, and with folders also on the disk.
func (a *Agent) adoptOrphans(all []types.UID, folders bool) {
	if folders {
		left, err := a.cfg.Data.Left()
		if err != nil {
			a.cfg.Logger.Warn("it is not known which pods have left something", "error", err)
		}
		all = append(all, left...)
	}
	known, sure := a.Known()
	if !sure {
		return
	}
	for _, uid := range all {
		if !known[uid] {
			a.worker(uid).nudge()
		}
	}
}

// others are the pods that the node has taken, but for one.
func (a *Agent) others(uid types.UID) []*corev1.Pod {
	a.mu.Lock()
	all := make([]*worker, 0, len(a.workers))
	for id, w := range a.workers {
		if id != uid {
			all = append(all, w)
		}
	}
	a.mu.Unlock()
	var pods []*corev1.Pod
	for _, w := range all {
		if p := w.taken(); p != nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// Pods are those that the node has taken, with their newest status.
func (a *Agent) Pods() []*corev1.Pod {
	a.mu.Lock()
	all := slices.Collect(maps.Values(a.workers))
	a.mu.Unlock()
	var pods []*corev1.Pod
	for _, w := range all {
		if p := w.seen(); p != nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// Pod is one of them.
func (a *Agent) Pod(namespace, name string) (*corev1.Pod, bool) {
	for _, p := range a.Pods() {
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// self is the node, nil while it is not known.
func (a *Agent) self() *corev1.Node {
	obj, ok, err := a.node.GetStore().GetByKey(a.cfg.Name)
	if err != nil || !ok {
		return nil
	}
	return obj.(*corev1.Node)
}
