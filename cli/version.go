package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/server"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say what this is", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "setpoint, Kubernetes API %s, %s\n", server.Version(), runtime.Version())
			return err
		},
	}
}
