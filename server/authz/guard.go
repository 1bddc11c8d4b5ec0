package authz

import (
	"context"
	"errors"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/rbac"
	conversion "k8s.io/kubernetes/pkg/apis/rbac/v1"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Guard keeps users from granting more than they have: a role may hold only
// rules that its writer has, unless the writer may escalate it; a binding may
// name only a role whose rules its writer has, unless the writer may bind it.
// Members of system:masters may do both.
type Guard struct {
	rules validation.AuthorizationRuleResolver
	authz authorizer.Authorizer
}

// NewGuard returns a guard that reads what users have from roles and asks
// authz about the verbs escalate and bind.
func NewGuard(roles *Roles, authz authorizer.Authorizer) *Guard {
	return &Guard{rules: resolver{validation.NewDefaultRuleResolver(roles, roles, roles, roles)}, authz: authz}
}

// resolver tells Roles whose rules are looked for.
type resolver struct {
	validation.AuthorizationRuleResolver
}

func (r resolver) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	return r.AuthorizationRuleResolver.RulesFor(asking(ctx, u), u, namespace)
}

// Write is a create or update of a role or binding.
type Write struct {
	User user.Info
	// Namespace and Name are those of the request; a create by POST has no
	// name.
	Namespace, Name string
	// Object is what will be stored and Old what is stored now, nil for a
	// create; both of v1 or both internal.
	Object, Old runtime.Object
}

// Check returns an API error when the user may not make the write. Objects
// that are no roles and no bindings pass.
func (g *Guard) Check(ctx context.Context, w Write) error {
	ctx = request.WithUser(request.WithNamespace(ctx, w.Namespace), w.User)
	if rbacregistry.EscalationAllowed(ctx) {
		return nil
	}
	// Compat: the garbage collector changes finalizers and owners of roles
	// that it could not write.
	if w.Old != nil && rbacregistry.IsOnlyMutatingGCFields(w.Object, w.Old, equality.Semantic) {
		return nil
	}
	obj, err := toV1(w.Object)
	if err != nil {
		return err
	}
	switch obj := obj.(type) {
	case *rbacv1.Role:
		return g.CheckRole(ctx, w, "roles", obj.Name, obj.Rules, false)
	case *rbacv1.ClusterRole:
		aggregates := hasAggregation(obj)
		if w.Old != nil && !aggregates {
			old, err := toV1(w.Old)
			if err != nil {
				return err
			}
			was, ok := old.(*rbacv1.ClusterRole)
			aggregates = ok && hasAggregation(was)
		}
		return g.CheckRole(ctx, w, "clusterroles", obj.Name, obj.Rules, aggregates)
	case *rbacv1.RoleBinding:
		return g.CheckBinding(ctx, w, "rolebindings", obj.Name, obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		return g.CheckBinding(ctx, w, "clusterrolebindings", obj.Name, obj.RoleRef)
	}
	return nil
}

// fullAuthority is what writing an aggregating role asks for: it can gather
// anything.
var fullAuthority = []rbacv1.PolicyRule{
	{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}},
	{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
}

// CheckRole returns a Forbidden error when the user neither has the rules nor
// may escalate. The resource is roles or clusterroles, the name the role's;
// of w only the user and the request's namespace and name are read.
func (g *Guard) CheckRole(ctx context.Context, w Write, resource, name string, rules []rbacv1.PolicyRule, aggregates bool) error {
	ctx = request.WithUser(request.WithNamespace(ctx, w.Namespace), w.User)
	asked := request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true,
		APIGroup:          rbacv1.GroupName,
		Resource:          resource,
		Namespace:         w.Namespace,
		Name:              w.Name,
	})
	if rbacregistry.EscalationAllowed(ctx) || rbacregistry.RoleEscalationAuthorized(asked, g.authz) {
		return nil
	}
	if err := validation.ConfirmNoEscalation(ctx, g.rules, rules); err != nil {
		return apierrors.NewForbidden(rbacv1.Resource(resource), name, err)
	}
	if aggregates && validation.ConfirmNoEscalation(ctx, g.rules, fullAuthority) != nil {
		return apierrors.NewForbidden(rbacv1.Resource(resource), name,
			errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

// CheckBinding returns a Forbidden error when the user neither has the rules of
// the role nor may bind it, and NotFound when there is no such role to compare
// with. The resource is rolebindings or clusterrolebindings, the name the
// binding's; of w only the user and the request's namespace are read.
func (g *Guard) CheckBinding(ctx context.Context, w Write, resource, name string, role rbacv1.RoleRef) error {
	ctx = request.WithUser(request.WithNamespace(ctx, w.Namespace), w.User)
	if rbacregistry.EscalationAllowed(ctx) ||
		rbacregistry.BindingAuthorized(ctx, rbac.RoleRef{APIGroup: role.APIGroup, Kind: role.Kind, Name: role.Name}, w.Namespace, g.authz) {
		return nil
	}
	rules, err := g.rules.GetRoleReferenceRules(ctx, role, w.Namespace)
	if apierrors.IsNotFound(err) {
		// Compat: upstream names the role, and the resource of the request.
		return apierrors.NewNotFound(rbacv1.Resource(resource), role.Name)
	}
	if err != nil {
		return err
	}
	if err := validation.ConfirmNoEscalation(ctx, g.rules, rules); err != nil {
		return apierrors.NewForbidden(rbacv1.Resource(resource), name, err)
	}
	return nil
}

func hasAggregation(role *rbacv1.ClusterRole) bool {
	return role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

// toV1 converts the four internal kinds and returns anything else as it is.
func toV1(obj runtime.Object) (runtime.Object, error) {
	var out runtime.Object
	var err error
	switch in := obj.(type) {
	case *rbac.Role:
		v := &rbacv1.Role{}
		out, err = v, conversion.Convert_rbac_Role_To_v1_Role(in, v, nil)
	case *rbac.ClusterRole:
		v := &rbacv1.ClusterRole{}
		out, err = v, conversion.Convert_rbac_ClusterRole_To_v1_ClusterRole(in, v, nil)
	case *rbac.RoleBinding:
		v := &rbacv1.RoleBinding{}
		out, err = v, conversion.Convert_rbac_RoleBinding_To_v1_RoleBinding(in, v, nil)
	case *rbac.ClusterRoleBinding:
		v := &rbacv1.ClusterRoleBinding{}
		out, err = v, conversion.Convert_rbac_ClusterRoleBinding_To_v1_ClusterRoleBinding(in, v, nil)
	default:
		return obj, nil
	}
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", obj, err)
	}
	return out, nil
}
