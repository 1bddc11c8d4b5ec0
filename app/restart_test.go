package app_test

import (
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// revision is the store's, as a list tells it.
func revision(t *testing.T, c *kubernetes.Clientset) string {
	t.Helper()
	list, err := c.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.ResourceVersion
}

func TestRestart(t *testing.T) {
	cfg := app.Config{Data: t.TempDir()}
	open := func() (*kubernetes.Clientset, *apptest.Plane) {
		p := apptest.StartOn(t, cfg)
		return kubernetes.NewForConfigOrDie(p.Config), p
	}
	c, p := open()
	was := revision(t, c)
	p.Stop()

	c, p = open()
	if now := revision(t, c); now != was {
		t.Errorf("a start with nothing to mend goes from revision %s to %s", was, now)
	}
	roles, bindings := c.RbacV1().ClusterRoles(), c.RbacV1().ClusterRoleBindings()
	edited, err := roles.Patch(t.Context(), "system:node-proxier", types.JSONPatchType, []byte(`[
		{"op": "remove", "path": "/rules/0"},
		{"op": "add", "path": "/rules/-", "value": {"verbs": ["get"], "apiGroups": ["example.org"], "resources": ["widgets"]}}]`), metav1.PatchOptions{FieldManager: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if err := bindings.Delete(t.Context(), "system:node-proxier", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := roles.Patch(t.Context(), "system:monitoring", types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": []}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Stop()

	c, p = open()
	roles, bindings = c.RbacV1().ClusterRoles(), c.RbacV1().ClusterRoleBindings()
	mended, err := roles.Get(t.Context(), "system:node-proxier", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	has := func(resource string) bool {
		return slices.ContainsFunc(mended.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
	}
	if !has("widgets") || !has("services") || mended.UID != edited.UID || mended.CreationTimestamp != edited.CreationTimestamp {
		t.Errorf("the role has become %+v", mended)
	}
	for _, f := range mended.ManagedFields {
		if owns := strings.Contains(f.FieldsV1.String(), "f:rules"); owns != (f.Manager == "kube-apiserver") {
			t.Errorf("%s owns the rules: %v", f.Manager, owns)
		}
	}
	if _, err := bindings.Get(t.Context(), "system:node-proxier", metav1.GetOptions{}); err != nil {
		t.Errorf("the binding is not made anew: %v", err)
	}
	if kept, err := roles.Get(t.Context(), "system:monitoring", metav1.GetOptions{}); err != nil || len(kept.Rules) != 0 {
		t.Errorf("the protected role has %v, error %v", kept.Rules, err)
	}
	was = revision(t, c)
	p.Stop()

	c, _ = open()
	if now := revision(t, c); now != was {
		t.Errorf("a start after mending goes from revision %s to %s", was, now)
	}
}

// TestOwnersOfTheFirstObjects: who applies to what the control plane started
// with is told whose it is.
func TestOwnersOfTheFirstObjects(t *testing.T) {
	c := kubernetes.NewForConfigOrDie(start(t, app.Access{}).Config)
	const labelled = `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {"kubernetes.io/metadata.name": "default", "team": "red"}}}`
	ns, err := c.CoreV1().Namespaces().Patch(t.Context(), "default", types.ApplyPatchType, []byte(labelled), metav1.PatchOptions{FieldManager: "ann"})
	if err != nil || ns.Labels["team"] != "red" {
		t.Fatalf("%v, %v", ns, err)
	}
	if !slices.ContainsFunc(ns.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager == "kube-apiserver" }) {
		t.Errorf("owners %v", ns.ManagedFields)
	}
	const rules = `{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:monitoring"}, "rules": []}`
	if _, err := c.RbacV1().ClusterRoles().Patch(t.Context(), "system:monitoring", types.ApplyPatchType, []byte(rules), metav1.PatchOptions{FieldManager: "ann"}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "kube-apiserver"`) {
		t.Errorf("an apply to another's rules: %v", err)
	}
}

func TestAddressesAreRepaired(t *testing.T) {
	cfg := app.Config{Data: t.TempDir()}
	p := apptest.StartOn(t, cfg)
	c := kubernetes.NewForConfigOrDie(p.Config)
	addresses := c.NetworkingV1().IPAddresses()
	if err := addresses.Delete(t.Context(), "10.0.0.1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := addresses.Create(t.Context(), &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.0.77", Labels: map[string]string{
			networkingv1.LabelManagedBy: "ipallocator.k8s.io", networkingv1.LabelIPAddressFamily: "IPv4",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Group: "example.org", Resource: "gateways", Name: "g"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Stop()

	p = apptest.StartOn(t, cfg)
	addresses = kubernetes.NewForConfigOrDie(p.Config).NetworkingV1().IPAddresses()
	w, err := addresses.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	there := map[string]bool{"10.0.0.77": true}
	for !there["10.0.0.1"] || there["10.0.0.77"] {
		event, open := <-w.ResultChan()
		if !open {
			t.Fatalf("the watch has ended, with %v", there)
		}
		if a, is := event.Object.(*networkingv1.IPAddress); is {
			there[a.Name] = event.Type != watch.Deleted
		}
		if list, err := addresses.List(t.Context(), metav1.ListOptions{}); err == nil && len(list.Items) == 1 {
			there = map[string]bool{list.Items[0].Name: true}
		}
	}
}
