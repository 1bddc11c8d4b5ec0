package authz

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// Source is where roles and bindings are stored. A resource is one of roles,
// rolebindings, clusterroles and clusterrolebindings.
type Source interface {
	// Revision is another number after every change of the resource. It is
	// asked several times per request and must be cheap.
	Revision(resource string) uint64
	// List yields all objects of the resource, at least as new as the last
	// Revision that was returned: *rbacv1.Role and so on. They do not change.
	List(ctx context.Context, resource string) iter.Seq2[runtime.Object, error]
}

// Roles are the roles and bindings of a source, kept ready until the source
// says that they have changed.
type Roles struct {
	roles           table[*rbacv1.Role]
	bindings        table[*rbacv1.RoleBinding]
	clusterRoles    table[*rbacv1.ClusterRole]
	clusterBindings table[*rbacv1.ClusterRoleBinding]
}

// NewRoles returns the roles of a source; nothing is read before it is asked for.
func NewRoles(source Source) *Roles {
	return &Roles{
		roles:           table[*rbacv1.Role]{source: source, resource: "roles"},
		bindings:        table[*rbacv1.RoleBinding]{source: source, resource: "rolebindings"},
		clusterRoles:    table[*rbacv1.ClusterRole]{source: source, resource: "clusterroles"},
		clusterBindings: table[*rbacv1.ClusterRoleBinding]{source: source, resource: "clusterrolebindings"},
	}
}

// GetRole returns a role or a NotFound error.
func (r *Roles) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	idx, err := r.roles.index(ctx)
	if err != nil {
		return nil, err
	}
	if role := idx.namespaces[namespace].byName[name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("role"), name)
}

// GetClusterRole returns a cluster role or a NotFound error.
func (r *Roles) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	idx, err := r.clusterRoles.index(ctx)
	if err != nil {
		return nil, err
	}
	if role := idx.namespaces[""].byName[name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), name)
}

// ListRoleBindings returns the role bindings of a namespace; when ctx is for a
// user, those that may name the user.
func (r *Roles) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	idx, err := r.bindings.index(ctx)
	if err != nil {
		return nil, err
	}
	return idx.namespaces[namespace].list(ctx), nil
}

// ListClusterRoleBindings returns the cluster role bindings; when ctx is for a
// user, those that may name the user.
func (r *Roles) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	idx, err := r.clusterBindings.index(ctx)
	if err != nil {
		return nil, err
	}
	return idx.namespaces[""].list(ctx), nil
}

// table is one resource of the source.
type table[T object] struct {
	source   Source
	resource string
	mu       sync.Mutex // held while reading the source anew
	current  atomic.Pointer[index[T]]
}

// object is any of the four kinds.
type object interface {
	comparable
	runtime.Object
	GetName() string
	GetNamespace() string
}

// index is a table as of one revision; it does not change.
type index[T object] struct {
	revision   uint64
	namespaces map[string]*group[T] // "" for what has no namespace
}

// group is what lies in one namespace, by name and, for bindings, by who is
// bound. Users and service accounts share a map: both are found by the name of
// the user who asks.
type group[T object] struct {
	all              []T
	byName           map[string]T
	byUser, byMember map[string][]T
}

// index returns the table as it is now.
func (t *table[T]) index(ctx context.Context) (*index[T], error) {
	if idx := t.current.Load(); idx != nil && idx.revision == t.source.Revision(t.resource) {
		return idx, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// The revision is taken before the list: what is written meanwhile may be
	// in the list already, and is read once more after it.
	revision := t.source.Revision(t.resource)
	if idx := t.current.Load(); idx != nil && idx.revision == revision {
		return idx, nil
	}
	idx := &index[T]{revision: revision, namespaces: map[string]*group[T]{"": {}}}
	for obj, err := range t.source.List(ctx, t.resource) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", t.resource, err)
		}
		typed, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("list %s: found a %T", t.resource, obj)
		}
		idx.add(typed)
	}
	t.current.Store(idx)
	return idx, nil
}

func (idx *index[T]) add(obj T) {
	g := idx.namespaces[obj.GetNamespace()]
	if g == nil {
		g = &group[T]{}
		idx.namespaces[obj.GetNamespace()] = g
	}
	if g.byName == nil {
		g.byName, g.byUser, g.byMember = map[string]T{}, map[string][]T{}, map[string][]T{}
	}
	g.all = append(g.all, obj)
	g.byName[obj.GetName()] = obj
	for _, s := range subjects(obj) {
		switch s.Kind {
		case rbacv1.UserKind:
			g.byUser[s.Name] = append(g.byUser[s.Name], obj)
		case rbacv1.GroupKind:
			g.byMember[s.Name] = append(g.byMember[s.Name], obj)
		case rbacv1.ServiceAccountKind:
			namespace := s.Namespace
			if namespace == "" {
				namespace = obj.GetNamespace()
			}
			name := serviceaccount.MakeUsername(namespace, s.Name)
			g.byUser[name] = append(g.byUser[name], obj)
		}
	}
}

func subjects(obj runtime.Object) []rbacv1.Subject {
	switch b := obj.(type) {
	case *rbacv1.RoleBinding:
		return b.Subjects
	case *rbacv1.ClusterRoleBinding:
		return b.Subjects
	}
	return nil
}

// list returns the group's objects; for a user only those that may concern
// the user, each once. Whether they do is for the caller to see.
func (g *group[T]) list(ctx context.Context) []T {
	if g == nil {
		return nil
	}
	u, ok := ctx.Value(askingKey{}).(user.Info)
	if !ok {
		return g.all
	}
	var found []T
	add := func(objs []T) {
		for _, obj := range objs {
			if !slices.Contains(found, obj) {
				found = append(found, obj)
			}
		}
	}
	add(g.byUser[u.GetName()])
	for _, member := range u.GetGroups() {
		add(g.byMember[member])
	}
	return found
}

// askingKey is the context key for the user whose bindings are looked for.
type askingKey struct{}

func asking(ctx context.Context, u user.Info) context.Context {
	return context.WithValue(ctx, askingKey{}, u)
}

// byRoles is upstream's RBAC authorizer, told by the context whose bindings it
// is after, so that a request costs what its user's bindings cost and not what
// all bindings cost.
type byRoles struct{ rbac *rbac.RBACAuthorizer }

func newRBAC(roles *Roles) byRoles { return byRoles{rbac.New(roles, roles, roles, roles)} }

// Authorize implements authorizer.Authorizer.
func (b byRoles) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := attrs.GetUser(); u != nil {
		return b.rbac.Authorize(asking(ctx, u), attrs)
	}
	return authorizer.DecisionNoOpinion, "no user", nil
}

// RulesFor implements authorizer.RuleResolver.
func (b byRoles) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return b.rbac.RulesFor(asking(ctx, u), u, namespace)
}
