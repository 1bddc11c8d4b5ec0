package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
)

// controllerFlags adds the flags that say which controllers run, and how. They
// are kube-controller-manager's.
func controllerFlags(c *cobra.Command, cfg *app.Config) {
	f := c.Flags()
	f.StringSliceVar(&cfg.Controllers, "controllers", []string{"*"}, "controllers that run: a name, * for all that need not be named, -name for all but that one, or nothing for none\n"+
		"All: "+strings.Join(app.ControllerNames(), ", ")+"\nTo be named: "+strings.Join(app.NamedControllers(), ", "))
	f.DurationVar(&cfg.SigningDuration, "cluster-signing-duration", 365*24*time.Hour, "how long certificates live at most that are asked for by CertificateSigningRequests")
	f.DurationVar(&cfg.UnusedTokens, "legacy-service-account-token-clean-up-period", 365*24*time.Hour, "how long a service account token in a secret may be unused before it is given up")
	nodeFlags(c, cfg)
	f.BoolVar(&cfg.Scheduler.On, "scheduler", true, "give pods nodes; unless it is said, only where controllers run")
	f.StringVar(&cfg.Scheduler.ConfigFile, "scheduler-config", "", "KubeSchedulerConfiguration whose profiles say how pods are given nodes")
}

// nodeFlags are those of the controllers of nodes.
func nodeFlags(c *cobra.Command, cfg *app.Config) {
	f := c.Flags()
	f.DurationVar(&cfg.Nodes.Grace, "node-monitor-grace-period", 50*time.Second, "how long a node may be silent before its state is unknown")
	f.DurationVar(&cfg.Nodes.Startup, "node-startup-grace-period", time.Minute, "how long a node may be silent that has not said anything yet")
	f.Float64Var(&cfg.Nodes.Rate, "node-eviction-rate", 0.1, "how many nodes of a zone are given up in a second")
	f.Float64Var(&cfg.Nodes.Reduced, "secondary-node-eviction-rate", 0.01, "how many nodes of a large zone are given up in a second that is unhealthy; none of a small one is")
	f.IntVar(&cfg.Nodes.Large, "large-cluster-size-threshold", 50, "nodes above which a zone is large")
	f.Float64Var(&cfg.Nodes.Unhealthy, "unhealthy-zone-threshold", 0.55, "part of a zone's nodes, at least 3, that are not ready when a zone is unhealthy")
	f.BoolVar(&cfg.NodeRanges.Allocate, "allocate-node-cidrs", false, "give nodes the ranges that the addresses of their pods are from")
	f.Var(ranges{&cfg.NodeRanges.Ranges}, "cluster-cidr", "one or two ranges that nodes are given parts of")
	f.IntVar(&cfg.NodeRanges.Mask4, "node-cidr-mask-size-ipv4", 24, "size of a node's part of an IPv4 range")
	f.IntVar(&cfg.NodeRanges.Mask6, "node-cidr-mask-size-ipv6", 64, "size of a node's part of an IPv6 range")
}
