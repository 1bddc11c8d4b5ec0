// Package serviceip gives services their cluster addresses and node ports, and
// takes them back.
//
// In comes a service on its way to the store, with the plane as it is now; out
// go the service with its values filled in and the changes that have to happen
// in the same commit. Nothing is remembered in between. What is taken is what
// the store says is taken:
//
//	ipaddresses.networking.k8s.io  10.0.0.17  IPAddress with the service as parent
//	servicenodeports               30080      {"service":"default/web"}
//
// An address or port is claimed by creating its entry and returned by removing
// it, at the very revision at which the service gets or loses it. Of two writes
// that want the same one, on this server or another, the second fails its
// condition and chooses again. A crash leaves either both or none.
//
// Compat: what is filled in, carried over and refused, and with which words, is
// what kube-apiserver does; a dry run shows its placeholders.
package serviceip

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/kinds"
)

// Config says what there is to give. Ranges of addresses are not part of it:
// they are ServiceCIDR objects.
type Config struct {
	// NodePorts are the ports that services may have on every node; the zero
	// value means 30000-32767.
	NodePorts net.PortRange
}

// Allocator gives addresses and ports. It holds no state.
type Allocator struct {
	ports net.PortRange
}

// New returns an allocator.
func New(cfg Config) *Allocator {
	if cfg.NodePorts.Size == 0 {
		cfg.NodePorts = net.PortRange{Base: 30000, Size: 2768}
	}
	return &Allocator{ports: cfg.NodePorts}
}

// Join fills in a service that is created or updated, and returns what goes
// into its commit. It is the Join of the services' kinds.Resource.
func (a *Allocator) Join(ctx context.Context, w kinds.Write) ([]kinds.Companion, error) {
	r, err := readRanges(ctx, w.Stored)
	if err != nil {
		return nil, err
	}
	d := &draft{ctx: ctx, stored: w.Stored, dryRun: w.DryRun, ranges: r, ports: a.ports, claimed: map[int]bool{}, returned: map[string]bool{}}
	d.service, _ = w.Object.(*core.Service)
	old, _ := w.Old.(*core.Service)
	if old != nil {
		complete(old, r.primary)
	}
	switch {
	case d.service == nil:
		d.owner = old
		err = d.remove(old)
	case old == nil:
		d.owner = d.service
		err = d.create()
	default:
		d.owner = d.service
		err = d.update(old)
	}
	return d.companions, err
}

// draft is one write of a service.
type draft struct {
	ctx    context.Context
	stored kinds.Reader
	dryRun bool
	ranges *ranges
	ports  net.PortRange

	service *core.Service
	owner   *core.Service // whose addresses and ports these are
	// claimed are the ports that this write takes; returned are the entries,
	// by table and key, that it gives back.
	claimed    map[int]bool
	returned   map[string]bool
	companions []kinds.Companion
}

func (d *draft) create() error {
	alignAddresses(d.service, nil)
	dropInternalPolicy(d.service)
	if err := d.fillFamilies(nil); err != nil {
		return err
	}
	if err := d.fillAddresses(); err != nil {
		return err
	}
	return d.fillPorts()
}

func (d *draft) update(old *core.Service) error {
	carryOver(d.service, old)
	alignAddresses(d.service, old)
	dropInternalPolicy(d.service)
	if err := d.fillFamilies(old); err != nil {
		return err
	}
	if err := d.changeAddresses(old); err != nil {
		return err
	}
	return d.changePorts(old)
}

// remove returns all that the service has. Its endpoints go with it: a service
// of the same name must not find them.
func (d *draft) remove(old *core.Service) error {
	if hasAddresses(old) {
		for _, ip := range old.Spec.ClusterIPs {
			if err := d.returnAddress(ip); err != nil {
				return err
			}
		}
	}
	for _, port := range heldPorts(old) {
		if err := d.returnPort(port); err != nil {
			return err
		}
	}
	return d.returnEntry(endpointsTable, old.Namespace+"/"+old.Name, func(claim) bool { return true })
}

// invalid refuses the service because of its fields.
func (d *draft) invalid(errs ...*field.Error) error {
	return apierrors.NewInvalid(core.Kind("Service"), d.service.Name, errs)
}

// hasAddresses says that the service is of a kind that has cluster addresses:
// neither external nor headless.
func hasAddresses(s *core.Service) bool {
	return s.Spec.Type != core.ServiceTypeExternalName && (len(s.Spec.ClusterIPs) == 0 || s.Spec.ClusterIPs[0] != core.ClusterIPNone)
}
