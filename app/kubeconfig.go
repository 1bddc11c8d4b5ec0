package app

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ContextName is what the admin's cluster, user and context are called.
const ContextName = "setpoint"

// WriteKubeconfig puts the admin's credentials into a kubeconfig file, beside
// what is there already. They become current when nothing is.
func (a *App) WriteKubeconfig(path string) error {
	cfg, err := clientcmd.LoadFromFile(path)
	if os.IsNotExist(err) {
		cfg, err = clientcmdapi.NewConfig(), nil
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	cfg.Clusters[ContextName] = &clientcmdapi.Cluster{Server: a.URL(), CertificateAuthorityData: a.authority.CACert}
	cfg.AuthInfos[ContextName] = &clientcmdapi.AuthInfo{ClientCertificateData: a.authority.AdminCert, ClientKeyData: a.authority.AdminKey}
	cfg.Contexts[ContextName] = &clientcmdapi.Context{Cluster: ContextName, AuthInfo: ContextName}
	if cfg.CurrentContext == "" {
		cfg.CurrentContext = ContextName
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
