package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"setpoint.dev/setpoint/node/hook"
)

// tries is how often a probe that could not be carried out is carried out again.
const tries = 3

// outputBytes is how much of an answer is looked at. Compat: it is kubelet's.
const outputBytes = 10 * 1 << 10

// answer is what a probe came to: a failure, a warning or nothing of note.
type answer struct {
	outcome outcome
	warning bool
	output  string
}

// check carries out a probe, tells of what is not well, and returns what counts:
// unknown is not counted.
func (s *Set) check(v view, kind Kind, c *corev1.Container, p *corev1.Probe, id string) outcome {
	var a answer
	var err error
	for range tries {
		if a, err = s.carryOut(v, c, p, id); err == nil {
			break
		}
	}
	switch {
	case s.ctx.Err() != nil:
		return unknown
	case err != nil:
		s.cfg.Say(v.pod, c, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %s", kind, err))
		return unknown
	case a.warning:
		s.cfg.Say(v.pod, c, corev1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", kind, a.output))
	case a.outcome == failure:
		s.cfg.Say(v.pod, c, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, a.output))
	}
	return a.outcome
}

func (s *Set) carryOut(v view, c *corev1.Container, p *corev1.Probe, id string) (answer, error) {
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	ctx := s.ctx
	switch {
	case p.Exec != nil:
		return s.exec(ctx, c, p.Exec.Command, id, timeout)
	case p.HTTPGet != nil:
		req, err := hook.Request(ctx, p.HTTPGet, c, v.status.PodIP, "probe")
		if err != nil {
			return answer{}, err
		}
		return get(req, timeout)
	case p.TCPSocket != nil:
		port, err := hook.Port(p.TCPSocket.Port, c)
		if err != nil {
			return answer{}, err
		}
		host := p.TCPSocket.Host
		if host == "" {
			host = v.status.PodIP
		}
		return connect(ctx, net.JoinHostPort(host, strconv.Itoa(port)), timeout), nil
	case p.GRPC != nil:
		service := ""
		if p.GRPC.Service != nil {
			service = *p.GRPC.Service
		}
		return health(ctx, net.JoinHostPort(v.status.PodIP, strconv.Itoa(int(p.GRPC.Port))), service, timeout), nil
	default:
		return answer{}, fmt.Errorf("missing probe handler for %s:%s", hook.PodName(v.pod), c.Name)
	}
}

// exec runs a command in the container.
func (s *Set) exec(ctx context.Context, c *corev1.Container, command []string, id string, timeout time.Duration) (answer, error) {
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = e.Value
	}
	var words []string
	for _, w := range command {
		words = append(words, s.cfg.Expand(w, values))
	}
	out, errOut, err := s.cfg.Exec.ExecSync(ctx, id, words, timeout)
	output := string(append(out, errOut...))
	output = output[:min(len(output), outputBytes)]
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return answer{outcome: success, output: output}, nil
	case errors.As(err, &exit):
		return answer{outcome: failure, output: output}, nil
	case errors.Is(err, remote.ErrCommandTimedOut):
		return answer{outcome: failure, output: err.Error()}, nil
	default:
		return answer{}, err
	}
}

// dialer closes connections at once: probes leave nothing behind.
func dialer() *net.Dialer {
	return &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { linger(fd) })
	}}
}

// get asks over HTTP. Answers from 200 to 399 are good; a redirect to another host
// is not followed.
func get(req *http.Request, timeout time.Duration) (answer, error) {
	t := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // Compat: probes do not ask who answers
		DisableKeepAlives: true, DisableCompression: true, Proxy: nil, DialContext: dialer().DialContext,
	}
	defer t.CloseIdleConnections()
	res, err := (&http.Client{Transport: t, Timeout: timeout, CheckRedirect: hook.SameHost}).Do(req)
	if err != nil {
		return answer{outcome: failure, output: err.Error()}, nil
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, outputBytes))
	switch {
	case err != nil:
		return answer{}, err
	case res.StatusCode >= http.StatusMultipleChoices && res.StatusCode < http.StatusBadRequest:
		return answer{outcome: success, warning: true, output: "Probe terminated redirects, Response body: " + string(body)}, nil
	case res.StatusCode >= http.StatusOK && res.StatusCode < http.StatusMultipleChoices:
		return answer{outcome: success}, nil
	default:
		return answer{outcome: failure, output: fmt.Sprintf("HTTP probe failed with statuscode: %d", res.StatusCode)}, nil
	}
}

// connect opens a connection.
func connect(ctx context.Context, address string, timeout time.Duration) answer {
	d := dialer()
	d.Timeout = timeout
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return answer{outcome: failure, output: err.Error()}
	}
	_ = conn.Close()
	return answer{outcome: success}
}
