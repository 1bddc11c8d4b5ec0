package cli

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/node/evict"
)

// runNodeFlags adds the flags that say how pods are run on this machine.
func runNodeFlags(c *cobra.Command, n *app.Node) {
	f := c.Flags()
	f.StringVar(&n.Name, "node-name", "", "name of the node (default this machine's)")
	f.TextVar(&n.IP, "node-ip", netip.Addr{}, "address of the node (default this machine's)")
	f.StringVar(&n.Runtime, "runtime", "", "what runs containers: containerd, process (built in), or an endpoint such as unix:///run/containerd/containerd.sock\n(default containerd when it answers, else process)")
	f.BoolVar(&n.HostImages, "process-host-files", false, "have the process runtime take this machine's files for every image")
	f.StringVar(&n.Dir, "node-dir", "", "folder of everything that pods are given (default node in the data folder)")
	f.StringVar(&n.StaticPods, "static-pods", "", "folder of pods that are run whether or not the control plane says so")
	f.Int64Var(&n.ImagesHigh, "image-gc-high-threshold", 85, "how full the disk of images may be, in percent, before those that no container uses are removed; 100 keeps all")
	var settings evict.Settings
	f.StringVar(&settings.Hard, "eviction-hard", evict.DefaultHard, "how little of something is too little: the node evicts pods then and takes no new ones; empty turns it off")
	f.StringVar(&settings.Soft, "eviction-soft", "", "the same, with a time for which it may be too little, such as memory.available<1.5Gi")
	f.StringVar(&settings.Grace, "eviction-soft-grace-period", "", "these times, such as memory.available=1m30s")
	c.PreRunE = func(*cobra.Command, []string) (err error) {
		if n.Thresholds, err = settings.Parse(); err != nil {
			return fmt.Errorf("--eviction-hard, --eviction-soft: %w", err)
		}
		return nil
	}
	f.TextVar(&n.PodRange, "pod-cidr", netip.Prefix{}, "addresses of pods, where nobody has set up a network (default 10.244.0.0/24)")
}

// nodeFolder is where a node keeps what pods are given: with the data, or where
// data would be by default when none is kept.
func nodeFolder(data string) string {
	if data == app.Memory {
		data = defaultData()
	}
	return filepath.Join(data, "node")
}
