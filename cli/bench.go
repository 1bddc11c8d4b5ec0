package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// benchCommand measures Setpoint beside its peers. The benchmarks are part of the
// sources, for they build the peers, and the product does not bring a compiler.
func benchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "bench", Short: "Measure this control plane beside kube-apiserver and etcd, in a checkout of the sources",
		Long: `Builds kube-apiserver, its controllers, its scheduler and etcd from the Go module proxy, runs every scenario beside them, taking turns, and prints
tables of ratios. It needs Go and a checkout of the sources, which the current folder has to be in; "make bench" there does the same, and
writes the tables into docs/performance.md. Flags are passed on: "setpoint bench -h" lists them there.`,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			folder, err := benchmarks()
			if err != nil {
				return err
			}
			run := exec.CommandContext(c.Context(), "go", append([]string{"run", "./measure"}, args...)...) //nolint:gosec // what the user asks for
			run.Dir, run.Stdin, run.Stdout, run.Stderr = folder, os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
			return run.Run()
		},
	}
}

// benchmarks is the folder of the benchmarks in the checkout that the current
// folder is in.
func benchmarks() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		module, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if first, _, _ := strings.Cut(string(module), "\n"); err == nil && first == "module setpoint.dev/setpoint" {
			return filepath.Join(at, "test", "bench"), nil
		}
		above := filepath.Dir(at)
		if above == at {
			return "", errors.New("bench: the benchmarks are part of the sources: run it in a checkout of them, where Go is installed, or run make bench there")
		}
		at = above
	}
}
