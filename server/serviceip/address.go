package serviceip

import (
	"errors"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	netutils "k8s.io/utils/net"

	"setpoint.dev/setpoint/kinds"
)

// managedBy is how an IPAddress says that it came and goes with a service.
// Compat: upstream's repair loop and its users select by it.
const managedBy = "ipallocator.k8s.io"

// Why there is no address or port. Compat: clients read these words.
var (
	errFull           = errors.New("range is full")
	errAddressTaken   = errors.New("provided IP is already allocated")
	errOutsideNetwork = errors.New("the provided network does not match the current range")
	errRangesNotReady = errors.New("allocator not ready")
)

var (
	addressesPath = field.NewPath("spec", "clusterIPs")
	familiesPath  = field.NewPath("spec", "ipFamilies")
	policyPath    = field.NewPath("spec", "ipFamilyPolicy")
)

// fillAddresses gives the service an address of each of its families: the ones
// that it names, or any.
func (d *draft) fillAddresses() error {
	if !hasAddresses(d.service) {
		return nil
	}
	spec := &d.service.Spec
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(spec.ClusterIPs, "")
	}
	for i := range spec.IPFamilies {
		if err := d.fillAddress(i); err != nil {
			return err
		}
	}
	return nil
}

// fillAddress claims the address that the service names, or finds one.
func (d *draft) fillAddress(i int) error {
	spec := &d.service.Spec
	ip, family := spec.ClusterIPs[i], spec.IPFamilies[i]
	if ip != "" {
		addr, err := parse(ip)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if err := d.claimAddress(addr, family); err != nil {
			return d.invalid(field.Invalid(addressesPath, spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", ip, err)))
		}
		return nil
	}
	addr, err := d.findAddress(family)
	switch {
	case errors.Is(err, errFull):
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", d.service.Name, err))
	case err != nil:
		return d.invalid(field.Invalid(addressesPath, spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
	}
	spec.ClusterIPs[i] = addr.String()
	if i == 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return nil
}

// changeAddresses claims and returns what an update makes necessary: all with a
// change from or to ExternalName, the second address with one of the number of
// families.
func (d *draft) changeAddresses(old *core.Service) error {
	if keepsPreference(d.service, old) {
		return nil
	}
	spec := &d.service.Spec
	wasExternal, isExternal := old.Spec.Type == core.ServiceTypeExternalName, spec.Type == core.ServiceTypeExternalName
	switch {
	case wasExternal && !isExternal:
		return d.fillAddresses()
	case !hasAddresses(old):
		return nil
	case isExternal:
		for _, ip := range old.Spec.ClusterIPs {
			if err := d.returnAddress(ip); err != nil {
				return err
			}
		}
	case len(old.Spec.IPFamilies) == 1 && len(spec.IPFamilies) == 2:
		if len(spec.ClusterIPs) < 2 {
			// Not in place: the slice may be the old service's.
			spec.ClusterIPs = []string{spec.ClusterIP, ""}
		}
		return d.fillAddress(1)
	case len(old.Spec.IPFamilies) == 2 && len(spec.IPFamilies) == 1 && len(old.Spec.ClusterIPs) == 2:
		return d.returnAddress(old.Spec.ClusterIPs[1])
	}
	return nil
}

func (d *draft) claimAddress(addr netip.Addr, family core.IPFamily) error {
	within := d.ranges.of(family)
	if d.dryRun {
		// Compat: a dry run does not look whether the address is taken.
		return within.admits(addr)
	}
	if !within.contains(addr) {
		return errOutsideNetwork
	}
	taken, err := d.isAddressTaken(addr)
	switch {
	case err != nil:
		return err
	case taken:
		return errAddressTaken
	}
	d.keepAddress(addr)
	return nil
}

func (d *draft) findAddress(family core.IPFamily) (netip.Addr, error) {
	within := d.ranges.of(family)
	if d.dryRun {
		if len(within) == 0 {
			return netip.Addr{}, errRangesNotReady
		}
		// Compat: the range's own address stands for one of its addresses.
		return within[0].Addr(), nil
	}
	for _, r := range within {
		for _, b := range r.bands() {
			for addr := range b.shuffled() {
				taken, err := d.isAddressTaken(addr)
				if err != nil {
					return netip.Addr{}, err
				}
				if !taken {
					d.keepAddress(addr)
					return addr, nil
				}
			}
		}
	}
	return netip.Addr{}, errFull
}

// isAddressTaken says that the address has its IPAddress, or is the first one
// of a service, whose IPAddress somebody may have removed.
func (d *draft) isAddressTaken(addr netip.Addr) (bool, error) {
	value, err := d.stored.Get(d.ctx, addressesTable, addr.String())
	if err != nil || value != nil {
		return true, err
	}
	return d.stored.Has(d.ctx, servicesTable, "spec.clusterIP", addr.String())
}

func (d *draft) keepAddress(addr netip.Addr) {
	d.companions = append(d.companions, kinds.Companion{Object: NewIPAddress(addr, d.owner.Namespace, d.owner.Name)})
}

// NewIPAddress is the object that says that an address is a service's.
func NewIPAddress(addr netip.Addr, namespace, name string) *networkingv1.IPAddress {
	family := core.IPv4Protocol
	if addr.Is6() {
		family = core.IPv6Protocol
	}
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: addr.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family),
			networkingv1.LabelManagedBy:       managedBy,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: namespace, Name: name,
		}},
	}
}

func (d *draft) returnAddress(ip string) error {
	if ip == "" || ip == core.ClusterIPNone {
		return nil
	}
	addr, err := parse(ip)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return d.returnEntry(addressesTable, addr.String(), func(s claim) bool { return s.isServices() && s.parent() == d.ownerKey() })
}

// parse reads an address as generously as upstream does: leading zeros are
// decimal.
func parse(ip string) (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(ip))
	if !ok {
		return netip.Addr{}, fmt.Errorf("failed to parse service IP %q", ip)
	}
	return addr.Unmap(), nil
}
