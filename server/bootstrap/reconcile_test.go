package bootstrap_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/validation"

	"setpoint.dev/setpoint/server/bootstrap"
)

// TestEdition: whenever the default roles change, so does their edition.
func TestEdition(t *testing.T) {
	hash := sha256.New()
	for _, obj := range objects(t, bootstrap.Config{}) {
		switch resourceOf(t, obj) {
		case "roles", "rolebindings", "clusterroles", "clusterrolebindings":
			m, err := meta.Accessor(obj)
			if err != nil {
				t.Fatal(err)
			}
			m.SetManagedFields(nil) // they have times
			if err := json.NewEncoder(hash).Encode(obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := fmt.Sprintf("%x", hash.Sum(nil)[:4]); bootstrap.Edition != want {
		t.Errorf("the edition is %s, and should be %s", bootstrap.Edition, want)
	}
}

// stored are objects as a store has them.
type stored map[string]runtime.Object

func newStored(t *testing.T, cfg bootstrap.Config) stored {
	t.Helper()
	s := stored{}
	for i, obj := range objects(t, cfg) {
		m, err := meta.Accessor(obj)
		if err != nil {
			t.Fatal(err)
		}
		m.SetUID(types.UID(fmt.Sprint(i)))
		s[name(obj)] = obj
	}
	return s
}

func name(obj runtime.Object) string {
	m, _ := meta.Accessor(obj)
	return fmt.Sprintf("%T %s/%s", obj, m.GetNamespace(), m.GetName())
}

func (s stored) find(obj runtime.Object) (runtime.Object, error) {
	have := s[name(obj)]
	if have == nil {
		return nil, nil
	}
	return have.DeepCopyObject(), nil
}

func TestReconcile(t *testing.T) {
	type change func(role *rbacv1.ClusterRole, binding *rbacv1.ClusterRoleBinding)
	const (
		roleName    = "*v1.ClusterRole /system:kube-scheduler"
		bindingName = "*v1.ClusterRoleBinding /system:kube-scheduler"
	)
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.org"}, Resources: []string{"widgets"}}
	guest := rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "guest"}
	for _, test := range []struct {
		name   string
		change change
		want   []string
		keeps  bool // the extra rule and the guest are there, too
	}{
		{"nothing", func(*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {}, nil, false},
		{"extra", func(r *rbacv1.ClusterRole, b *rbacv1.ClusterRoleBinding) {
			r.Rules, b.Subjects = append(r.Rules, extra), append(b.Subjects, guest)
		}, nil, true},
		{"missing", func(r *rbacv1.ClusterRole, b *rbacv1.ClusterRoleBinding) {
			r.Rules, b.Subjects = []rbacv1.PolicyRule{extra}, []rbacv1.Subject{guest}
		}, []string{roleName, bindingName}, true},
		{"missing and protected", func(r *rbacv1.ClusterRole, b *rbacv1.ClusterRoleBinding) {
			r.Rules, b.Subjects = nil, nil
			r.Annotations[rbacv1.AutoUpdateAnnotationKey], b.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false", "false"
		}, nil, false},
		{"label", func(r *rbacv1.ClusterRole, _ *rbacv1.ClusterRoleBinding) { r.Labels = nil }, []string{roleName}, false},
		{"another role", func(_ *rbacv1.ClusterRole, b *rbacv1.ClusterRoleBinding) { b.RoleRef.Name = "view" }, []string{bindingName}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStored(t, config)
			before := s[roleName].DeepCopyObject().(*rbacv1.ClusterRole)
			role, binding := s[roleName].(*rbacv1.ClusterRole), s[bindingName].(*rbacv1.ClusterRoleBinding)
			test.change(role, binding)
			changed, err := bootstrap.Reconcile(s.find)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, obj := range changed {
				got = append(got, name(obj))
				s[name(obj)] = obj
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			role, binding = s[roleName].(*rbacv1.ClusterRole), s[bindingName].(*rbacv1.ClusterRoleBinding)
			if test.want != nil {
				if ok, lacks := validation.Covers(role.Rules, before.Rules); !ok {
					t.Errorf("the role lacks %v", lacks)
				}
				if binding.RoleRef.Name != "system:kube-scheduler" {
					t.Errorf("the binding is to %s", binding.RoleRef.Name)
				}
			}
			if has := slices.Contains(binding.Subjects, guest); has != test.keeps {
				t.Errorf("the guest is there: %v", has)
			}
			if again, err := bootstrap.Reconcile(s.find); err != nil || len(again) != 0 {
				t.Errorf("again it changes %d objects, error %v", len(again), err)
			}
		})
	}
}

func TestReconcileMakesWhatIsGone(t *testing.T) {
	s := newStored(t, config)
	gone := []string{"*v1.ClusterRole /admin", "*v1.Role kube-system/system:controller:token-cleaner", "*v1.ClusterRoleBinding /cluster-admin"}
	was := s[gone[0]].(*rbacv1.ClusterRole)
	for _, name := range gone {
		delete(s, name)
	}
	changed, err := bootstrap.Reconcile(s.find)
	if err != nil || len(changed) != len(gone) {
		t.Fatalf("%d objects are made, error %v", len(changed), err)
	}
	for _, obj := range changed {
		m, _ := meta.Accessor(obj)
		if m.GetUID() != "" || len(m.GetManagedFields()) == 0 {
			t.Errorf("%s is not new, or nobody's", name(obj))
		}
		if role, is := obj.(*rbacv1.ClusterRole); is && !cmp.Equal(role.Rules, was.Rules) {
			t.Error("admin is made without the rules that it gathers")
		}
	}
}

// TestGatheredRulesAreLeftAlone: what an aggregating role has is its
// controller's to say.
func TestGatheredRulesAreLeftAlone(t *testing.T) {
	s := newStored(t, config)
	s["*v1.ClusterRole /view"].(*rbacv1.ClusterRole).Rules = nil
	if changed, err := bootstrap.Reconcile(s.find); err != nil || len(changed) != 0 {
		t.Errorf("%d objects change, error %v", len(changed), err)
	}
}

func TestRefresh(t *testing.T) {
	s := newStored(t, config)
	const trust = "*v1.ConfigMap kube-system/extension-apiserver-authentication"
	s[trust].(*corev1.ConfigMap).Labels = map[string]string{"mine": "yes"}
	objs, err := bootstrap.Refresh(config, s.find)
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range objs {
		if diff := cmp.Diff(s[name(obj)], obj); diff != "" {
			t.Errorf("%s: %s", name(obj), diff)
		}
	}
	moved := config
	moved.AdvertisePort, moved.ClientCA = 7443, []byte("other")
	if objs, err = bootstrap.Refresh(moved, s.find); err != nil {
		t.Fatal(err)
	}
	for _, obj := range objs {
		m, _ := meta.Accessor(obj)
		have, _ := meta.Accessor(s[name(obj)])
		if m.GetUID() != have.GetUID() || cmp.Equal(s[name(obj)], obj) {
			t.Errorf("%s is another object, or the same as before", name(obj))
		}
	}
	delete(s, trust)
	objs, err = bootstrap.Refresh(config, s.find)
	if err != nil || !slices.ContainsFunc(objs, func(o runtime.Object) bool { m, _ := meta.Accessor(o); return m.GetUID() == "" }) {
		t.Errorf("what is gone is not made anew, error %v", err)
	}
}
