// Package dns says how a pod finds names.
//
// In come a pod, the node's resolv.conf and the cluster's name servers; out comes
// what is written into the pod's resolv.conf, within the limits that resolvers
// have. What is cut off is told as an event.
package dns

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of resolvers. Compat: they are kubelet's.
const (
	mostServers     = 3
	mostSearches    = 32
	mostSearchChars = 2048
	longestSearch   = 253
	mostFile        = 10 << 20
)

// Config is where names are found. The zero value knows no cluster and no node.
type Config struct {
	// Servers are the cluster's name servers.
	Servers []string
	// Domain is the cluster's, such as cluster.local.
	Domain string
	// ResolvConf is the node's file; "" means that there is none.
	ResolvConf string
	// Say records an event about a pod; nil records none.
	Say func(pod *corev1.Pod, kind, reason, message string)
}

// Of is how a pod finds names.
func (c Config) Of(pod *corev1.Pod) (*runtimeapi.DNSConfig, error) {
	d, err := c.host()
	if err != nil {
		return nil, err
	}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
		d = &runtimeapi.DNSConfig{}
	case corev1.DNSDefault:
	default:
		c.cluster(pod, d)
	}
	if len(d.Servers) == 0 && c.ResolvConf == "" && policy != corev1.DNSNone {
		d.Servers, d.Searches = []string{"127.0.0.1"}, []string{"."}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		d.Servers, d.Searches = once(append(d.Servers, own.Nameservers...)), once(append(d.Searches, own.Searches...))
		d.Options = merged(d.Options, own.Options)
	}
	c.limit(pod, d)
	return d, nil
}

// cluster makes the cluster's name servers those of a pod, if it has any.
func (c Config) cluster(pod *corev1.Pod, d *runtimeapi.DNSConfig) {
	if len(c.Servers) == 0 {
		c.say(pod, "MissingClusterDNS", fmt.Sprintf("pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), corev1.DNSClusterFirst, corev1.DNSDefault))
		return
	}
	d.Servers, d.Options = slices.Clone(c.Servers), []string{"ndots:5"}
	if c.Domain != "" {
		d.Searches = once(append([]string{pod.Namespace + ".svc." + c.Domain, "svc." + c.Domain, c.Domain}, d.Searches...))
	}
}

func (c Config) say(pod *corev1.Pod, reason, message string) {
	if c.Say != nil {
		c.Say(pod, corev1.EventTypeWarning, reason, message)
	}
}

// host is what the node's file says.
func (c Config) host() (*runtimeapi.DNSConfig, error) {
	d := &runtimeapi.DNSConfig{}
	if c.ResolvConf == "" {
		return d, nil
	}
	f, err := os.Open(c.ResolvConf)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	options := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(f, mostFile))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			d.Servers = append(d.Servers, words[1])
		case "search":
			d.Searches = nil
			for _, s := range words[1:] {
				if s != "." {
					d.Searches = append(d.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range words[1:] {
				name, _, _ := strings.Cut(o, ":")
				options[name] = o
			}
		}
	}
	for _, o := range options {
		d.Options = append(d.Options, o)
	}
	slices.Sort(d.Options)
	return d, lines.Err()
}

// once leaves out what came before.
func once(all []string) []string {
	var out []string
	for _, s := range all {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// merged are options with those of a pod, which win.
func merged(options []string, own []corev1.PodDNSConfigOption) []string {
	values := map[string]string{}
	for _, o := range options {
		name, value, _ := strings.Cut(o, ":")
		values[name] = value
	}
	for _, o := range own {
		values[o.Name] = ""
		if o.Value != nil {
			values[o.Name] = *o.Value
		}
	}
	var all []string
	for name, value := range values {
		if value != "" {
			name += ":" + value
		}
		all = append(all, name)
	}
	slices.SortFunc(all, cmp.Compare[string])
	return all
}

// limit cuts off what resolvers do not take.
func (c Config) limit(pod *corev1.Pod, d *runtimeapi.DNSConfig) {
	if len(d.Servers) > mostServers {
		d.Servers = d.Servers[:mostServers]
		c.say(pod, "DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+strings.Join(d.Servers, " "))
	}
	given := len(d.Searches)
	d.Searches = slices.DeleteFunc(d.Searches[:min(given, mostSearches)], func(s string) bool { return len(s) > longestSearch })
	for len(strings.Join(d.Searches, " ")) > mostSearchChars {
		d.Searches = d.Searches[:len(d.Searches)-1]
	}
	if len(d.Searches) < given {
		c.say(pod, "DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+strings.Join(d.Searches, " "))
	}
}
