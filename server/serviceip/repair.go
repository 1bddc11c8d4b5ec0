package serviceip

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/kinds"
)

// Watched are the tables that Repair reads: without a change in one of them it
// has nothing new to say, but for addresses that come of age.
func Watched() []string { return []string{servicesTable, addressesTable, rangesTable} }

// grace is how long an IPAddress may be there before its service is. Compat:
// upstream's, whose services come after their addresses.
const grace = 60 * time.Second

// holder is the little that has to be known of a service.
type holder struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Type       corev1.ServiceType `json:"type"`
		ClusterIPs []string           `json:"clusterIPs"`
	} `json:"spec"`
}

// Repair returns what has to happen so that every address of a service has its
// IPAddress, and no IPAddress that came with a service is left without one. An
// IPAddress that says something wrong is removed, and made anew when it is asked
// again. wait says that something has to be looked at again when it is older.
//
// Compat: an address in no range is left alone, and so are IPAddress objects
// that others manage, unless a service has the address.
func Repair(ctx context.Context, stored kinds.Reader, now time.Time) (fixes []kinds.Companion, wait bool, err error) {
	within, err := readRanges(ctx, stored)
	if err != nil {
		return nil, false, err
	}
	services, err := readHolders(ctx, stored)
	if err != nil {
		return nil, false, err
	}
	removed := map[string]bool{}
	for _, s := range services {
		for _, ip := range s.Spec.ClusterIPs {
			fix, err := repairAddress(ctx, stored, within, services, s, ip)
			if err != nil {
				return nil, false, err
			}
			if fix != nil && !removed[fix.Key] {
				removed[fix.Key] = fix.Object == nil
				fixes = append(fixes, *fix)
			}
		}
	}
	for value, err := range stored.All(ctx, addressesTable) {
		if err != nil {
			return nil, false, err
		}
		var c claim
		if err := json.Unmarshal(value, &c); err != nil {
			return nil, false, fmt.Errorf("IPAddress: %w", err)
		}
		if c.Metadata.Labels[networkingv1.LabelManagedBy] != managedBy || len(c.Metadata.Finalizers) > 0 || removed[c.Metadata.Name] {
			continue
		}
		s, held := services[c.parent()]
		switch {
		case c.isServices() && held && slices.Contains(s.Spec.ClusterIPs, c.Metadata.Name):
		case c.isServices() && !held && now.Sub(c.Metadata.CreationTimestamp.Time) <= grace:
			wait = true
		default:
			fixes = append(fixes, kinds.Companion{Table: addressesTable, Key: c.Metadata.Name})
		}
	}
	return fixes, wait, nil
}

// readHolders are the services that have addresses, and those that have none,
// by namespace and name.
func readHolders(ctx context.Context, stored kinds.Reader) (map[string]holder, error) {
	services := map[string]holder{}
	for value, err := range stored.All(ctx, servicesTable) {
		if err != nil {
			return nil, err
		}
		var s holder
		if err := json.Unmarshal(value, &s); err != nil {
			return nil, fmt.Errorf("service: %w", err)
		}
		if s.Spec.Type == corev1.ServiceTypeExternalName || slices.Contains(s.Spec.ClusterIPs, corev1.ClusterIPNone) {
			s.Spec.ClusterIPs = nil
		}
		services[s.Metadata.Namespace+"/"+s.Metadata.Name] = s
	}
	return services, nil
}

// repairAddress is what has to happen for one address of a service, nil for
// nothing.
func repairAddress(ctx context.Context, stored kinds.Reader, within *ranges, services map[string]holder, s holder, ip string) (*kinds.Companion, error) {
	addr, err := parse(ip)
	if err != nil || !within.contains(addr) {
		return nil, nil //nolint:nilerr // nobody can have such an address, and nobody can be given it
	}
	value, err := stored.Get(ctx, addressesTable, addr.String())
	if err != nil {
		return nil, err
	}
	fresh := NewIPAddress(addr, s.Metadata.Namespace, s.Metadata.Name)
	if value == nil {
		return &kinds.Companion{Table: addressesTable, Key: fresh.Name, Object: fresh}, nil
	}
	var c claim
	if err := json.Unmarshal(value, &c); err != nil {
		return nil, fmt.Errorf("IPAddress %s: %w", ip, err)
	}
	labelled := true
	for key, want := range fresh.Labels {
		labelled = labelled && c.Metadata.Labels[key] == want
	}
	_, held := services[c.parent()]
	if len(c.Metadata.Finalizers) > 0 || labelled && c.isServices() && held {
		return nil, nil
	}
	return &kinds.Companion{Table: addressesTable, Key: fresh.Name}, nil
}

// isServices says that an IPAddress is of a service.
func (c claim) isServices() bool {
	ref := c.Spec.ParentRef
	return ref != nil && ref.Group == "" && ref.Resource == "services"
}

// parent is the namespace and name of what an IPAddress is of.
func (c claim) parent() string {
	if c.Spec.ParentRef == nil {
		return ""
	}
	return c.Spec.ParentRef.Namespace + "/" + c.Spec.ParentRef.Name
}

// contains says that the address is in some range.
func (r *ranges) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(r.of(familyOf(addr)), func(p prefix) bool { return p.Contains(addr) })
}
