// Sidecar-injector is an initializer: it adds containers and volumes to every
// new pod before anyone else sees the pod, and takes its name off the pod's
// list of what is still to happen.
//
// It needs nothing but a way to the API: no address of its own, no certificate.
// What it adds is described in a ConfigMap, which it follows. It runs as a plain
// process with -kubeconfig, and as a pod with the service account in manifests/.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sidecar-injector:", err)
		os.Exit(1)
	}
}

func run() error {
	var cfg Config
	flag.StringVar(&cfg.Annotation, "annotation", "initializer.kubernetes.io/envoy", "the annotation that pods ask for the sidecar with")
	flag.StringVar(&cfg.ConfigMap, "configmap", "envoy-initializer", "the config map that describes the sidecar")
	flag.StringVar(&cfg.Name, "initializer-name", "envoy.initializer.kubernetes.io", "the name of this initializer")
	flag.StringVar(&cfg.Namespace, "namespace", "default", "the namespace of the config map")
	flag.BoolVar(&cfg.Required, "require-annotation", false, "inject only into pods that have the annotation")
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the server; empty inside a pod")
	flag.Parse()
	server, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	injector, err := New(server, cfg)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return injector.Run(ctx)
}
