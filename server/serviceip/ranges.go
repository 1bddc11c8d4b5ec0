package serviceip

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/kinds"
)

// defaultRange is the ServiceCIDR that says which families the cluster has, the
// primary first.
const defaultRange = "kubernetes"

// ranges are where addresses come from.
type ranges struct {
	primary  core.IPFamily
	families []core.IPFamily
	// ready are the ranges in use, those of the default first.
	ready map[core.IPFamily]prefixes
}

func readRanges(ctx context.Context, stored kinds.Reader) (*ranges, error) {
	r := &ranges{ready: map[core.IPFamily]prefixes{}}
	var found []core.IPFamily
	for value, err := range stored.All(ctx, rangesTable) {
		if err != nil {
			return nil, err
		}
		var object networkingv1.ServiceCIDR
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, err
		}
		for _, text := range object.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue // validation has not let it pass
			}
			family := familyOf(p.Addr())
			found = append(found, family)
			if object.Name == defaultRange {
				r.families = append(r.families, family)
			}
			// Compat: a range of IPv6 addresses has at most 64 bits to give.
			if !isReady(&object) || p.Addr().Is6() && p.Bits() < 64 {
				continue
			}
			at := len(r.ready[family])
			if object.Name == defaultRange {
				at = 0
			}
			r.ready[family] = slices.Insert(r.ready[family], at, prefix{p.Masked()})
		}
	}
	if len(r.families) == 0 {
		// Without a default, the cluster has what there are ranges of.
		slices.Sort(found)
		r.families = slices.Compact(found)
	}
	r.primary = core.IPv4Protocol
	if len(r.families) > 0 {
		r.primary = r.families[0]
	}
	return r, nil
}

func (r *ranges) has(family core.IPFamily) bool { return slices.Contains(r.families, family) }

func (r *ranges) of(family core.IPFamily) prefixes { return r.ready[family] }

// isReady says that the range may be used. One that nobody has judged may.
func isReady(r *networkingv1.ServiceCIDR) bool {
	if r.DeletionTimestamp != nil {
		return false
	}
	for _, c := range r.Status.Conditions {
		if c.Type == networkingv1.ServiceCIDRConditionReady {
			return c.Status == metav1.ConditionTrue
		}
	}
	return true
}

func familyOf(addr netip.Addr) core.IPFamily {
	if addr.Is6() {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

func otherFamily(family core.IPFamily) core.IPFamily {
	if family == core.IPv4Protocol {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

type prefixes []prefix

func (ps prefixes) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(ps, func(p prefix) bool { return p.gives(addr) })
}

// admits is what a dry run says of an address.
func (ps prefixes) admits(addr netip.Addr) error {
	switch {
	case len(ps) == 0:
		return errRangesNotReady
	case !ps.contains(addr):
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", addr, ps[0])
	}
	return nil
}

// prefix is a range of addresses. Its first one is not given, nor, in IPv4, its
// last.
type prefix struct{ netip.Prefix }

// last is the number of the last address that is given; the first has 1.
func (p prefix) last() uint64 {
	bits := p.Addr().BitLen() - p.Bits()
	n := uint64(1)<<bits - 1 // all ones for 64 bits, too
	if p.Addr().Is4() && n > 0 {
		n--
	}
	return n
}

// at is the address of a number.
func (p prefix) at(n uint64) netip.Addr {
	b := p.Addr().AsSlice()
	if p.Addr().Is4() {
		binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)+uint32(n))
	} else {
		binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	}
	addr, _ := netip.AddrFromSlice(b) // of the right length
	return addr
}

func (p prefix) gives(addr netip.Addr) bool {
	return p.Contains(addr) && addr != p.Addr() && (!addr.Is4() || addr != p.at(p.last()+1))
}

// band is a run of numbers in a range, both ends included.
type band struct {
	prefix
	lo, hi uint64
}

// bands are the parts of the range in the order in which addresses are sought.
// Compat: the low part is left to those who ask for an address by name, while
// there are others.
func (p prefix) bands() []band {
	const least, most, share = 16, 256, 16
	last := p.last()
	if last == 0 {
		return nil
	}
	if last < least {
		return []band{{p, 1, last}}
	}
	low := min(max(last/share+1, least), most) // a share of the range with its ends
	return []band{{p, low + 1, last}, {p, 1, low}}
}

// shuffled yields the addresses of the band, beginning anywhere.
func (b band) shuffled() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		start := b.lo
		if span := b.hi - b.lo + 1; span > 1 {
			start += rand.Uint64N(span)
		}
		for n := start; yield(b.at(n)); {
			if n++; n > b.hi || n == 0 {
				n = b.lo
			}
			if n == start {
				return
			}
		}
	}
}
