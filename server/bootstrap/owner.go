package bootstrap

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Manager is who owns what an empty control plane starts with, and what is
// mended later.
const Manager = "kube-apiserver"

// Others who own parts of it. Compat: these are upstream's names, under which
// they go on writing.
const (
	flowManager      = "api-priority-and-fairness-config-producer-v1"
	turnManager      = "api-priority-and-fairness-config-consumer-v1"
	rangeManager     = "kubernetes-service-cidr-controller"
	aggregateManager = "clusterrole-aggregation-controller"
)

// own writes into objects who owns their fields, as if each had come in a
// request. It is written down here kind by kind, because working it out takes
// the schemas of all kinds, which costs more than the rest of a start.
func own(objs []runtime.Object) error {
	now := metav1.Now()
	for _, obj := range objs {
		m, err := meta.Accessor(obj)
		if err != nil {
			return err
		}
		entry := func(version, manager, fields string) metav1.ManagedFieldsEntry {
			return metav1.ManagedFieldsEntry{
				Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, Time: &now,
				FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
			}
		}
		version, manager, before, after := parts(obj)
		var owned []metav1.ManagedFieldsEntry
		switch obj := obj.(type) {
		case *rbacv1.ClusterRole:
			if obj.AggregationRule != nil {
				e := entry(version, aggregateManager, `{"f:rules":{}}`)
				e.Operation = metav1.ManagedFieldsOperationApply
				owned = append(owned, e)
			}
		case *networkingv1.ServiceCIDR:
			e := entry(version, rangeManager, `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}}}}`)
			e.Operation, e.Subresource = metav1.ManagedFieldsOperationApply, "status"
			owned = append(owned, e)
		case *flowcontrolv1.FlowSchema:
			e := entry(version, turnManager, `{"f:status":{"f:conditions":{"k:{\"type\":\"Dangling\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`)
			e.Operation, e.Subresource = metav1.ManagedFieldsOperationApply, "status"
			owned = append(owned, e)
		}
		fields := "{" + join(before, metadata(m), after) + "}"
		m.SetManagedFields(append(owned, entry(version, manager, fields)))
	}
	return nil
}

// parts are the version that an object is written in, who owns it, and which
// fields it has, before and after metadata in the order of the alphabet.
func parts(obj runtime.Object) (version, manager, before, after string) {
	manager = Manager
	switch obj := obj.(type) {
	case *corev1.Namespace:
		version = "v1"
	case *corev1.ConfigMap:
		version, before = "v1", group("data", slices.Collect(maps.Keys(obj.Data)))
	case *corev1.Service:
		version = "v1"
		var ports strings.Builder
		for _, p := range obj.Spec.Ports {
			ports.WriteString(`,"k:{\"port\":` + strconv.Itoa(int(p.Port)) + `,\"protocol\":\"` + string(p.Protocol) +
				`\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}`)
		}
		after = `"f:spec":{"f:clusterIP":{},"f:internalTrafficPolicy":{},"f:ipFamilyPolicy":{},"f:ports":{".":{}` + ports.String() +
			`},"f:sessionAffinity":{},"f:type":{}}`
	case *corev1.Endpoints: //nolint:staticcheck // deprecated upstream, and still made and read there
		version, after = "v1", `"f:subsets":{}`
	case *discoveryv1.EndpointSlice:
		version, before, after = "discovery.k8s.io/v1", `"f:addressType":{},"f:endpoints":{}`, `"f:ports":{}`
	case *networkingv1.ServiceCIDR:
		version, after = "networking.k8s.io/v1", `"f:spec":{"f:cidrs":{}}`
	case *networkingv1.IPAddress:
		version, after = "networking.k8s.io/v1", `"f:spec":{"f:parentRef":{".":{},"f:name":{},"f:namespace":{},"f:resource":{}}}`
	case *schedulingv1.PriorityClass:
		version, before = "scheduling.k8s.io/v1", `"f:description":{}`
		after = `"f:preemptionPolicy":{},"f:value":{}`
	case *rbacv1.ClusterRole:
		version, after = rbacv1.SchemeGroupVersion.String(), `"f:rules":{}`
		if obj.AggregationRule != nil {
			before, after = `"f:aggregationRule":{".":{},"f:clusterRoleSelectors":{}}`, ""
		}
	case *rbacv1.Role:
		version, after = rbacv1.SchemeGroupVersion.String(), `"f:rules":{}`
	case *rbacv1.ClusterRoleBinding:
		version, after = rbacv1.SchemeGroupVersion.String(), bound(obj.Subjects)
	case *rbacv1.RoleBinding:
		version, after = rbacv1.SchemeGroupVersion.String(), bound(obj.Subjects)
	case *flowcontrolv1.FlowSchema:
		version, manager = flowcontrolv1.SchemeGroupVersion.String(), flowManager
		method := ""
		if obj.Spec.DistinguisherMethod != nil {
			method = `"f:distinguisherMethod":{".":{},"f:type":{}}`
		}
		after = `"f:spec":{` + join(method, `"f:matchingPrecedence":{},"f:priorityLevelConfiguration":{"f:name":{}},"f:rules":{}`) + "}"
	case *flowcontrolv1.PriorityLevelConfiguration:
		version, manager = flowcontrolv1.SchemeGroupVersion.String(), flowManager
		after = `"f:spec":{"f:exempt":{".":{},"f:lendablePercent":{},"f:nominalConcurrencyShares":{}},"f:type":{}}`
		if limited := obj.Spec.Limited; limited != nil {
			queuing := ""
			if limited.LimitResponse.Queuing != nil {
				queuing = `"f:queuing":{".":{},"f:handSize":{},"f:queueLengthLimit":{},"f:queues":{}}`
			}
			after = `"f:spec":{"f:limited":{".":{},"f:lendablePercent":{},"f:limitResponse":{` + join(`".":{}`, queuing, `"f:type":{}`) +
				`},"f:nominalConcurrencyShares":{}},"f:type":{}}`
		}
	}
	return version, manager, before, after
}

func bound(subjects []rbacv1.Subject) string {
	if len(subjects) == 0 {
		return `"f:roleRef":{}`
	}
	return `"f:roleRef":{},"f:subjects":{}`
}

func metadata(m metav1.Object) string {
	names := join(group("annotations", slices.Collect(maps.Keys(m.GetAnnotations()))), group("labels", slices.Collect(maps.Keys(m.GetLabels()))))
	if names == "" {
		return ""
	}
	return `"f:metadata":{` + names + "}"
}

// group is a field with the fields in it, if there are any.
func group(name string, keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	slices.Sort(keys)
	var b strings.Builder
	b.WriteString(`"f:` + name + `":{".":{}`)
	for _, key := range keys {
		b.WriteString(`,"f:` + key + `":{}`)
	}
	return b.String() + "}"
}

// join puts a comma between what is not empty.
func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ",")
}
