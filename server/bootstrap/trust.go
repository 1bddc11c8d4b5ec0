package bootstrap

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// extensionTrust tells extension servers how to recognise this server's
// clients, and this server when it speaks for them.
func extensionTrust(cfg Config) (*corev1.ConfigMap, error) {
	data := map[string]string{}
	if len(cfg.ClientCA) > 0 {
		data["client-ca-file"] = string(cfg.ClientCA)
	}
	if len(cfg.RequestHeaderCA) > 0 {
		data["requestheader-client-ca-file"] = string(cfg.RequestHeaderCA)
		lists := map[string][]string{
			"requestheader-username-headers":     cfg.RequestHeaderUsernameHeaders,
			"requestheader-group-headers":        cfg.RequestHeaderGroupHeaders,
			"requestheader-extra-headers-prefix": cfg.RequestHeaderExtraHeadersStart,
			"requestheader-allowed-names":        cfg.RequestHeaderAllowedNames,
		}
		if len(cfg.RequestHeaderUIDHeaders) > 0 {
			lists["requestheader-uid-headers"] = cfg.RequestHeaderUIDHeaders
		}
		for key, list := range lists {
			if list == nil {
				list = []string{} // readers expect a list
			}
			text, err := json.Marshal(list)
			if err != nil {
				return nil, err
			}
			data[key] = string(text)
		}
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "extension-apiserver-authentication"},
		Data:       data,
	}, nil
}
