//go:build suite

package e2e

import (
	_ "k8s.io/kubernetes/cmd/kubectl" // what build.sh builds
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/nonewprivs"
)
