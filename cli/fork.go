package cli

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"setpoint.dev/setpoint/app"
)

// forking is a fork that is asked for.
type forking struct {
	kubeconfig, context string
	from                string
	revision            uint64
	controllers         bool
}

// forkCommand forks the control plane and writes a kubeconfig context for it.
func forkCommand() *cobra.Command {
	var f forking
	c := &cobra.Command{
		Use: "fork NAME", Short: "Fork the control plane, and write a kubeconfig context for the fork", Args: cobra.ExactArgs(1),
		Long: `Fork a running control plane: the fork has everything that it has, takes writes of its own, and ends with
the server, or with "kubectl delete --raw /planes/NAME". A context named like the one that is used, with -NAME
behind it, is added to the kubeconfig file.`,
		RunE: func(c *cobra.Command, args []string) error {
			name, err := f.fork(c, args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "plane %s is ready (kubeconfig %s, context %s)\n", args[0], f.kubeconfig, name)
			return err
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", defaultKubeconfig(), "file with the credentials, to which the context is added")
	flags.StringVar(&f.context, "context", app.ContextName, "context of the control plane")
	flags.StringVar(&f.from, "from", "main", "plane to fork")
	flags.Uint64Var(&f.revision, "revision", 0, "revision to fork from (default the newest)")
	flags.BoolVar(&f.controllers, "controllers", false, "run controllers in the fork")
	return c
}

// fork makes the fork and returns the name of its context.
func (f *forking) fork(c *cobra.Command, name string) (string, error) {
	file, err := clientcmd.LoadFromFile(f.kubeconfig)
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	cfg, err := clientcmd.NewNonInteractiveClientConfig(*file, f.context, nil, nil).ClientConfig()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", err
	}
	ask := k.Discovery().RESTClient().Verb(http.MethodPost).AbsPath("/planes", url.PathEscape(name)).Param("from", f.from)
	if f.revision > 0 {
		ask = ask.Param("revision", strconv.FormatUint(f.revision, 10))
	}
	if f.controllers {
		ask = ask.Param("controllers", "true")
	}
	if err := ask.Do(c.Context()).Error(); err != nil {
		return "", err
	}
	return f.addContext(file, name)
}

// addContext writes the context of a fork into the kubeconfig file.
func (f *forking) addContext(file *clientcmdapi.Config, name string) (string, error) {
	of := file.Contexts[f.context]
	cluster := file.Clusters[of.Cluster].DeepCopy()
	cluster.Server = strings.TrimSuffix(cluster.Server, "/") + "/planes/" + name
	context := of.DeepCopy()
	context.Cluster = of.Cluster + "-" + name
	file.Clusters[context.Cluster] = cluster
	file.Contexts[f.context+"-"+name] = context
	return f.context + "-" + name, clientcmd.WriteToFile(*file, f.kubeconfig)
}
