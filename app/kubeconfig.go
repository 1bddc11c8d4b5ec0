package app

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// contextName is what the admin's cluster, user and context are called.
const contextName = "setpoint"

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
	cfg.Clusters[contextName] = &clientcmdapi.Cluster{Server: a.URL(), CertificateAuthorityData: a.authority.CACert}
	cfg.AuthInfos[contextName] = &clientcmdapi.AuthInfo{ClientCertificateData: a.authority.AdminCert, ClientKeyData: a.authority.AdminKey}
	cfg.Contexts[contextName] = &clientcmdapi.Context{Cluster: contextName, AuthInfo: contextName}
	if cfg.CurrentContext == "" {
		cfg.CurrentContext = contextName
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
