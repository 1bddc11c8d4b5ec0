package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/node/evict"
	"setpoint.dev/setpoint/node/observe"
	"setpoint.dev/setpoint/node/pod"
	"setpoint.dev/setpoint/node/static"
	"setpoint.dev/setpoint/node/status"
)

// Paces of a worker.
const (
	firstRetry   = time.Second
	longestRetry = 10 * time.Second
	refreshEvery = time.Minute // what a pod mounts is refreshed as often
)

// worker goes round with one pod.
type worker struct {
	agent *Agent
	uid   types.UID
	wake  chan struct{}

	mu   sync.Mutex // guards the fields below
	pod  *corev1.Pod
	gone bool // the API does not have it any more, or never had
	// cancel ends what the worker is at when the pod is to end sooner: killed
	// with a shorter grace, or not started at all.
	cancel context.CancelFunc
	grace  int64 // seconds that cancel's work goes by; -1 when it is no stop
	// shown is the pod with its newest status, once it was taken.
	shown *corev1.Pod
	// eviction is why the node ends the pod, nil when it does not.
	eviction *evict.Eviction

	quiet chan struct{} // closed when nothing runs any more
	// defers says that the pod waits for room, for others to see.
	defers atomic.Bool

	// The rest is the worker's own.
	old      corev1.PodStatus
	known    bool // old is set
	admitted bool
	ended    bool // nothing is started any more
	stopped  bool // nothing runs any more, and the API is told so
	failed   *status.Why
	waiting  map[string]status.Why
	resize   resize
	failures int
}

func newWorker(a *Agent, uid types.UID) *worker {
	return &worker{agent: a, uid: uid, wake: make(chan struct{}, 1), gone: true, quiet: make(chan struct{}), waiting: map[string]status.Why{}}
}

// tell tells of a pod as it is now.
func (w *worker) tell(p *corev1.Pod) {
	w.note(p)
	w.nudge()
}

// note takes a pod as it is now, for the next round.
func (w *worker) note(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pod, w.gone = p, false
	w.hastenLocked()
}

// lose tells that the API does not have a pod any more.
func (w *worker) lose(p *corev1.Pod) {
	w.mu.Lock()
	if w.pod == nil {
		w.pod = p
	}
	w.gone = true
	w.hastenLocked()
	w.mu.Unlock()
	w.nudge()
}

// hastenLocked ends what the worker is at, if the pod is to end sooner.
func (w *worker) hastenLocked() {
	if w.cancel == nil {
		return
	}
	ends := w.gone || w.pod.DeletionTimestamp != nil
	if ends && (w.grace < 0 || graceLeft(w.pod) < w.grace) {
		w.cancel()
	}
}

// graceLeft is how many seconds a pod's containers have to end.
func graceLeft(p *corev1.Pod) int64 {
	switch {
	case p.DeletionGracePeriodSeconds != nil:
		return *p.DeletionGracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		return *p.Spec.TerminationGracePeriodSeconds
	default:
		return 0
	}
}

func (w *worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// taken is the pod, if it takes up room on the node.
func (w *worker) taken() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shown == nil || status.Terminal(w.shown.Status.Phase) {
		return nil
	}
	return w.shown
}

// seen is the pod with its newest status, nil when it was not taken.
func (w *worker) seen() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}

// show shows the pod with a status to others.
func (w *worker) show(p *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shown = p
}

// run goes round until nothing is left of the pod, or the agent ends. It begins
// when it is woken: before that, it does not know whether the API has the pod.
func (w *worker) run() {
	ctx := w.agent.life
	var late <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-late:
		}
		next, done := w.round(ctx)
		if done && w.agent.retire(w) {
			return
		}
		late = nil
		if next > 0 && !done {
			late = time.After(next)
		}
	}
}

// task is a context for what the worker does until the pod is to end sooner. grace
// is that of a stop, -1 for anything else.
func (w *worker) task(ctx context.Context, grace int64) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.cancel, w.grace = cancel, grace
	w.hastenLocked()
	w.mu.Unlock()
	return ctx, func() {
		w.mu.Lock()
		w.cancel = nil
		w.mu.Unlock()
		cancel()
	}
}

// round looks at the pod once and does what is to be done. It returns when to look
// again without being woken, 0 for never, and whether nothing is left to do.
func (w *worker) round(ctx context.Context) (next time.Duration, done bool) {
	w.mu.Lock()
	p, gone := w.pod, w.gone
	w.mu.Unlock()
	seen, err := observe.Read(ctx, w.agent.cfg.Runtime, w.uid, w.agent.cfg.Tail)
	switch {
	case err != nil:
	case gone:
		err = w.vanish(ctx, p, seen)
		done = err == nil
	default:
		next, err = w.live(ctx, p, seen)
	}
	if err == nil {
		w.failures = 0
		return next, done
	}
	if ctx.Err() == nil {
		w.agent.cfg.Logger.Debug("a pod is not as declared yet", "pod", w.uid, "error", err)
	}
	retry := min(firstRetry<<min(w.failures, 8), longestRetry)
	w.failures++
	if next > 0 {
		retry = min(retry, next)
	}
	return retry, false
}

// vanish stops and removes a pod that the API does not have.
func (w *worker) vanish(ctx context.Context, p *corev1.Pod, seen *observe.Pod) error {
	w.agent.probes.Remove(w.uid)
	if !seen.Stopped() {
		if err := w.agent.runner.Kill(ctx, p, seen, nil); err != nil {
			return err
		}
	}
	if err := w.agent.runner.Remove(ctx, seen); err != nil {
		return err
	}
	if err := w.agent.cfg.Data.Release(ctx, w.uid); err != nil {
		return err
	}
	w.show(nil)
	w.rest()
	if p == nil {
		return nil
	}
	w.agent.runner.Forget(p)
	return os.RemoveAll(pod.LogFolder(w.agent.cfg.Logs, p))
}

// live goes round with a pod that the API has.
func (w *worker) live(ctx context.Context, p *corev1.Pod, seen *observe.Pod) (time.Duration, error) {
	if !w.known {
		w.introduce(ctx, p)
		w.old, w.known = p.Status, true
		if m := w.mirror(p); m != nil {
			w.old = m.Status
		}
		w.resize.begin(p, seen)
	}
	if p.DeletionTimestamp != nil || status.Terminal(p.Status.Phase) {
		w.ended = true
	}
	if !w.admitted && !w.ended {
		w.admit(p, seen)
	}
	grace := w.evicted()
	p = w.allocated(p)
	left := w.deadline(p)
	s := w.status(p, seen, false)
	w.ended = w.ended || status.Terminal(s.Phase)
	if w.ended {
		return 0, w.end(ctx, p, seen, s, grace)
	}
	w.publish(p, s, status.News{MayRun: true})
	w.agent.cfg.Data.Use(p)
	if err := w.agent.cfg.Data.Prepare(ctx, w.resize.widest(p)); err != nil {
		return left, err
	}
	if p.Spec.HostNetwork {
		seen.IPs = w.agent.cfg.HostIPs()
	}
	w.agent.probes.Update(p, s)
	return w.act(ctx, p, seen, left)
}

// Pauses of introduce, and how long it goes on.
const firstLook, longestLook, introduction = time.Millisecond, 10 * time.Millisecond, 2 * time.Second

// introduce waits until the API lets the node have what belongs to a pod. Who may
// what is known there a moment after the pod is; whoever asks too soon is refused,
// and users would be told of it.
func (w *worker) introduce(ctx context.Context, p *corev1.Pod) {
	if static.Is(p) || status.Terminal(p.Status.Phase) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, introduction)
	defer cancel()
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		_, err := w.agent.cfg.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if !apierrors.IsForbidden(err) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// act makes a plan and takes its steps.
func (w *worker) act(ctx context.Context, p *corev1.Pod, seen *observe.Pod, next time.Duration) (time.Duration, error) {
	next = soonest(next, refreshEvery)
	plan := pod.Make(pod.Input{Pod: p, Seen: seen, Probes: w.agent.probes, Actuated: w.resize.actuated})
	switch {
	case plan.Nothing():
		return next, nil
	case plan.Lost:
		w.failed = &status.Why{Reason: "SandboxLost", Message: "The sandbox of the pod ended before its containers had, and its restart policy does not let them begin again"}
		w.agent.say(p, nil, corev1.EventTypeWarning, w.failed.Reason, w.failed.Message)
		w.nudge()
		return next, nil
	}
	task, done := w.task(ctx, -1)
	defer done()
	res := w.agent.runner.Do(task, p, seen, &plan, func(now *observe.Pod) { w.report(p, now) })
	if task.Err() != nil && ctx.Err() == nil { // the pod is to end
		w.nudge()
		return next, nil
	}
	for _, name := range res.Started {
		delete(w.waiting, name)
	}
	maps.Copy(w.waiting, res.Waiting)
	w.resize.did(res.Actuated, res.ResizeError)
	if !res.Again.IsZero() {
		next = soonest(next, max(time.Until(res.Again), time.Millisecond))
	}
	if res.Err == nil && len(res.Waiting) == 0 {
		w.nudge() // see what came of it
		return next, nil
	}
	w.refresh(ctx, p)
	return next, errors.Join(res.Err, res.ResizeError)
}

func soonest(a, b time.Duration) time.Duration {
	if a <= 0 || b < a {
		return b
	}
	return a
}

// refresh tells how the pod is in the middle of a round.
func (w *worker) refresh(ctx context.Context, p *corev1.Pod) {
	if seen, err := observe.Read(ctx, w.agent.cfg.Runtime, w.uid, w.agent.cfg.Tail); err == nil {
		w.report(p, seen)
	}
}

// report tells how the pod was seen.
func (w *worker) report(p *corev1.Pod, seen *observe.Pod) {
	s := w.status(p, seen, false)
	w.publish(p, s, status.News{MayRun: true})
	w.agent.probes.Update(p, s)
}

// admit takes a pod or has it fail. One that something runs of was taken before.
func (w *worker) admit(p *corev1.Pod, seen *observe.Pod) {
	w.agent.admission.Lock()
	defer w.agent.admission.Unlock()
	self := w.agent.self()
	if len(seen.Sandboxes) == 0 && self != nil {
		if no := w.agent.refusal(p, self); no != nil {
			w.failed = &status.Why{Reason: no.Reason, Message: "Pod was rejected: " + no.Message}
			w.agent.say(p, nil, corev1.EventTypeWarning, no.Reason, no.Message)
			return
		}
	}
	w.admitted = true
	w.show(w.allocated(p))
}

// deadline has a pod fail whose time is over, and returns how much of it is left;
// 0 when it has no end.
func (w *worker) deadline(p *corev1.Pod) time.Duration {
	if p.Spec.ActiveDeadlineSeconds == nil || w.old.StartTime == nil || w.ended || w.failed != nil {
		return 0
	}
	left := time.Until(w.old.StartTime.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second))
	if left > 0 {
		return left
	}
	w.failed = &status.Why{Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
	w.agent.say(p, nil, corev1.EventTypeNormal, w.failed.Reason, w.failed.Message)
	return 0
}

// status is how the pod is now.
func (w *worker) status(p *corev1.Pod, seen *observe.Pod, ended bool) corev1.PodStatus {
	return status.Of(status.Input{
		Pod: p, Old: w.old, Seen: seen, Runtime: w.agent.cfg.RuntimeName, Waiting: w.waiting, Probes: w.agent.probes, Ended: ended, Failed: w.failed,
		HostIPs: w.agent.cfg.HostIPs(), Actuated: w.resize.actuated, Resize: w.resize.conditions(), RecursiveReadOnly: w.agent.recursive(p), Now: time.Now(),
	})
}

// mirror is what the API shows of a pod of the node's files; nil for all others.
func (w *worker) mirror(p *corev1.Pod) *corev1.Pod {
	if !static.Is(p) {
		return nil
	}
	return w.agent.mirror(p)
}

// wanted says whether the API has the pod.
func (w *worker) wanted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.gone
}

// publish keeps a status and has the API told.
func (w *worker) publish(p *corev1.Pod, s corev1.PodStatus, news status.News) {
	w.old = s
	news.Pod, news.Status, news.Wanted = p, s, w.wanted
	if m := w.mirror(p); m != nil {
		news.Pod = m
	}
	if news.Pod != p || !static.Is(p) {
		w.agent.writer.Set(news)
	}
	if w.admitted {
		shown := p.DeepCopy()
		shown.Status = s
		w.show(shown)
	}
}

// last is the last status of a pod. One that was never begun here, or that the
// runtime has forgotten since it ended, has nothing to add to what is known.
func (w *worker) last(p *corev1.Pod, seen *observe.Pod) corev1.PodStatus {
	if len(seen.Containers) == 0 && status.Terminal(p.Status.Phase) {
		s := *p.Status.DeepCopy()
		s.ObservedGeneration = p.Generation
		return s
	}
	if w.failed != nil && !w.admitted && len(seen.Sandboxes) == 0 {
		return status.Refused(p, *w.failed, time.Now())
	}
	return status.AtEnd(p, w.status(p, seen, true), static.Is(p))
}

// end stops a pod, tells how it ended, and lets go of it.
func (w *worker) end(ctx context.Context, p *corev1.Pod, seen *observe.Pod, s corev1.PodStatus, grace *int64) error {
	if !seen.Stopped() {
		w.publish(p, s, status.News{MayRun: true})
		w.agent.probes.Update(p, s)
		w.agent.probes.StopLiveness(w.uid)
		seconds := graceLeft(p)
		if grace != nil {
			seconds = *grace
		}
		task, done := w.task(ctx, seconds)
		err := w.agent.runner.Kill(task, p, seen, grace)
		hurried := task.Err() != nil && ctx.Err() == nil
		done()
		if hurried {
			w.nudge()
			return nil
		}
		if err != nil {
			w.agent.say(p, nil, corev1.EventTypeWarning, "FailedKillPod", fmt.Sprintf("error killing pod: %v", err))
			return err
		}
		if seen, err = observe.Read(ctx, w.agent.cfg.Runtime, w.uid, w.agent.cfg.Tail); err != nil {
			return err
		}
		if !seen.Stopped() {
			return errors.New("something of the pod still runs")
		}
	}
	w.agent.probes.Remove(w.uid)
	if w.stopped && p.DeletionTimestamp == nil {
		return nil
	}
	s = w.last(p, seen)
	if !w.stopped {
		w.publish(p, s, status.News{})
	}
	if err := w.agent.cfg.Data.Release(ctx, w.uid); err != nil {
		return err
	}
	w.publish(p, s, status.News{Gone: p.DeletionTimestamp != nil})
	w.rest()
	return nil
}

// rest says that nothing runs any more, to who waits for it and to pods that wait
// for room.
func (w *worker) rest() {
	if w.stopped {
		return
	}
	w.stopped = true
	close(w.quiet)
	w.agent.freed()
}
