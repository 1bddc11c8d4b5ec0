package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"

	"setpoint.dev/setpoint/server/rest"
	"setpoint.dev/setpoint/server/stream"
)

// NodeAccess says how the servers of nodes are reached. Its fields are
// kube-apiserver's flags; the zero value works.
type NodeAccess struct {
	// CertFile and KeyFile are what nodes are shown; "" means a certificate of the
	// control plane's own authority.
	CertFile, KeyFile string
	// CAFile has who may vouch for nodes; "" means the control plane's own
	// authority.
	CAFile string
	// Addresses are the types of nodes' addresses, those that are tried first first;
	// none means stream.DefaultAddresses.
	Addresses []string
	// Timeout is how long it may take to connect to a node; 0 means 30 seconds.
	Timeout time.Duration
	// Dial connects to nodes and pods; nil means by the network of this machine.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// openStreams makes what reaches nodes. Forks have none: their pods do not run, and
// their nodes are main's, where other rules hold.
func (a *App) openStreams(objects *rest.Objects) (*stream.Streams, error) {
	if a.main != nil {
		return nil, nil
	}
	cfg := a.cfg.NodeAccess
	s := stream.Config{Objects: objects, Certificate: a.authority.NodeClient, Roots: a.authority.ClientPool(), Timeout: cfg.Timeout, Dial: cfg.Dial, Drain: a.drained}
	for _, t := range cfg.Addresses {
		s.Addresses = append(s.Addresses, corev1.NodeAddressType(t))
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("--kubelet-client-certificate and --kubelet-client-key go together")
	}
	if cfg.CertFile != "" {
		given, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-client-certificate, --kubelet-client-key: %w", err)
		}
		s.Certificate = func() (*tls.Certificate, error) { return &given, nil }
	}
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--kubelet-certificate-authority: %w", err)
		}
		s.Roots = x509.NewCertPool()
		if !s.Roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--kubelet-certificate-authority: no certificates in %s", cfg.CAFile)
		}
	}
	return stream.New(s), nil
}
