package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/certificates/install" // into the scheme
	csr "k8s.io/kubernetes/pkg/registry/certificates/certificates"
)

func certificatesGroup() group {
	return group{name: "certificates.k8s.io", versions: []string{"v1"}, rows: []row{
		{
			name: "certificatesigningrequests", kind: "CertificateSigningRequest", short: "csr",
			strategy: csr.Strategy, attrs: csr.GetAttrs, status: csr.StatusStrategy,
			subs: []*Subresource{view("approval", csr.ApprovalStrategy)},
		},
	}}
}
