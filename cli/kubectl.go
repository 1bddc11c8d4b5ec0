package cli

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

// kubectlCommand is the real kubectl.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl", Short: "The real kubectl, built in", DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			os.Args = append([]string{"kubectl"}, args...) // plugins look there
			k := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
				PluginHandler: kubectl.NewDefaultPluginHandler([]string{"kubectl"}), Arguments: os.Args,
				IOStreams: genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
			})
			k.SetArgs(args)
			return k.ExecuteContext(c.Context())
		},
	}
}
