package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"setpoint.dev/setpoint/node/hook"
	"setpoint.dev/setpoint/node/image"
	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/status"
)

// Reasons for which containers wait. Compat: they are kubelet's.
const (
	configError    = "CreateContainerConfigError"
	createError    = "CreateContainerError"
	runError       = "RunContainerError"
	postStartError = "PostStartHookError"
	crashLoop      = "CrashLoopBackOff"
)

// Pauses before a container that keeps ending is started again, and after how
// long in peace they begin anew. Compat: they are kubelet's.
const (
	firstPause   = 10 * time.Second
	longestPause = 300 * time.Second
	peace        = 2 * longestPause
)

// Runtime is what is asked of a runtime; cri-api's RuntimeService has it.
type Runtime interface {
	observe.Runtime
	hook.Exec
	RunPodSandbox(ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error)
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	CreateContainer(ctx context.Context, sandbox string, config *runtimeapi.ContainerConfig, sandboxConfig *runtimeapi.PodSandboxConfig) (string, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string, seconds int64) error
	RemoveContainer(ctx context.Context, id string) error
	UpdateContainerResources(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error
}

// Data is what containers are given by the node.
type Data interface {
	// Env is a container's environment.
	Env(ctx context.Context, pod *corev1.Pod, c *corev1.Container, ips []string) ([]*runtimeapi.KeyValue, error)
	// Mounts are a container's volumes and the files that every container has.
	Mounts(ctx context.Context, pod *corev1.Pod, c *corev1.Container, given Given) ([]*runtimeapi.Mount, error)
	// PullSecrets are those that images of a pod are pulled with.
	PullSecrets(ctx context.Context, pod *corev1.Pod) []*corev1.Secret
	// CgroupParent is the cgroup that a pod's are in; "" leaves it to the runtime.
	CgroupParent(pod *corev1.Pod) string
	// Resources are a container's, in the kernel's units.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// SandboxResources are those of a whole pod, and what it costs beside them.
	SandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources)
	// Expand replaces $(NAME) in a text.
	Expand(text string, values map[string]string) string
}

// Given is what a container's mounts depend on, besides its pod.
type Given struct {
	Env []*runtimeapi.KeyValue
	IPs []string
	// Images are those of image volumes, by volume.
	Images map[string]*runtimeapi.ImageSpec
	// Features are the runtime's.
	Features Features
}

// Features are what a runtime can that not all can.
type Features struct{ UserNamespaces, RecursiveReadOnly bool }

// Say records an event about a pod, or about one of its containers.
type Say func(pod *corev1.Pod, c *corev1.Container, kind, reason, message string)

// Config is what a runner works with. All of it is needed but Logger, Handler,
// Features, Seccomp and Tail.
type Config struct {
	Runtime Runtime
	Images  *image.Images
	// ImageService tells about images that are there.
	ImageService image.Service
	Data         Data
	Say          Say
	// DNS is how a pod finds names.
	DNS func(pod *corev1.Pod) (*runtimeapi.DNSConfig, error)
	// Handler is the runtime's name of a pod's runtime class; nil means that there
	// are none.
	Handler func(pod *corev1.Pod) (string, error)
	// Features are those of a handler of the runtime; nil means that it has none.
	Features func(handler string) Features
	// Owner is whose containers they are; see observe.LabelOwner.
	Owner string
	// Logs is the folder of all logs.
	Logs string
	// Domain is that of the cluster, such as cluster.local.
	Domain string
	// Seccomp is the folder of profiles that pods name.
	Seccomp string
	// Tail reads the end of a log; nil means that termination messages are never
	// taken from logs.
	Tail observe.Tail
	// Logger hears what users are not told; nil means slog.Default.
	Logger *slog.Logger
}

// Runner does what plans say. It may be used for several pods at once, and by one
// goroutine at a time for each.
type Runner struct {
	cfg     Config
	hooks   *hook.Runner
	backoff *flowcontrol.Backoff
}

// NewRunner returns a runner.
func NewRunner(cfg Config) *Runner {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Features == nil {
		cfg.Features = func(string) Features { return Features{} }
	}
	r := &Runner{cfg: cfg, hooks: hook.New(cfg.Runtime), backoff: flowcontrol.NewBackOff(firstPause, longestPause)}
	r.backoff.HasExpiredFunc = func(event, last time.Time, _ time.Duration) bool { return event.Sub(last) > peace }
	return r
}

// Result is what came of a round.
type Result struct {
	// Waiting says why containers were not started; those of Started were.
	Waiting map[string]status.Why
	Started []string
	// Actuated are the containers that were given the resources that are declared.
	Actuated []*corev1.Container
	// ResizeError is why resources were not given.
	ResizeError error
	// Again is when something can be tried again that has to wait; zero when there
	// is no such thing.
	Again time.Time
	// Err is what went wrong with the pod as a whole, or with a container.
	Err error
}

func (r *Result) wait(name, reason, message string) {
	r.Waiting[name] = status.Why{Reason: reason, Message: message}
	r.Err = errors.Join(r.Err, fmt.Errorf("container %s: %s: %s", name, reason, message))
}

// round is one go at a plan.
type round struct {
	*Runner
	pod     *corev1.Pod
	seen    *observe.Pod
	plan    *Plan
	ips     []string
	sandbox *runtimeapi.PodSandboxConfig
	result  Result
}

// Do does what a plan says. ready, if it is not nil, is called with what there is
// of the pod once it has a new sandbox.
func (r *Runner) Do(ctx context.Context, pod *corev1.Pod, seen *observe.Pod, plan *Plan, ready func(now *observe.Pod)) Result {
	o := &round{Runner: r, pod: pod, seen: seen, plan: plan, ips: seen.IPs, result: Result{Waiting: map[string]status.Why{}}}
	if err := o.do(ctx, ready); err != nil {
		o.result.Err = errors.Join(o.result.Err, err)
	}
	return o.result
}

func (o *round) do(ctx context.Context, ready func(*observe.Pod)) error {
	if o.plan.Kill {
		if err := o.Kill(ctx, o.pod, o.seen, nil); err != nil {
			return err
		}
	}
	if err := o.clear(ctx); err != nil {
		return err
	}
	if o.plan.Kill && !o.plan.Sandbox {
		return nil
	}
	if err := o.ensureSandbox(ctx, ready); err != nil {
		return err
	}
	for _, i := range o.plan.Ephemeral {
		e := &o.pod.Spec.EphemeralContainers[i]
		o.start(ctx, (*corev1.Container)(&e.EphemeralContainerCommon), e.TargetContainerName)
	}
	for _, i := range o.plan.Init {
		c := &o.pod.Spec.InitContainers[i]
		if !o.start(ctx, c, "") && c.RestartPolicy == nil {
			return nil
		}
	}
	o.update(ctx)
	for _, i := range o.plan.Main {
		o.start(ctx, &o.pod.Spec.Containers[i], "")
	}
	return nil
}

// clear stops and removes what is not to be there.
func (o *round) clear(ctx context.Context) error {
	for _, s := range o.plan.Stop {
		if err := o.stop(ctx, o.pod, o.seen, s, nil, nil); err != nil {
			return err
		}
	}
	now := int64(0)
	for _, c := range o.plan.Reset {
		if c.State == observe.Running || c.State == observe.Unknown {
			if err := o.stop(ctx, o.pod, o.seen, Stop{ID: c.ID, Name: c.Name, Message: "killing"}, &now, nil); err != nil {
				return err
			}
		}
		if err := o.cfg.Runtime.RemoveContainer(ctx, c.ID); err != nil && !crierrors.IsNotFound(err) {
			return err
		}
	}
	o.prune(ctx)
	return nil
}

// prune removes old tries of init containers: all but the last, and all when the
// pod begins again.
func (o *round) prune(ctx context.Context) {
	keep := 1
	if o.plan.Sandbox && o.plan.Kill {
		keep = 0
	}
	for _, name := range initContainers(o.pod) {
		kept := 0
		for _, c := range o.seen.Containers {
			if c.Name != name || keep > 0 && c.State != observe.Exited && c.State != observe.Unknown {
				continue
			}
			if kept++; kept <= keep {
				continue
			}
			if err := o.cfg.Runtime.RemoveContainer(ctx, c.ID); err != nil && !crierrors.IsNotFound(err) {
				o.cfg.Logger.Warn("an old init container is not removed yet", "container", c.ID, "error", err)
			}
		}
	}
}

// ensureSandbox makes a sandbox where the plan asks for one.
func (o *round) ensureSandbox(ctx context.Context, ready func(*observe.Pod)) (err error) {
	if o.sandbox, err = o.sandboxConfig(o.pod, o.plan.Attempt); err != nil {
		if o.plan.Sandbox {
			o.cfg.Say(o.pod, nil, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		}
		return err
	}
	if !o.plan.Sandbox {
		return nil
	}
	if o.plan.SandboxID != "" {
		o.cfg.Say(o.pod, nil, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	id, err := o.runSandbox(ctx, o.pod, o.sandbox)
	if err != nil {
		if ctx.Err() == nil {
			o.cfg.Say(o.pod, nil, corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", err))
		}
		return fmt.Errorf("sandbox: %w", err)
	}
	o.plan.SandboxID = id
	now, err := observe.Read(ctx, o.cfg.Runtime, o.pod.UID, o.cfg.Tail)
	if err != nil {
		o.cfg.Say(o.pod, nil, corev1.EventTypeWarning, "FailedPodSandBoxStatus", fmt.Sprintf("Unable to get pod sandbox status: %v", err))
		return err
	}
	if !o.pod.Spec.HostNetwork {
		o.ips = now.IPs
	}
	if ready != nil {
		ready(now)
	}
	return nil
}

// start starts a container, unless it is too soon, and says whether it did.
func (o *round) start(ctx context.Context, c *corev1.Container, target string) bool {
	if until, pause, soon := o.tooSoon(c); soon {
		text := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", pause, c.Name, hook.PodName(o.pod))
		o.cfg.Say(o.pod, c, corev1.EventTypeWarning, "BackOff", fmt.Sprintf("Back-off restarting failed container %s in pod %s", c.Name, hook.PodName(o.pod)))
		o.result.Waiting[c.Name] = status.Why{Reason: crashLoop, Message: text}
		if o.result.Again.IsZero() || until.Before(o.result.Again) {
			o.result.Again = until
		}
		return false
	}
	if err := o.startContainer(ctx, c, target); err != nil {
		if why, ok := errors.AsType[*startError](err); ok {
			o.result.wait(c.Name, why.reason, why.message)
		} else {
			o.result.wait(c.Name, createError, err.Error())
		}
		return false
	}
	o.result.Started = append(o.result.Started, c.Name)
	o.result.Actuated = append(o.result.Actuated, c)
	return true
}

// tooSoon says whether a container that ended has to wait, until when and for how
// long; one that has not begins its next pause.
func (o *round) tooSoon(c *corev1.Container) (until time.Time, pause time.Duration, soon bool) {
	for _, last := range o.seen.Containers {
		if last.Name != c.Name || last.State != observe.Exited {
			continue
		}
		key := string(o.pod.UID) + "/" + c.Name + "/" + observe.Hash(c)
		if o.backoff.IsInBackOffSince(key, last.Finished) {
			pause = o.backoff.Get(key)
			return last.Finished.Add(pause), pause, true
		}
		o.backoff.Next(key, last.Finished)
		break
	}
	return time.Time{}, 0, false
}

// Forget forgets what is known of a pod that is gone.
func (r *Runner) Forget(pod *corev1.Pod) {
	r.backoff.GC()
	r.cfg.Images.Forget(string(pod.UID))
}

// startError is why a container waits.
type startError struct{ reason, message string }

// Error implements error.
func (e *startError) Error() string { return e.reason + ": " + e.message }

// plain is the message of a runtime's error, without what gRPC puts around it.
func plain(err error) string {
	s, _ := grpcstatus.FromError(err)
	return s.Message()
}

// fail records why a container does not start. IDs are left out of events, so that
// those that say the same are counted together.
func (o *round) fail(c *corev1.Container, id, reason, message string) error {
	event := "Error: " + message
	if id != "" {
		event = strings.ReplaceAll(event, id, c.Name)
	}
	o.cfg.Say(o.pod, c, corev1.EventTypeWarning, "Failed", event)
	return &startError{reason, message}
}
