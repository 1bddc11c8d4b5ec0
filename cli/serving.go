package cli

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/pkg/capabilities"

	"setpoint.dev/setpoint/app"
)

// servingFlags adds the flags that say with which certificate and keys a server
// speaks, and which addresses services have. They are kube-apiserver's.
func servingFlags(c *cobra.Command, cfg *app.Config) {
	f := c.Flags()
	f.TextVar(&cfg.Advertise, "advertise-address", netip.Addr{}, "address that the kubernetes service leads to (default the one served on)")
	f.StringVar(&cfg.CertFile, "tls-cert-file", "", "the server's certificate (default one of the control plane's own authority)")
	f.StringVar(&cfg.KeyFile, "tls-private-key-file", "", "the key of that certificate")
	f.StringArrayVar(&cfg.Access.ServiceAccountKeyFiles, "service-account-key-file", nil, "keys or certificates that service account tokens may be signed with (may be repeated)")
	f.StringVar(&cfg.Access.ServiceAccountSigningKeyFile, "service-account-signing-key-file", "", "key that signs service account tokens (default one of the control plane's own)")
	f.DurationVar(&cfg.Access.MaxTokenLife, "service-account-max-token-expiration", 0, "the longest that a service account token lives (default as asked)")
	f.Var(ranges{&cfg.ServiceRanges}, "service-cluster-ip-range", "one or two ranges that services have their addresses from (default 10.0.0.0/24)")
	f.Var(&cfg.NodePorts, "service-node-port-range", "ports that services may have on every node (default 30000-32767)")
}

// nodeAccessFlags adds the flags that say how the servers of nodes are reached. They are
// kube-apiserver's.
func nodeAccessFlags(c *cobra.Command, to *app.NodeAccess) {
	f := c.Flags()
	f.StringVar(&to.CertFile, "kubelet-client-certificate", "", "certificate that nodes are shown (default one of the control plane's own authority)")
	f.StringVar(&to.KeyFile, "kubelet-client-key", "", "the key of that certificate")
	f.StringVar(&to.CAFile, "kubelet-certificate-authority", "", "file with who may vouch for nodes (default the control plane's own authority)")
	f.StringSliceVar(&to.Addresses, "kubelet-preferred-address-types", nil, "types of nodes' addresses, those to try first first (default InternalIP,ExternalIP,InternalDNS,ExternalDNS,Hostname)")
	f.DurationVar(&to.Timeout, "kubelet-timeout", 0, "how long it may take to connect to a node (default 30s)")
}

// privilegedFlag adds the flag that lets pods ask for privileged containers. It is
// kube-apiserver's, and off unless it is given.
func privilegedFlag(c *cobra.Command, to *bool) {
	c.Flags().BoolVar(to, "allow-privileged", false, "let pods ask for privileged containers")
}

// allowPrivileged says whether pods may ask for privileged containers, for as long
// as the process lives: upstream's validation knows it as something global, of
// which the first word counts.
func allowPrivileged(allowed bool) { capabilities.Setup(allowed, 0) }

// ranges are prefixes of addresses, with commas between them.
type ranges struct{ value *[]netip.Prefix }

// String implements pflag.Value.
func (r ranges) String() string {
	if r.value == nil {
		return ""
	}
	var texts []string
	for _, p := range *r.value {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// Set implements pflag.Value.
func (r ranges) Set(text string) error {
	var all []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return err
		}
		all = append(all, p)
	}
	if len(all) > 2 {
		return errors.New("more than two ranges")
	}
	*r.value = all
	return nil
}

// Type implements pflag.Value.
func (r ranges) Type() string { return "ranges" }
