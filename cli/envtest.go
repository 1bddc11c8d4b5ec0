package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"setpoint.dev/setpoint/envtest"
)

// envtestCommand prints a folder for KUBEBUILDER_ASSETS.
func envtestCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "envtest", Short: "Print a folder for KUBEBUILDER_ASSETS, for test suites of operators", Args: cobra.NoArgs,
		Long: `Print a folder with kube-apiserver, etcd and kubectl that run this program:

    KUBEBUILDER_ASSETS=$(setpoint envtest) go test ./...

Nothing runs beside the API, as suites expect. ` + switchOn + `=controllers adds garbage collection, the end of
namespaces and all other controllers; ` + switchOn + `=nodes adds these and a node on which pods become Running and
Ready without being run.`,
		RunE: func(c *cobra.Command, _ []string) error {
			program, help, err := self()
			if err != nil {
				return err
			}
			parent, err := os.UserCacheDir()
			if err != nil {
				return err
			}
			dir, err := envtest.Folder(filepath.Join(parent, "setpoint", "envtest"), program, help)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), dir)
			return err
		},
	}
	c.AddCommand(packCommand())
	return c
}

// packCommand writes an archive for setup-envtest.
func packCommand() *cobra.Command {
	var dir string
	p := envtest.Package{OS: runtime.GOOS, Arch: runtime.GOARCH}
	c := &cobra.Command{
		Use: "pack", Short: "Write the archive that setup-envtest takes, and print its entry in the index", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if p.Program, p.Help, err = self(); err != nil {
				return err
			}
			_, entry, err := envtest.Pack(dir, p)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), entry)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&p.Version, "version", "", "Kubernetes release that it is offered as, such as 1.36.0")
	f.StringVar(&dir, "output", ".", "folder that the archive is written to")
	f.StringVar(&p.URL, "url", "", "where the archive will be found (default beside the index)")
	_ = c.MarkFlagRequired("version") // it is there
	return c
}

// self is this program, and what its stand-ins say of themselves.
func self() (program string, help envtest.Help, err error) {
	if program, err = os.Executable(); err != nil {
		return "", help, err
	}
	if program, err = filepath.EvalSymlinks(program); err != nil {
		return "", help, err
	}
	return program, envtest.Help{APIServer: helpOf(apiserverCommand()), Etcd: helpOf(etcdCommand())}, nil
}

func helpOf(c *cobra.Command) string {
	var b bytes.Buffer
	c.InitDefaultHelpFlag()
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s [flags]\n\nFlags:\n%s", c.Short, c.Name(), c.Flags().FlagUsages())
	return b.String()
}
