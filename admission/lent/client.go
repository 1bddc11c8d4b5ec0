package lent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	nodeclient "k8s.io/client-go/kubernetes/typed/node/v1"

	"setpoint.dev/setpoint/admission/view"
)

// Provisioner makes namespaces.
type Provisioner interface {
	// Provision makes a namespace of that name, on the plane of the context's
	// request; an API error that says AlreadyExists when there is one.
	Provision(ctx context.Context, name string) error
}

// client is what upstream's plugins look through when a lister has nothing.
type client struct {
	kubernetes.Interface // nil: nothing else is lent
	*window
}

func (c client) CoreV1() coreclient.CoreV1Interface { return coreV1{window: c.window} }
func (c client) NodeV1() nodeclient.NodeV1Interface { return nodeV1{window: c.window} }

type coreV1 struct {
	coreclient.CoreV1Interface
	*window
}

func (c coreV1) ServiceAccounts(namespace string) coreclient.ServiceAccountInterface {
	return serviceAccounts{window: c.window, namespace: namespace}
}

func (c coreV1) LimitRanges(string) coreclient.LimitRangeInterface { return limitRanges{} }

func (c coreV1) Namespaces() coreclient.NamespaceInterface { return namespaces{window: c.window} }

type serviceAccounts struct {
	coreclient.ServiceAccountInterface
	*window
	namespace string
}

func (s serviceAccounts) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.ServiceAccount, error) {
	return view.Get[*corev1.ServiceAccount](s.ctx, s.objects, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), s.namespace, name)
}

type limitRanges struct{ coreclient.LimitRangeInterface }

// List finds nothing that the lister does not: that is as new as can be. The
// plugin remembers for a while what it finds here.
func (limitRanges) List(context.Context, metav1.ListOptions) (*corev1.LimitRangeList, error) {
	return &corev1.LimitRangeList{}, nil
}

type namespaces struct {
	coreclient.NamespaceInterface
	*window
}

func (n namespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return view.Get[*corev1.Namespace](n.ctx, n.objects, corev1.SchemeGroupVersion.WithResource("namespaces"), "", name)
}

func (n namespaces) Create(_ context.Context, namespace *corev1.Namespace, _ metav1.CreateOptions) (*corev1.Namespace, error) {
	return namespace, n.provisioner.Provision(n.ctx, namespace.Name)
}

type nodeV1 struct {
	nodeclient.NodeV1Interface
	*window
}

func (n nodeV1) RuntimeClasses() nodeclient.RuntimeClassInterface {
	return runtimeClasses{window: n.window}
}

type runtimeClasses struct {
	nodeclient.RuntimeClassInterface
	*window
}

func (r runtimeClasses) Get(_ context.Context, name string, _ metav1.GetOptions) (*nodev1.RuntimeClass, error) {
	return view.Get[*nodev1.RuntimeClass](r.ctx, r.objects, nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), "", name)
}
