package pki

import (
	"cmp"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"slices"
)

// names are what a serving certificate is valid for.
type names struct {
	dns []string
	ips []net.IP
}

// standardNames are the names every server has, then hosts; without repeats,
// in a stable order.
func standardNames(hosts []string) names {
	all := []string{
		"localhost", "127.0.0.1", "::1",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	for _, host := range hosts {
		if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
			all = append(all, machineNames()...)
		} else if host != "" {
			all = append(all, host)
		}
	}
	return namesOf(all)
}

// namesOf are names and addresses without repeats, in their order.
func namesOf(all []string) names {
	var n names
	seen := map[string]bool{}
	for _, name := range all {
		addr, err := netip.ParseAddr(name)
		if err == nil {
			addr = addr.Unmap().WithZone("")
			name = addr.String()
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		if err == nil {
			n.ips = append(n.ips, net.IP(addr.AsSlice()))
		} else {
			n.dns = append(n.dns, name)
		}
	}
	return n
}

// machineNames are the host name and the addresses of this machine that others
// may reach it under.
func machineNames() []string {
	var found []string
	if host, err := os.Hostname(); err == nil {
		found = append(found, host)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return found // the standard names still serve local clients
	}
	for _, a := range addrs {
		if ipnet, ok := a.(*net.IPNet); ok && ipnet.IP.IsGlobalUnicast() {
			found = append(found, ipnet.IP.String())
		}
	}
	return found
}

// sameAs says whether a certificate is for exactly these names.
func (n names) sameAs(cert *x509.Certificate) bool {
	return equalSets(n.texts(), names{cert.DNSNames, cert.IPAddresses}.texts())
}

func (n names) texts() []string {
	all := slices.Clone(n.dns)
	for _, ip := range n.ips {
		all = append(all, ip.String())
	}
	return all
}

func equalSets[T cmp.Ordered](a, b []T) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
