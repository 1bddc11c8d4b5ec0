package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/log"
)

// containerLogs answers with the log of a container.
func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	options, err := logOptions(r.URL.Query())
	if err != nil {
		fail(w, err)
		return
	}
	namespace, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	pod, is := s.Pods.Pod(namespace, name)
	if !is {
		fail(w, failure{http.StatusNotFound, fmt.Sprintf("pod %q does not exist", name)})
		return
	}
	if find(pod, container) == nil {
		fail(w, failure{http.StatusNotFound, fmt.Sprintf("container %q not found in pod %q", container, name)})
		return
	}
	id, err := logged(pod, container, options.Previous)
	if err != nil {
		fail(w, failure{http.StatusBadRequest, err.Error()})
		return
	}
	if err := s.writeLog(w, r, id, options); err != nil {
		fail(w, failure{http.StatusBadRequest, err.Error()})
	}
}

// writeLog writes the log of a container by its id. It returns an error while
// nothing has been written.
func (s *Server) writeLog(w http.ResponseWriter, r *http.Request, id string, options *corev1.PodLogOptions) error {
	is, err := s.Runtime.ContainerStatus(r.Context(), id, false)
	if err != nil {
		s.Logger.Debug("no log of a container", "container", id, "error", err)
		return fmt.Errorf("unable to retrieve container logs for %s", id)
	}
	out := &flusher{w: w}
	if options.Follow {
		out.flush() // the client learns that there is a log before it has a line
	}
	stdout, stderr := io.Writer(out), io.Writer(out)
	if options.Stream != nil {
		switch *options.Stream {
		case corev1.LogStreamStdout:
			stderr = nil
		case corev1.LogStreamStderr:
			stdout = nil
		}
	}
	running := func(ctx context.Context) (bool, error) { return s.running(ctx, id) }
	err = log.Read(r.Context(), is.GetStatus().GetLogPath(), options, running, stdout, stderr)
	if out.begun {
		return nil // who reads is gone, or sees that it ends
	}
	return err
}

// running says whether a container runs. One of which the runtime cannot say
// does: containers outlive runtimes.
func (s *Server) running(ctx context.Context, id string) (bool, error) {
	is, err := s.Runtime.ContainerStatus(ctx, id, false)
	if status.Code(err) == codes.Unavailable {
		return true, nil
	}
	return is.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, err
}

// flusher hands on each write at once.
type flusher struct {
	w     http.ResponseWriter
	begun bool
}

// Write implements io.Writer.
func (f *flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		f.flush()
	}
	return n, err
}

func (f *flusher) flush() {
	if !f.begun {
		f.w.Header().Set("Content-Type", "text/plain")
	}
	f.begun = true
	_ = http.NewResponseController(f.w).Flush() // the client has gone
}

// logged is the id of the container whose log is meant: the one that runs, or the
// one that ran last.
func logged(pod *corev1.Pod, name string, previous bool) (string, error) {
	var of *corev1.ContainerStatus
	all := slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses)
	for i := range all {
		if all[i].Name == name {
			of = &all[i]
			break
		}
	}
	no := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("container %q in pod %q "+format, append([]any{name, pod.Name}, args...)...)
	}
	if of == nil {
		return no("is not available")
	}
	now, last := of.State, ""
	if of.LastTerminationState.Terminated != nil {
		last = of.LastTerminationState.Terminated.ContainerID
	}
	switch {
	case previous && last == "":
		return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
	case previous:
		return bare(last), nil
	case now.Running != nil:
		return bare(of.ContainerID), nil
	case now.Terminated != nil && now.Terminated.ContainerID != "":
		return bare(now.Terminated.ContainerID), nil
	case last != "":
		return bare(last), nil
	case now.Terminated != nil || of.LastTerminationState.Terminated != nil:
		return no("is terminated")
	case now.Waiting == nil:
		return no("is waiting to start - no logs yet")
	}
	switch reason := now.Waiting.Reason; reason {
	case "ErrImagePull":
		return no("is waiting to start: image can't be pulled")
	case "ImagePullBackOff":
		return no("is waiting to start: trying and failing to pull image")
	default:
		return no("is waiting to start: %v", reason)
	}
}

// bare is the id of a container without the name of its runtime in front.
func bare(id string) string {
	if _, after, found := strings.Cut(id, "://"); found {
		return after
	}
	return id
}

// Answers to requests that cannot be read. Compat: they are kubelet's.
var (
	errUnreadable = failure{http.StatusBadRequest, `{"message": "Unable to decode query."}`}
	errInvalid    = failure{http.StatusUnprocessableEntity, `{"message": "Invalid request."}`}
)

// logOptions reads what is asked of a log.
func logOptions(q url.Values) (*corev1.PodLogOptions, error) {
	o := &corev1.PodLogOptions{}
	for name, to := range map[string]*bool{"follow": &o.Follow, "previous": &o.Previous, "timestamps": &o.Timestamps} {
		if text := q.Get(name); text != "" {
			*to = text != "false" && text != "0"
		}
	}
	for name, to := range map[string]struct {
		to    **int64
		least int64
	}{"sinceSeconds": {&o.SinceSeconds, 1}, "tailLines": {&o.TailLines, 0}, "limitBytes": {&o.LimitBytes, 1}} {
		text := q.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, errUnreadable
		}
		if n < to.least {
			return nil, errInvalid
		}
		*to.to = &n
	}
	if text := q.Get("sinceTime"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, errUnreadable
		}
		o.SinceTime = &metav1.Time{Time: at}
	}
	if o.SinceTime != nil && o.SinceSeconds != nil {
		return nil, errInvalid
	}
	if text := q.Get("stream"); text != "" {
		if !slices.Contains([]string{corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr}, text) {
			return nil, errInvalid
		}
		o.Stream = &text
	}
	return o, nil
}
