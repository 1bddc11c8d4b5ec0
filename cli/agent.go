package cli

import (
	"crypto/x509"
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"setpoint.dev/setpoint/app"
)

// agentCommand is `agent`: a node that joins a server.
func agentCommand() *cobra.Command {
	var n app.Node
	var kubeconfig, server string
	c := &cobra.Command{
		Use: "agent", Short: "Run pods on this machine for a control plane elsewhere", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			n.Logger = logger()
			if n.Dir == "" {
				n.Dir = nodeFolder(app.Memory)
			}
			if err := n.Complete(); err != nil {
				return err
			}
			cfg, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
			if err != nil {
				return err
			}
			pool := x509.NewCertPool()
			if err := rest.LoadTLSFiles(cfg); err != nil {
				return err
			}
			if !pool.AppendCertsFromPEM(cfg.CAData) {
				return errors.New("--kubeconfig: the server's authority is not in it")
			}
			member, err := app.Join(c.Context(), cfg, n.Name, pool, n.Logger)
			if err != nil {
				return err
			}
			return n.Run(c.Context(), member)
		},
	}
	c.Flags().StringVar(&kubeconfig, "kubeconfig", defaultKubeconfig(), "file with the control plane's address and the credentials to join with: the node's own, or an admin's")
	c.Flags().StringVar(&server, "server", "", "the control plane's address (default that of the file)")
	runNodeFlags(c, &n)
	return c
}
