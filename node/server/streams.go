package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Labels by which runtimes know whose a container or a sandbox is.
const (
	podNameLabel       = "io.kubernetes.pod.name"
	podNamespaceLabel  = "io.kubernetes.pod.namespace"
	podUIDLabel        = "io.kubernetes.pod.uid"
	containerNameLabel = "io.kubernetes.container.name"
)

// failure is an answer that is an error.
type failure struct {
	code int
	text string
}

func (f failure) Error() string { return f.text }

// fail answers with an error: its own code, or 500.
func fail(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if f, is := errors.AsType[failure](err); is {
		code = f.code
	} else if s, is := status.FromError(err); is {
		err = errors.New(s.Message())
		switch s.Code() {
		case codes.NotFound:
			code = http.StatusNotFound
		case codes.InvalidArgument:
			code = http.StatusBadRequest
		case codes.ResourceExhausted:
			code = http.StatusTooManyRequests
		}
	}
	http.Error(w, err.Error(), code)
}

// pod is the pod that a path names.
func (s *Server) pod(r *http.Request) (*corev1.Pod, error) {
	pod, is := s.Pods.Pod(r.PathValue("namespace"), r.PathValue("pod"))
	if !is {
		return nil, failure{http.StatusNotFound, "pod does not exist"}
	}
	if uid := r.PathValue("uid"); uid != "" && string(pod.UID) != uid {
		return nil, failure{http.StatusNotFound, "pod not found"}
	}
	return pod, nil
}

// container is the running container that a path names.
func (s *Server) container(r *http.Request) (id string, err error) {
	if _, err := s.pod(r); err != nil {
		return "", err
	}
	name := r.PathValue("container")
	found, err := s.Runtime.ListContainers(r.Context(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{
			podNamespaceLabel: r.PathValue("namespace"), podNameLabel: r.PathValue("pod"), containerNameLabel: name,
		},
	})
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", failure{http.StatusInternalServerError, fmt.Sprintf("container not found (%q)", name)}
	}
	newest := slices.MaxFunc(found, func(a, b *runtimeapi.Container) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
	return newest.Id, nil
}

// hasTerminal says that the container that a path names was started with one.
func (s *Server) hasTerminal(r *http.Request) bool {
	pod, err := s.pod(r)
	if err != nil {
		return false
	}
	c := find(pod, r.PathValue("container"))
	return c != nil && c.TTY
}

// find is a container of a pod; nil when it has none of that name.
func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, all := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			return (*corev1.Container)(&e.EphemeralContainerCommon)
		}
	}
	return nil
}

// wanted are the streams that a request asks for.
type wanted struct{ in, out, errs, tty bool }

func wantedOf(r *http.Request) (wanted, error) {
	is := func(name string) bool { return r.FormValue(name) == "1" }
	w := wanted{in: is("input"), out: is("output"), errs: is("error"), tty: is("tty")}
	if w.tty {
		w.errs = false // a terminal has one output
	}
	if !w.in && !w.out && !w.errs {
		return w, failure{http.StatusBadRequest, "you must specify at least 1 of stdin, stdout, stderr"}
	}
	return w, nil
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context) (string, error) {
		want, err := wantedOf(r)
		if err != nil {
			return "", err
		}
		id, err := s.container(r)
		if err != nil {
			return "", err
		}
		at, err := s.Runtime.Exec(ctx, &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: r.URL.Query()["command"], Stdin: want.in, Stdout: want.out, Stderr: want.errs, Tty: want.tty,
		})
		return at.GetUrl(), err
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context) (string, error) {
		want, err := wantedOf(r)
		if err != nil {
			return "", err
		}
		id, err := s.container(r)
		if err != nil {
			return "", err
		}
		tty := s.hasTerminal(r) // whatever is asked
		at, err := s.Runtime.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: want.in, Stdout: want.out, Stderr: want.errs && !tty, Tty: tty})
		return at.GetUrl(), err
	})
}

func (s *Server) portForward(w http.ResponseWriter, r *http.Request) {
	s.stream(w, r, func(ctx context.Context) (string, error) {
		if _, err := s.pod(r); err != nil {
			return "", err
		}
		ports, err := portsOf(r)
		if err != nil {
			return "", err
		}
		found, err := s.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{
			State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
			LabelSelector: map[string]string{podNamespaceLabel: r.PathValue("namespace"), podNameLabel: r.PathValue("pod")},
		})
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			return "", failure{http.StatusInternalServerError, fmt.Sprintf("pod not found (%q)", r.PathValue("pod")+"_"+r.PathValue("namespace"))}
		}
		newest := slices.MaxFunc(found, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(a.CreatedAt, b.CreatedAt) })
		at, err := s.Runtime.PortForward(ctx, &runtimeapi.PortForwardRequest{PodSandboxId: newest.Id, Port: ports})
		return at.GetUrl(), err
	})
}

// portsOf are the ports that a request names. Those of SPDY are named later, one by
// one.
func portsOf(r *http.Request) ([]int32, error) {
	var ports []int32
	for _, some := range r.URL.Query()["port"] {
		for text := range strings.SplitSeq(some, ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, failure{http.StatusBadRequest, fmt.Sprintf("unable to parse %q as a port: %v", text, err)}
			}
			if port < 1 {
				return nil, failure{http.StatusBadRequest, fmt.Sprintf("port %q must be > 0", text)}
			}
			ports = append(ports, int32(port))
		}
	}
	return ports, nil
}

// stream passes a connection on to the place that the runtime has for it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, locate func(ctx context.Context) (string, error)) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	at, err := locate(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	to, err := url.Parse(at)
	if err != nil {
		fail(w, err)
		return
	}
	h := proxy.NewUpgradeAwareHandler(to, nil, false, true, responder{s})
	h.ServeHTTP(w, r)
}

// responder tells clients why a stream could not be had.
type responder struct{ of *Server }

// Error implements proxy.ErrorResponder.
func (r responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	r.of.Logger.Debug("a stream could not be had from the runtime", "error", err)
	fail(w, err)
}

// run runs a command and answers with its output. Compat: words are told apart
// by blanks.
func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	id, err := s.container(r)
	if err != nil {
		fail(w, err)
		return
	}
	out, errs, err := s.Runtime.ExecSync(r.Context(), id, strings.Split(r.FormValue("cmd"), " "), 0)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(out, errs...)) // the client has gone
}
