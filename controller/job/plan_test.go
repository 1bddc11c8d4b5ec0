package job

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/controller/plantest"
	"setpoint.dev/setpoint/controller/pods"
)

var began = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

type edit = func(*batchv1.Job)

func jobOf(completions, parallelism int32, edits ...edit) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi", Namespace: "default", UID: "j", Generation: 1},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism, BackoffLimit: new(int32(6)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job-name": "pi"}},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "pi"}}},
			},
		},
		Status: batchv1.JobStatus{StartTime: new(metav1.NewTime(began.Add(-time.Minute)))},
	}
	for _, e := range edits {
		e(j)
	}
	return j
}

func unbounded(j *batchv1.Job) { j.Spec.Completions = nil }
func indexed(j *batchv1.Job)   { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) }
func suspend(j *batchv1.Job)   { j.Spec.Suspend = new(true) }
func fresh(j *batchv1.Job)     { j.Status.StartTime = nil }
func deleted(j *batchv1.Job)   { j.DeletionTimestamp = new(metav1.NewTime(began)) }

func limit(n int32) edit { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }
func perIndex(n int32) edit {
	return func(j *batchv1.Job) { indexed(j); j.Spec.BackoffLimitPerIndex = &n }
}
func maxLost(n int32) edit  { return func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = &n } }
func deadline(s int64) edit { return func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &s } }
func replaced(by batchv1.PodReplacementPolicy) edit {
	return func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = &by }
}

func counted(succeeded, failed int32, uncounted ...types.UID) edit {
	return func(j *batchv1.Job) {
		j.Status.Succeeded, j.Status.Failed = succeeded, failed
		j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: uncounted}
	}
}

func completed(text string) edit { return func(j *batchv1.Job) { j.Status.CompletedIndexes = text } }

func holds(c batchv1.JobConditionType, reason string) edit {
	return func(j *batchv1.Job) {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue, Reason: reason, Message: "as said"})
	}
}

func onExit(action batchv1.PodFailurePolicyAction, codes ...int32) edit {
	return func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes},
		}}}
	}
}

func succeedsWith(text string, count int32) edit {
	return func(j *batchv1.Job) {
		r := batchv1.SuccessPolicyRule{SucceededIndexes: &text}
		if count > 0 {
			r.SucceededCount = &count
		}
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{r}}
	}
}

// podOf is a pod of a phase: "name phase[ index][ flag...]", of an exit at a time.
func podOf(text string) *corev1.Pod {
	fields := strings.Fields(text)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: fields[0], Namespace: "default", UID: types.UID("uid-" + fields[0]), Finalizers: []string{batchv1.JobTrackingFinalizer},
		CreationTimestamp: metav1.NewTime(began.Add(-time.Hour)), Annotations: map[string]string{},
	}, Status: corev1.PodStatus{Phase: corev1.PodPhase(fields[1])}}
	end := began.Add(-30 * time.Minute)
	code := int32(1)
	for _, f := range fields[2:] {
		key, value, _ := strings.Cut(f, "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "index":
			p.Annotations[batchv1.JobCompletionIndexAnnotation] = value
		case "tries":
			p.Annotations[batchv1.JobIndexFailureCountAnnotation] = value
		case "counted":
			p.Finalizers = nil
		case "deleted":
			p.DeletionTimestamp = new(metav1.NewTime(began))
		case "ready":
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		case "restarts":
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: int32(n)}}
		case "exit":
			code = int32(n)
		case "ago":
			end = began.Add(-time.Duration(n) * time.Second)
		}
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		if p.Status.Phase == corev1.PodSucceeded {
			code = 0
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(end)}}}}
	}
	return p
}

func TestPlan(t *testing.T) {
	cases := []struct {
		name string
		job  *batchv1.Job
		pods string // one on each line
	}{
		{name: "first pods", job: jobOf(5, 2, fresh)},
		{name: "no more than are needed", job: jobOf(5, 4, counted(3, 0)), pods: "a Running ready"},
		{name: "a pod succeeds", job: jobOf(3, 1), pods: "a Succeeded"},
		{name: "its finalizer is off", job: jobOf(3, 1, counted(0, 0, "uid-a")), pods: "a Succeeded counted\nb Running"},
		{name: "its finalizer is still on", job: jobOf(3, 1, counted(0, 0, "uid-a")), pods: "a Succeeded\nb Running"},
		{name: "the last success", job: jobOf(2, 2, counted(1, 0)), pods: "b Succeeded"},
		{name: "all are counted", job: jobOf(2, 2, counted(1, 0, "uid-b"), holds(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached)), pods: "b Succeeded counted"},
		{name: "complete", job: jobOf(1, 1, holds(batchv1.JobComplete, "x")), pods: "a Succeeded"},
		{name: "none are asked for", job: jobOf(0, 1)},
		{name: "any success: the others go on", job: jobOf(0, 3, unbounded), pods: "a Succeeded\nb Running"},
		{name: "any success: all have ended", job: jobOf(0, 3, unbounded), pods: "a Succeeded\nb Failed"},
		{name: "too many run", job: jobOf(5, 1), pods: "a Running ready\nb Pending\nc Running"},
		{name: "a failure is waited out", job: jobOf(1, 1), pods: "a Failed ago=4"},
		{name: "two failures are waited out longer", job: jobOf(1, 1, counted(0, 1)), pods: "a Failed ago=30 counted\nb Failed ago=4"},
		{name: "a success in between", job: jobOf(5, 1), pods: "a Failed ago=30\nb Succeeded ago=20\nc Failed ago=4"},
		{name: "after the wait", job: jobOf(1, 1), pods: "a Failed ago=11"},
		{name: "too many failures", job: jobOf(1, 1, limit(1), counted(0, 1)), pods: "a Failed\nb Running ready"},
		{name: "failed: pods end", job: jobOf(1, 1, limit(1), counted(0, 2), holds(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded)), pods: "b Running deleted"},
		{name: "failed: pods have ended", job: jobOf(1, 1, limit(1), counted(0, 2), holds(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded)), pods: "b Failed counted"},
		{name: "restarts in place", job: jobOf(1, 1, limit(3), func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }), pods: "a Running restarts=3"},
		{name: "deadline to come", job: jobOf(1, 1, deadline(100)), pods: "a Running"},
		{name: "deadline over", job: jobOf(1, 1, deadline(60)), pods: "a Running"},
		{name: "suspended", job: jobOf(1, 1, suspend), pods: "a Running ready"},
		{name: "born suspended", job: jobOf(1, 1, suspend, fresh)},
		{name: "resumed", job: jobOf(1, 1, fresh, holds(batchv1.JobSuspended, "JobSuspended"))},
		{name: "deleted pod counts as failed", job: jobOf(1, 1), pods: "a Running deleted"},
		{name: "deleted pod is waited for", job: jobOf(1, 1, replaced(batchv1.Failed)), pods: "a Running deleted"},
		{name: "job is deleted", job: jobOf(1, 1, deleted), pods: "a Running"},
		{name: "policy: ignored", job: jobOf(1, 1, onExit(batchv1.PodFailurePolicyActionIgnore, 42)), pods: "a Failed exit=42"},
		{name: "policy: counted", job: jobOf(1, 1, onExit(batchv1.PodFailurePolicyActionCount, 42)), pods: "a Failed exit=42"},
		{name: "policy: the job fails", job: jobOf(1, 1, onExit(batchv1.PodFailurePolicyActionFailJob, 42)), pods: "a Failed exit=42\nb Running"},
		{name: "policy: another code", job: jobOf(1, 1, onExit(batchv1.PodFailurePolicyActionFailJob, 42)), pods: "a Failed exit=1"},
		{name: "indexed: first pods", job: jobOf(5, 3, indexed)},
		{name: "indexed: gaps are filled", job: jobOf(9, 4, indexed, completed("0,2-4")), pods: "a Running index=1\nb Running index=6"},
		{name: "indexed: one twice, one without, one beyond", job: jobOf(3, 3, indexed), pods: "a Pending index=0\nb Running index=0 ready\nc Running\nd Running index=7\ne Running index=1"},
		{name: "indexed: successes", job: jobOf(5, 5, indexed, completed("1")), pods: "a Succeeded index=0\nb Succeeded index=3\nc Succeeded index=1"},
		{name: "indexed: success of some is enough", job: jobOf(5, 5, indexed, succeedsWith("0,4", 0)), pods: "a Succeeded index=0\nb Succeeded index=4\nc Running index=1"},
		{name: "indexed: success of one of some is enough", job: jobOf(5, 5, indexed, succeedsWith("0-4", 1)), pods: "a Succeeded index=2\nb Running index=1"},
		{name: "per index: next try", job: jobOf(2, 2, perIndex(1)), pods: "a Failed index=0 tries=0\nb Running index=1 tries=0"},
		{name: "per index: next try runs", job: jobOf(2, 2, perIndex(1)), pods: "a Failed index=0 tries=0\nb Running index=1 tries=0\nc Running index=0 tries=1"},
		{name: "per index: tries are over", job: jobOf(2, 2, perIndex(1)), pods: "a Failed index=0 tries=1\nb Running index=1 tries=0"},
		{name: "per index: fails at the end", job: jobOf(2, 2, perIndex(0), completed("1")), pods: "a Failed index=0 tries=0"},
		{name: "per index: too many are lost", job: jobOf(4, 4, perIndex(0), maxLost(1)), pods: "a Failed index=0\nb Failed index=2\nc Running index=1"},
		{name: "per index: waits", job: jobOf(2, 2, perIndex(3)), pods: "a Failed index=0 tries=1 ago=5\nb Succeeded index=1 counted"},
	}
	var b strings.Builder
	for _, c := range cases {
		var pods []*corev1.Pod
		for line := range strings.Lines(c.pods) {
			pods = append(pods, podOf(line))
		}
		fmt.Fprintf(&b, "# %s\n%s\n", c.name, describe(plan(Observed{Job: c.job, Pods: pods, Now: began})))
	}
	plantest.Golden(t, "plan.txt", b.String())
}

// describe writes a plan down for people.
func describe(p Plan) string {
	var b strings.Builder
	for _, gone := range p.Delete {
		fmt.Fprintf(&b, "delete %s\n", gone.Name)
	}
	for _, made := range p.Create {
		fmt.Fprintf(&b, "create %s host=%q env=%d %v\n", made.GenerateName, made.Spec.Hostname, len(made.Spec.Containers[0].Env), made.Annotations)
	}
	if p.Status != nil {
		s := p.Status.Status
		fmt.Fprintf(&b, "status active=%d ready=%d terminating=%d succeeded=%d failed=%d started=%v", s.Active, *s.Ready, *s.Terminating, s.Succeeded, s.Failed, s.StartTime != nil)
		if u := s.UncountedTerminatedPods; len(u.Succeeded)+len(u.Failed) > 0 {
			fmt.Fprintf(&b, " uncounted=%v%v", u.Succeeded, u.Failed)
		}
		if s.CompletedIndexes != "" {
			fmt.Fprintf(&b, " done=%s", s.CompletedIndexes)
		}
		if s.FailedIndexes != nil {
			fmt.Fprintf(&b, " lost=%s", *s.FailedIndexes)
		}
		if s.CompletionTime != nil {
			b.WriteString(" ended")
		}
		b.WriteString("\n")
		for _, c := range s.Conditions {
			fmt.Fprintf(&b, "  %s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	for _, r := range p.Release {
		fmt.Fprintf(&b, "release %s\n", r.Name)
	}
	for _, e := range p.Events {
		fmt.Fprintf(&b, "tell %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	if p.Again > 0 {
		fmt.Fprintf(&b, "again in %s\n", p.Again)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// A job whose pods end as they like, whose plans are cut off at any step and
// which is looked at again, counts every pod once and ends.
func TestJobsCountEveryPodOnce(t *testing.T) {
	for seed := range uint64(400) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { simulate(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

type world struct {
	random            *rand.Rand
	job               *batchv1.Job
	pods              []*corev1.Pod
	now               time.Time
	made              int
	succeeded, failed int32 // how many really did
}

func simulate(t *testing.T, random *rand.Rand) {
	n := 1 + random.Int32N(12)
	w := &world{random: random, now: began, job: jobOf(n, 1+random.Int32N(6), fresh, limit(random.Int32N(6)))}
	if random.IntN(2) == 0 {
		indexed(w.job)
		if random.IntN(2) == 0 {
			w.job.Spec.BackoffLimitPerIndex, w.job.Spec.BackoffLimit = new(random.Int32N(3)), new(int32(1<<30))
		}
	}
	for range 20000 {
		w.now = w.now.Add(time.Duration(random.IntN(20)) * time.Second)
		if len(w.pods) > 0 && random.IntN(2) == 0 {
			w.turn(w.pods[random.IntN(len(w.pods))])
		} else {
			w.reconcile()
		}
		running := 0
		for _, p := range w.pods {
			if pods.Active(p) {
				running++
			}
		}
		if running > int(*w.job.Spec.Parallelism) {
			t.Fatalf("%d pods run, of at most %d", running, *w.job.Spec.Parallelism)
		}
		if isFinished(w.job) {
			break
		}
	}
	st := w.job.Status
	switch {
	case !isFinished(w.job):
		t.Fatalf("the job did not end: %+v", st)
	case st.Failed != w.failed || st.CompletedIndexes == "" && st.Succeeded != w.succeeded:
		t.Errorf("%d succeeded and %d failed, counted are %d and %d", w.succeeded, w.failed, st.Succeeded, st.Failed)
	case has(st.Conditions, batchv1.JobComplete) && st.Succeeded < n:
		t.Errorf("complete with %d of %d", st.Succeeded, n)
	}
	for _, p := range w.pods {
		if tracked(p) {
			t.Errorf("%s keeps its finalizer", p.Name)
		}
	}
}

// reconcile carries out a plan, or the first part of it.
func (w *world) reconcile() {
	p := plan(Observed{Job: w.job, Pods: w.pods, Now: w.now})
	for _, gone := range p.Delete {
		w.end(gone, corev1.PodFailed)
	}
	for _, made := range p.Create {
		made.Name = fmt.Sprintf("pod-%d", w.made)
		made.UID, made.Status.Phase, made.CreationTimestamp = types.UID(made.Name), corev1.PodRunning, metav1.NewTime(w.now)
		w.made++
		w.pods = append(w.pods, made)
	}
	if w.random.IntN(4) == 0 {
		return
	}
	if p.Status != nil {
		w.job = p.Status
	}
	for _, r := range p.Release {
		if w.random.IntN(4) == 0 {
			return
		}
		r.Finalizers = slices.DeleteFunc(r.Finalizers, func(f string) bool { return f == batchv1.JobTrackingFinalizer })
	}
}

func (w *world) turn(p *corev1.Pod) {
	if !pods.Active(p) {
		return
	}
	if w.random.IntN(3) == 0 {
		w.end(p, corev1.PodFailed)
	} else {
		w.end(p, corev1.PodSucceeded)
	}
}

func (w *world) end(p *corev1.Pod, as corev1.PodPhase) {
	if !pods.Active(p) {
		return
	}
	p.Status.Phase = as
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(w.now)}}}}
	if as == corev1.PodFailed {
		w.failed++
	} else {
		w.succeeded++
	}
}
