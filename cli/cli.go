// Package cli is the command line: one file per command.
package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/node/process"
)

// Main runs the command that the arguments name and returns the exit code.
func Main() int {
	process.Main() // a container's supervisor is this binary, too
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use: "setpoint", Short: "A declarative control plane in one binary",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(serverCommand("up"), serverCommand("server"), agentCommand(), kubectlCommand(), envtestCommand(), forkCommand(), versionCommand(),
		apiserverCommand(), etcdCommand(), benchCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "setpoint:", err)
		return 1
	}
	return 0
}
