package register

import (
	"context"
	"errors"
	"net"
	"os"

	corev1 "k8s.io/api/core/v1"
)

// observe looks at the machine and its runtime. What cannot be seen is left out,
// and is seen in the status by that.
func (r *Registrar) observe(ctx context.Context) Facts {
	f := Facts{Machine: machine(r.cfg.Dir), Kubelet: r.cfg.Version, Port: r.cfg.Port, MaxPods: r.cfg.MaxPods, Reserved: r.cfg.Reserved, Thresholds: r.cfg.Thresholds}
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	f.Addresses, err = r.cfg.Addresses()
	note(err)
	f.Runtime, err = r.cfg.Runtime.Status(ctx, false)
	note(err)
	f.Version, err = r.cfg.Runtime.Version(ctx, "v1")
	note(err)
	if r.cfg.Images != nil {
		f.Images, err = r.cfg.Images(ctx)
		note(err)
	}
	if r.cfg.Pressure != nil {
		f.Pressure = r.cfg.Pressure()
	}
	if r.cfg.Healthy != nil {
		f.Unhealthy = r.cfg.Healthy()
	}
	if err := errors.Join(errs...); err != nil && ctx.Err() == nil {
		r.cfg.Logger.WarnContext(ctx, "something of the node cannot be seen", "error", err)
	}
	return f
}

// Addresses returns where this machine is reached: the addresses by which it
// would speak to others, of each family, and its name.
func Addresses(name string) ([]corev1.NodeAddress, error) {
	var found []corev1.NodeAddress
	add := func(ip net.IP) {
		if ip != nil && !ip.IsUnspecified() {
			found = append(found, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
		}
	}
	// No packet is sent: the kernel only picks the address that it would use.
	for _, other := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		if conn, err := net.Dial("udp", other); err == nil {
			if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
				add(local.IP)
			}
			_ = conn.Close()
		}
	}
	if len(found) == 0 {
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && len(found) == 0 {
				add(n.IP)
			}
		}
	}
	if len(found) == 0 {
		add(net.IPv4(127, 0, 0, 1)) // a machine on no network reaches itself
	}
	host, err := os.Hostname()
	if err != nil {
		host = name
	}
	return append(found, corev1.NodeAddress{Type: corev1.NodeHostName, Address: host}), nil
}
