package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/networking/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
)

func networkingGroup() group {
	return group{name: "networking.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "ingressclasses", kind: "IngressClass", strategy: ingressclass.Strategy},
		{name: "ingresses", kind: "Ingress", short: "ing", strategy: ingress.Strategy, status: ingress.StatusStrategy},
		{name: "ipaddresses", kind: "IPAddress", short: "ip", strategy: ipaddress.Strategy},
		{name: "networkpolicies", kind: "NetworkPolicy", short: "netpol", strategy: networkpolicy.Strategy},
		{name: "servicecidrs", kind: "ServiceCIDR", strategy: servicecidr.Strategy, status: servicecidr.StatusStrategy},
	}}
}
