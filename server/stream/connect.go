package stream

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"
	kubelet "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"setpoint.dev/setpoint/server/lasting"
)

// Connect passes a request on to what its options are for: a container or a
// port of the pod name, a pod, a service or a node. The namespace is that of the
// request's context. It returns an error while nothing has been answered; what
// goes wrong later, and can still be said, is given to failed.
func (s *Streams) Connect(w http.ResponseWriter, r *http.Request, name string, options runtime.Object, failed func(error)) error {
	h, err := s.connect(r.Context(), name, options, proxy.NewErrorResponder(responder(failed)))
	if err != nil {
		return err
	}
	r, done := lasting.Request(s.ending, r)
	defer done()
	r.Header = r.Header.Clone()
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			r.Header.Del(name) // who is who is settled, and nobody else's to know
		}
	}
	h.ServeHTTP(lasting.Writer(s.ending, w), r)
	return nil
}

// responder tells clients what went wrong.
type responder func(error)

// Error implements proxy.SimpleErrorResponder.
func (r responder) Error(err error) { r(err) }

// connect finds where the options lead, and returns who goes there.
func (s *Streams) connect(ctx context.Context, name string, options runtime.Object, respond proxy.ErrorResponder) (http.Handler, error) {
	pods := getter{s.Objects, "pods"}
	switch o := options.(type) {
	case *core.PodExecOptions:
		to, on, err := pod.ExecLocation(ctx, pods, s, name, o)
		if err != nil {
			return nil, err
		}
		return command(to, on, translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}, respond), nil
	case *core.PodAttachOptions:
		to, on, err := pod.AttachLocation(ctx, pods, s, name, o)
		if err != nil {
			return nil, err
		}
		return command(to, on, translator.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY}, respond), nil
	case *core.PodPortForwardOptions:
		to, on, err := pod.PortForwardLocation(ctx, pods, s, name, o)
		if err != nil {
			return nil, err
		}
		return ports(to, on, respond), nil
	case *core.PodProxyOptions:
		to, through, err := pod.ResourceLocation(ctx, pods, s.pods, name)
		return page(to, through, o.Path, respond, err)
	case *core.ServiceProxyOptions:
		to, through, err := s.serviceLocation(ctx, name)
		return page(to, through, o.Path, respond, err)
	case *core.NodeProxyOptions:
		to, through, err := node.ResourceLocation(getter{s.Objects, "nodes"}, s, s.pods, ctx, name)
		return page(to, through, o.Path, respond, err)
	default:
		return nil, fmt.Errorf("nothing connects with %T", options)
	}
}

// command carries a command or a terminal. Nodes speak SPDY; clients that speak
// WebSockets are translated, unless the node says that it understands them or
// the client does not close its streams one by one.
func command(to *url.URL, on *kubelet.ConnectionInfo, streams translator.Options, respond proxy.ErrorResponder) http.Handler {
	as := proxy.NewUpgradeAwareHandler(to, on.Transport, false, true, respond)
	if takesWebSockets(on) {
		return as
	}
	translated := translator.NewStreamTranslatorHandler(to, on.Transport, 0, streams)
	return translator.NewTranslatingHandler(as, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

// ports carries connections to ports of a pod: SPDY, which clients may put into
// a WebSocket.
func ports(to *url.URL, on *kubelet.ConnectionInfo, respond proxy.ErrorResponder) http.Handler {
	as := proxy.NewUpgradeAwareHandler(to, on.Transport, false, true, respond)
	if takesWebSockets(on) {
		return as
	}
	return translator.NewTranslatingHandler(as, translator.NewTunnelingHandler(as), wsstream.IsWebSocketRequestWithTunnelingProtocol)
}

// takesWebSockets says that a node declares to translate by itself.
func takesWebSockets(on *kubelet.ConnectionInfo) bool {
	return slices.Contains(on.NodeFeatures, string(features.ExtendWebSocketsToKubelet))
}

// page passes requests on to a path at a location, unless that was not found.
func page(to *url.URL, through http.RoundTripper, path string, respond proxy.ErrorResponder, err error) (http.Handler, error) {
	if err != nil {
		return nil, err
	}
	to.Path = utilnet.JoinPreservingTrailingSlash(to.Path, path)
	return proxy.NewUpgradeAwareHandler(to, through, true, false, respond), nil
}
