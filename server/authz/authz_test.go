package authz_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/rbac"

	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/server/bootstrap"
)

// tables is a source in memory.
type tables struct {
	objs      map[string][]runtime.Object
	revisions map[string]uint64
	lists     int
	err       error
}

func (s *tables) Revision(resource string) uint64 { return s.revisions[resource] }

func (s *tables) List(_ context.Context, resource string) iter.Seq2[runtime.Object, error] {
	s.lists++
	return func(yield func(runtime.Object, error) bool) {
		for _, obj := range s.objs[resource] {
			if !yield(obj, nil) {
				return
			}
		}
		if s.err != nil {
			yield(nil, s.err)
		}
	}
}

func (s *tables) add(objs ...runtime.Object) {
	for _, obj := range objs {
		var resource string
		switch obj.(type) {
		case *rbacv1.Role:
			resource = "roles"
		case *rbacv1.RoleBinding:
			resource = "rolebindings"
		case *rbacv1.ClusterRole:
			resource = "clusterroles"
		case *rbacv1.ClusterRoleBinding:
			resource = "clusterrolebindings"
		default:
			continue
		}
		s.objs[resource] = append(s.objs[resource], obj)
		s.revisions[resource]++
	}
}

// defaults are the roles and bindings that every control plane starts with.
func defaults(t testing.TB) *tables {
	t.Helper()
	objs, err := bootstrap.Objects(bootstrap.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &tables{objs: map[string][]runtime.Object{}, revisions: map[string]uint64{}}
	s.add(objs...)
	return s
}

// bind binds a cluster role in namespace shop.
func bind(role string, to ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   to,
	}
}

func newAuthz(t testing.TB, cfg authz.Config) (authorizer.Authorizer, authorizer.RuleResolver) {
	t.Helper()
	a, err := authz.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, a
}

func who(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: groups}
}

func on(u user.Info, verb, resource, namespace, name string) authorizer.AttributesRecord {
	resource, group, _ := strings.Cut(resource, ".")
	return authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource, Namespace: namespace, Name: name, ResourceRequest: true,
	}
}

func path(u user.Info, path string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: "get", Path: path}
}

func allowed(t testing.TB, a authorizer.Authorizer, attrs authorizer.Attributes) bool {
	t.Helper()
	decision, _, err := a.Authorize(t.Context(), attrs)
	if err != nil {
		t.Error(err)
	}
	return decision == authorizer.DecisionAllow
}

func TestRBAC(t *testing.T) {
	s := defaults(t)
	s.add(
		bind("view", rbacv1.Subject{Kind: "User", Name: "alice"}),
		bind("edit", rbacv1.Subject{Kind: "Group", Name: "dev"}),
		bind("admin", rbacv1.Subject{Kind: "ServiceAccount", Name: "operator"}), // of the same namespace
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"it"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "one"},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: "bob"}, {Kind: "Group", Name: "dev"}},
		},
	)
	a, _ := newAuthz(t, authz.Config{Roles: authz.NewRoles(s)})
	alice, bob, dev := who("alice", user.AllAuthenticated), who("bob"), who("carol", "dev")
	operator := who("system:serviceaccount:shop:operator")
	anonymous := who(user.Anonymous, user.AllUnauthenticated)
	tests := []struct {
		name  string
		attrs authorizer.AttributesRecord
		want  bool
	}{
		{"view in the namespace", on(alice, "list", "pods", "shop", ""), true},
		{"view elsewhere", on(alice, "list", "pods", "other", ""), false},
		{"view everywhere", on(alice, "list", "pods", "", ""), false},
		{"view does not write", on(alice, "create", "pods", "shop", ""), false},
		{"view does not see secrets", on(alice, "get", "secrets", "shop", "it"), false},
		{"edit by group", on(dev, "create", "deployments.apps", "shop", ""), true},
		{"edit grants nothing", on(dev, "create", "rolebindings.rbac.authorization.k8s.io", "shop", ""), false},
		{"admin of the namespace's account", on(operator, "create", "rolebindings.rbac.authorization.k8s.io", "shop", ""), true},
		{"account of another namespace", on(who("system:serviceaccount:other:operator"), "list", "pods", "shop", ""), false},
		{"by name", on(bob, "get", "secrets", "shop", "it"), true},
		{"by another name", on(bob, "get", "secrets", "shop", "that"), false},
		{"masters", on(who("root", "system:masters"), "delete", "nodes", "", "n1"), true},
		{"controller", on(who("system:serviceaccount:kube-system:deployment-controller"), "create", "replicasets.apps", "x", ""), true},
		{"scheduler", on(who("system:kube-scheduler"), "list", "nodes", "", ""), true},
		{"discovery", path(alice, "/apis"), true},
		{"version for all", path(anonymous, "/version"), true},
		{"discovery not for all", path(anonymous, "/apis"), false},
		{"health for all", path(anonymous, "/livez"), true},
		{"metrics", path(alice, "/metrics"), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := allowed(t, a, test.attrs); got != test.want {
				t.Errorf("allowed is %v", got)
			}
		})
	}
}

func TestRolesFollowTheSource(t *testing.T) {
	s := defaults(t)
	a, _ := newAuthz(t, authz.Config{Roles: authz.NewRoles(s)})
	ask := on(who("alice"), "list", "pods", "shop", "")
	if allowed(t, a, ask) {
		t.Fatal("allowed before the binding")
	}
	s.add(bind("view", rbacv1.Subject{Kind: "User", Name: "alice"}))
	if !allowed(t, a, ask) {
		t.Fatal("not allowed after the binding")
	}
	lists := s.lists
	for range 10 {
		allowed(t, a, ask)
	}
	if s.lists != lists {
		t.Errorf("listed %d times although nothing changed", s.lists-lists)
	}
	s.objs["rolebindings"] = s.objs["rolebindings"][:len(s.objs["rolebindings"])-1]
	s.revisions["rolebindings"]++
	if allowed(t, a, ask) {
		t.Error("allowed after the binding is gone")
	}

	s.err = errors.New("disk on fire")
	s.revisions["rolebindings"]++
	decision, reason, err := a.Authorize(t.Context(), ask)
	if decision != authorizer.DecisionNoOpinion || err != nil || !strings.Contains(reason, "disk on fire") {
		t.Errorf("with a failing source: %v %q %v", decision, reason, err)
	}
}

func TestMissingRoleIsSaid(t *testing.T) {
	s := defaults(t)
	s.add(bind("none", rbacv1.Subject{Kind: "User", Name: "alice"}))
	a, _ := newAuthz(t, authz.Config{Roles: authz.NewRoles(s)})
	_, reason, _ := a.Authorize(t.Context(), on(who("alice"), "list", "pods", "shop", ""))
	if want := `RBAC: clusterrole.rbac.authorization.k8s.io "none" not found`; reason != want {
		t.Errorf("got %q", reason)
	}
}

func TestRules(t *testing.T) {
	s := defaults(t)
	s.add(bind("view", rbacv1.Subject{Kind: "User", Name: "alice"}))
	_, rules := newAuthz(t, authz.Config{Roles: authz.NewRoles(s)})
	here, _, incomplete, err := rules.RulesFor(t.Context(), who("alice"), "shop")
	if err != nil || incomplete || len(here) == 0 {
		t.Errorf("%d rules, incomplete %v, error %v", len(here), incomplete, err)
	}
	if there, _, _, _ := rules.RulesFor(t.Context(), who("alice"), "other"); len(there) != 0 {
		t.Errorf("%d rules in another namespace", len(there))
	}
}

func TestModes(t *testing.T) {
	roles := authz.NewRoles(defaults(t))
	ask := on(who("alice"), "list", "pods", "", "")
	for _, test := range []struct {
		name  string
		cfg   authz.Config
		want  bool
		wrong string
	}{
		{"always", authz.Config{Modes: []string{"AlwaysAllow"}}, true, ""},
		{"never", authz.Config{Modes: []string{"AlwaysDeny"}}, false, ""},
		{"one after the other", authz.Config{Modes: []string{"RBAC", "AlwaysAllow"}, Roles: roles}, true, ""},
		{"zero config", authz.Config{}, false, "mode RBAC: no roles"},
		{"node", authz.Config{Modes: []string{"Node"}}, false, "mode Node: nothing is known of nodes"},
		{"unknown", authz.Config{Modes: []string{"Chance"}}, false, "mode Chance: unknown"},
		{"policies nowhere", authz.Config{Modes: []string{"ABAC"}}, false, "mode ABAC: --authorization-policy-file is needed"},
		{"policies for nobody", authz.Config{Modes: []string{"RBAC"}, Roles: roles, PolicyFile: "x"}, false, "--authorization-policy-file is of no use"},
		{"policies missing", authz.Config{Modes: []string{"ABAC"}, PolicyFile: "none"}, false, "mode ABAC: open none"},
		{"webhook for nobody", authz.Config{Modes: []string{"RBAC"}, Roles: roles, WebhookConfigFile: "x"}, false, "--authorization-webhook-config-file is of no use"},
		{"webhook missing", authz.Config{Modes: []string{"Webhook"}, WebhookConfigFile: "none"}, false, "mode Webhook: none: "},
		{"file missing", authz.Config{ConfigFile: "none"}, false, "--authorization-config: open none"},
		{"file and modes", authz.Config{ConfigFile: "none", Modes: []string{"RBAC"}, Roles: roles}, false, "--authorization-config excludes --authorization-mode"},
		{"twice", authz.Config{Modes: []string{"RBAC", "RBAC"}, Roles: roles}, false, "given twice"},
		{"webhook nowhere", authz.Config{Modes: []string{"Webhook"}}, false, "mode Webhook: --authorization-webhook-config-file is needed"},
		{"bad path", authz.Config{AlwaysAllowPaths: []string{"/a*b"}, Roles: roles}, false, "always-allowed paths"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, err := authz.New(test.cfg)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := allowed(t, a, ask); got != test.want {
				t.Errorf("allowed is %v", got)
			}
		})
	}
}

func TestNode(t *testing.T) {
	nodes := authz.NewNodes()
	a, _ := newAuthz(t, authz.Config{Modes: []string{"Node"}, Nodes: nodes})
	n1, n2 := who("system:node:n1", "system:nodes"), who("system:node:n2", "system:nodes")
	secret := func(u user.Info) bool { return allowed(t, a, on(u, "get", "secrets", "shop", "s1")) }

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
			Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s1"}},
		}}},
	}
	nodes.Observe(nil, pod)
	if secret(n1) {
		t.Error("a pod on no node opens its secret")
	}
	placed := pod.DeepCopy()
	placed.Spec.NodeName = "n1"
	nodes.Observe(pod, placed)
	if !secret(n1) || secret(n2) {
		t.Errorf("placed on n1: n1 %v, n2 %v", secret(n1), secret(n2))
	}
	running := placed.DeepCopy()
	running.Status.Phase = corev1.PodRunning
	nodes.Observe(placed, running)
	if !secret(n1) {
		t.Error("a change of status closes the secret")
	}
	debugged := running.DeepCopy()
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "d", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s2"}}}},
	}}}
	nodes.Observe(running, debugged)
	if !allowed(t, a, on(n1, "get", "secrets", "shop", "s2")) {
		t.Error("an ephemeral container's secret is closed")
	}
	nodes.Observe(debugged, nil)
	if secret(n1) {
		t.Error("a pod that is gone opens its secret")
	}

	own := on(n1, "list", "pods", "", "")
	if allowed(t, a, own) {
		t.Error("a node sees all pods")
	}
	own.FieldSelectorRequirements = fields.Requirements{{Operator: "=", Field: "spec.nodeName", Value: "n1"}}
	if !allowed(t, a, own) {
		t.Error("a node does not see its own pods")
	}
	if !allowed(t, a, on(n1, "create", "events", "shop", "")) || allowed(t, a, on(who("alice"), "create", "events", "shop", "")) {
		t.Error("the rules of nodes are not for nodes")
	}
}

func TestGuard(t *testing.T) {
	s := defaults(t)
	s.add(
		bind("admin", rbacv1.Subject{Kind: "User", Name: "alice"}),
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "granter"},
			Rules: []rbacv1.PolicyRule{
				{Verbs: []string{"bind"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"clusterroles"}, ResourceNames: []string{"cluster-admin"}},
				{Verbs: []string{"escalate"}, APIGroups: []string{rbacv1.GroupName}, Resources: []string{"roles"}},
			},
		},
		bind("granter", rbacv1.Subject{Kind: "User", Name: "greg"}),
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "root"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: "rita"}},
		},
	)
	roles := authz.NewRoles(s)
	a, _ := newAuthz(t, authz.Config{Roles: roles})
	guard := authz.NewGuard(roles, a)

	pods := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	nodes := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}}
	role := func(rules []rbacv1.PolicyRule) *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"}, Rules: rules}
	}
	clusterRole := func(rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: rules}
	}
	gathering := clusterRole(nil)
	gathering.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	finalized := role(nodes)
	finalized.Finalizers = []string{"x"}
	clusterBinding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	internal := &rbac.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "r"},
		Rules:      []rbac.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}},
	}

	alice, greg, rita, root := who("alice"), who("greg"), who("rita"), who("root", "system:masters")
	tests := []struct {
		name  string
		write authz.Write
		want  string
	}{
		{"what one has", authz.Write{User: alice, Namespace: "shop", Object: role(pods)}, ""},
		{"what one has, elsewhere", authz.Write{User: alice, Namespace: "other", Object: role(pods)}, "not currently held"},
		{"more than one has", authz.Write{User: alice, Namespace: "shop", Object: role(nodes)}, "not currently held"},
		{"more than one has, internal", authz.Write{User: alice, Namespace: "shop", Object: internal}, "not currently held"},
		{"for the cluster", authz.Write{User: alice, Object: clusterRole(pods)}, "not currently held"},
		{"masters", authz.Write{User: root, Object: clusterRole(nodes)}, ""},
		{"escalate", authz.Write{User: greg, Namespace: "shop", Object: role(nodes)}, ""},
		{"escalate for the cluster", authz.Write{User: greg, Object: clusterRole(nodes)}, "not currently held"},
		{"gathering", authz.Write{User: alice, Object: gathering}, "must have cluster-admin privileges to use the aggregationRule"},
		{"gathering with everything", authz.Write{User: rita, Object: gathering}, ""},
		{"no longer gathering", authz.Write{User: alice, Object: clusterRole(nil), Old: gathering}, "must have cluster-admin privileges"},
		{"finalizers only", authz.Write{User: alice, Namespace: "shop", Name: "r", Object: finalized, Old: role(nodes)}, ""},
		{"bind what one has", authz.Write{User: alice, Namespace: "shop", Object: bind("view")}, ""},
		{"bind more", authz.Write{User: alice, Namespace: "shop", Object: bind("cluster-admin")}, "not currently held"},
		{"bind for the cluster", authz.Write{User: alice, Object: clusterBinding}, "not currently held"},
		{"may bind", authz.Write{User: greg, Namespace: "shop", Object: bind("cluster-admin")}, ""},
		{"may bind another", authz.Write{User: greg, Namespace: "shop", Object: bind("admin")}, "not currently held"},
		{"bind nothing", authz.Write{User: alice, Namespace: "shop", Object: bind("none")}, `rolebindings.rbac.authorization.k8s.io "none" not found`},
		{"something else", authz.Write{User: alice, Namespace: "shop", Object: &corev1.Pod{}}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := guard.Check(t.Context(), test.write)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			case err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err):
				t.Errorf("%v is no such API error", err)
			}
		})
	}
}

func TestForbidden(t *testing.T) {
	for want, attrs := range map[string]authorizer.AttributesRecord{
		`pods is forbidden: User "a&lt;b" cannot list resource "pods" in API group "" in the namespace "shop": no`:                     on(who("a<b"), "list", "pods", "shop", ""),
		`deployments.apps "d" is forbidden: User "bob" cannot get resource "deployments" in API group "apps" at the cluster scope: no`: on(who("bob"), "get", "deployments.apps", "", "d"),
		`forbidden: User "bob" cannot get path "/x": no`:                                                                               path(who("bob"), "/x"),
	} {
		if err := authz.Forbidden(attrs, "no"); err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	for _, size := range []int{0, 5000} {
		s := defaults(b)
		for i := range size {
			s.add(&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("b", i)},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
				Subjects:   []rbacv1.Subject{{Kind: "User", Name: fmt.Sprint("user", i)}},
			})
		}
		a, _ := newAuthz(b, authz.Config{Roles: authz.NewRoles(s)})
		ask := on(who("system:serviceaccount:kube-system:deployment-controller", "system:serviceaccounts", "system:authenticated"),
			"update", "replicasets.apps", "shop", "web")
		b.Run(fmt.Sprintf("bindings=%d", 50+size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !allowed(b, a, ask) {
					b.Fatal("not allowed")
				}
			}
		})
	}
}
