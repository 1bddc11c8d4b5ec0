package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/envtest"
)

// etcdCommand stands in for etcd in test suites. It takes all flags that etcd
// has, and goes by those that say where.
func etcdCommand() *cobra.Command {
	var e envtest.Etcd
	var folder string
	var parent int
	c := &cobra.Command{
		Use: "etcd", Short: "Stand in for etcd in test suites", Hidden: true,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := filepath.Abs(folder)
			if err != nil {
				return err
			}
			e.Place.Folder = filepath.Join(dir, "setpoint")
			ctx, stop := withParent(c.Context(), parent)
			defer stop()
			return e.Serve(ctx)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&e.URLs, "listen-client-urls", []string{"http://127.0.0.1:2379"}, "where to answer")
	f.StringVar(&folder, "data-dir", "default.etcd", "folder that the API server keeps its data in")
	f.BoolVar(&e.Place.NoSync, "unsafe-no-fsync", false, "write without waiting for the disk")
	f.IntVar(&parent, "parent", 0, "process to end with")
	_ = f.MarkHidden("parent") // it is there
	return c
}
