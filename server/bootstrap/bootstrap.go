// Package bootstrap knows what an empty control plane starts with.
//
// In comes a Config with where the server is reached and whom it trusts; out
// come the objects that kube-apiserver makes on an empty store, in the order to
// create them: namespaces, priority classes, roles and bindings, flow control,
// service addresses, the kubernetes service with its address and endpoints, and
// the configuration for extension servers.
//
// Objects are of the external v1 types and complete but for what only the
// store can give and for defaults; owner.go says who owns their fields. Each
// call makes new ones: nothing is computed until it is asked for. A store that
// has been used is refreshed, and its roles reconciled.
package bootstrap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/v1"

	"setpoint.dev/setpoint/server/serviceip"
)

// DefaultServiceRange is where service addresses come from unless said
// otherwise; it is kube-apiserver's default too.
const DefaultServiceRange = "10.0.0.0/24"

// Config is what the objects say about this server.
type Config struct {
	// AdvertiseAddress and AdvertisePort are where others reach the server.
	// They are the endpoint of the kubernetes service. Without an address, or
	// with one that is of use on this machine only, there is no endpoint.
	AdvertiseAddress netip.Addr
	AdvertisePort    int
	// ServiceRanges are one or two ranges of service addresses, the primary
	// first; none means DefaultServiceRange. The kubernetes service has the
	// first address of the primary.
	ServiceRanges []netip.Prefix

	// ClientCA is the PEM that client certificates are verified with.
	ClientCA []byte
	// RequestHeader* say which front proxy is believed, as in authn.Config;
	// without a CA there is none.
	RequestHeaderCA                []byte
	RequestHeaderAllowedNames      []string
	RequestHeaderUsernameHeaders   []string
	RequestHeaderUIDHeaders        []string
	RequestHeaderGroupHeaders      []string
	RequestHeaderExtraHeadersStart []string
}

// Objects returns all that an empty store starts with.
func Objects(cfg Config) ([]runtime.Object, error) {
	ranges, err := cfg.ranges()
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	objs := namespaces()
	for _, class := range scheduling.SystemPriorityClasses() {
		class.Generation = 1
		objs = append(objs, class)
	}
	objs = append(objs, policy()...)
	objs = append(objs, flowControl()...)
	addr := ranges[0].Addr().Next()
	objs = append(objs, serviceRange(ranges), service(addr, cfg.AdvertisePort),
		serviceip.NewIPAddress(addr, metav1.NamespaceDefault, kubernetes), tokenTracking())
	current, err := Current(cfg)
	if err != nil {
		return nil, err
	}
	return append(objs, current...), own(objs)
}

// Current returns the objects that say where this server is and whom it
// trusts: the endpoints of the kubernetes service and the configuration for
// extension servers. Another start may say something else.
func Current(cfg Config) ([]runtime.Object, error) {
	var objs []runtime.Object
	if addr := cfg.AdvertiseAddress.Unmap(); addr.IsValid() && !addr.IsLoopback() && !addr.IsUnspecified() {
		objs = append(objs, endpoints(addr, cfg.AdvertisePort), endpointSlice(addr, cfg.AdvertisePort))
	}
	trust, err := extensionTrust(cfg)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	objs = append(objs, trust)
	return objs, own(objs)
}

func (cfg Config) ranges() ([]netip.Prefix, error) {
	ranges := slices.Clone(cfg.ServiceRanges)
	if len(ranges) == 0 {
		ranges = []netip.Prefix{netip.MustParsePrefix(DefaultServiceRange)}
	}
	if len(ranges) > 2 {
		return nil, errors.New("more than two service ranges")
	}
	for i, r := range ranges {
		if !r.IsValid() || r.IsSingleIP() {
			return nil, fmt.Errorf("service range %s has no addresses to give", r)
		}
		ranges[i] = r.Masked()
	}
	return ranges, nil
}

func namespaces() []runtime.Object {
	var objs []runtime.Object
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		objs = append(objs, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		})
	}
	return objs
}

// flowControl returns priority levels, then the schemas that name them, which say
// so: whoever goes by them finds nothing to write.
func flowControl() []runtime.Object {
	var objs []runtime.Object
	for _, level := range slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations) {
		made := level.DeepCopy()
		made.Generation = 1
		objs = append(objs, made)
	}
	for _, schema := range slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas) {
		made := schema.DeepCopy()
		made.Generation = 1
		made.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{
			Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, LastTransitionTime: metav1.Now(), Reason: "Found",
			Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", made.Spec.PriorityLevelConfiguration.Name),
		}}
		objs = append(objs, made)
	}
	return objs
}

// kubernetes is the name of the service that is this server.
const kubernetes = "kubernetes"

func serviceRange(ranges []netip.Prefix) *networkingv1.ServiceCIDR {
	cidr := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: kubernetes},
		Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{
			Type:               networkingv1.ServiceCIDRConditionReady,
			Status:             metav1.ConditionTrue,
			Message:            "Kubernetes default Service CIDR is ready",
			LastTransitionTime: metav1.Now(),
		}}},
	}
	for _, r := range ranges {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, r.String())
	}
	return cidr
}

func service(addr netip.Addr, port int) *corev1.Service {
	family := corev1.IPv4Protocol
	if addr.Is6() {
		family = corev1.IPv6Protocol
	}
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      kubernetes,
			Namespace: metav1.NamespaceDefault,
			Labels:    map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Ports:                 []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt(port)}},
			ClusterIP:             addr.String(),
			ClusterIPs:            []string{addr.String()},
			Type:                  corev1.ServiceTypeClusterIP,
			SessionAffinity:       corev1.ServiceAffinityNone,
			IPFamilies:            []corev1.IPFamily{family},
			IPFamilyPolicy:        &single,
			InternalTrafficPolicy: &cluster,
		},
	}
}

// endpoints is the kubernetes service's address in the older of two forms.
//
//nolint:staticcheck // deprecated upstream, and still made and read there
func endpoints(addr netip.Addr, port int) *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{
			Name:      kubernetes,
			Namespace: metav1.NamespaceDefault,
			// The slice is made here, too.
			Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: addr.String()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(port), Protocol: corev1.ProtocolTCP}},
		}},
	}
}

func endpointSlice(addr netip.Addr, port int) *discoveryv1.EndpointSlice {
	family := discoveryv1.AddressTypeIPv4
	if addr.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	name, number, protocol, ready := "https", int32(port), corev1.ProtocolTCP, true
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:       kubernetes,
			Namespace:  metav1.NamespaceDefault,
			Labels:     map[string]string{discoveryv1.LabelServiceName: kubernetes},
			Generation: 1,
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &number, Protocol: &protocol}},
	}
}

// tokenTracking says since when the use of secret-based service account tokens
// is noted on their secrets; before that, an unmarked secret says nothing.
func tokenTracking() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-apiserver-legacy-service-account-token-tracking"},
		Data:       map[string]string{"since": time.Now().UTC().Format(time.DateOnly)},
	}
}
