// Package hook runs what a container wants done after its start and before its
// stop.
//
// In come a handler (exec, http, sleep), its container and the pod's address; out
// comes nothing, or the error with the words that kubelet has for it. A hook runs
// once, for as long as its context lasts.
package hook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Exec runs a command in a container; cri-api's RuntimeService has it. 0 is no
// time limit.
type Exec interface {
	ExecSync(ctx context.Context, containerID string, command []string, timeout time.Duration) (stdout, stderr []byte, err error)
}

// Call is a hook that is to run.
type Call struct {
	Handler     *corev1.LifecycleHandler
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string
	// IP is the pod's address.
	IP string
	// Say records an event about the pod; nil records none.
	Say func(kind, reason, message string)
}

// bodyBytes is how much of an answer is read, so that connections can be used
// again.
const bodyBytes = 10 * 1 << 10

// patience is how long an HTTP hook may take. Compat: it is kubelet's.
const patience = 30 * time.Second

// Runner runs hooks.
type Runner struct {
	exec Exec
	http *http.Client
}

// New returns a runner.
func New(exec Exec) *Runner {
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // Compat: hooks are not asked who they are
	return &Runner{exec: exec, http: &http.Client{Transport: t, Timeout: patience, CheckRedirect: SameHost}}
}

// SameHost follows redirects to the same host, up to ten.
func SameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// Run runs a hook.
func (r *Runner) Run(ctx context.Context, c Call) error {
	name := fmt.Sprintf("for Container %q in Pod %q failed - error: ", c.Container.Name, PodName(c.Pod))
	switch h := c.Handler; {
	case h.Exec != nil:
		if out, errOut, err := r.exec.ExecSync(ctx, c.ContainerID, h.Exec.Command, 0); err != nil {
			return fmt.Errorf("Exec lifecycle hook (%v) %s%w, message: %q", h.Exec.Command, name, err, string(out)+string(errOut))
		}
	case h.HTTPGet != nil:
		if err := r.get(ctx, c); err != nil {
			return fmt.Errorf("HTTP lifecycle hook (%s) %s%w", h.HTTPGet.Path, name, err)
		}
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
			return fmt.Errorf("Sleep lifecycle hook (%d) %scontainer terminated before sleep hook finished", h.Sleep.Seconds, name) //nolint:staticcheck // Compat: users see it
		}
	default:
		return fmt.Errorf("Cannot run handler: invalid handler: %v", h) //nolint:staticcheck // Compat: users see it
	}
	return nil
}

// PodName is how messages name a pod.
func PodName(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// get asks an HTTP hook, over plain HTTP when it does not speak HTTPS.
func (r *Runner) get(ctx context.Context, c Call) error {
	req, err := Request(ctx, c.Handler.HTTPGet, c.Container, c.IP, "lifecycle")
	if err != nil {
		return err
	}
	err = r.do(req)
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return err
	}
	plain := req.Clone(ctx)
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization")
	if r.do(plain) != nil {
		return err
	}
	if c.Say != nil {
		c.Say(corev1.EventTypeWarning, "LifecycleHTTPFallback", fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", plain.URL.Host))
	}
	return nil
}

func (r *Runner) do(req *http.Request) error {
	res, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, bodyBytes))
	return nil
}

// Request is the request that an HTTP action stands for; purpose is told in the
// user agent.
func Request(ctx context.Context, action *corev1.HTTPGetAction, c *corev1.Container, ip, purpose string) (*http.Request, error) {
	port, err := Port(action.Port, c)
	if err != nil {
		return nil, err
	}
	host := action.Host
	if host == "" {
		host = ip
	}
	u, err := url.Parse(action.Path)
	if err != nil { // Compat: a path that is no path is passed on
		u = &url.URL{Path: action.Path}
	}
	if u.Scheme = strings.ToLower(string(action.Scheme)); u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host = net.JoinHostPort(host, strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "kube-"+purpose+"/1.36")
	req.Header.Set("Accept", "*/*")
	given := map[string]bool{}
	for _, h := range action.HTTPHeaders {
		key := http.CanonicalHeaderKey(h.Name)
		if !given[key] {
			req.Header.Del(key)
			given[key] = true
		}
		req.Header.Add(key, h.Value)
	}
	if given["Accept"] && req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// Port is a port of a container, by number or name.
func Port(p intstr.IntOrString, c *corev1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		for _, named := range c.Ports {
			if named.Name == p.StrVal {
				port = int(named.ContainerPort)
			}
		}
	}
	if port <= 0 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", p.String())
	}
	return port, nil
}
