package authn_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/server/authn"
)

// asked allows what is on its list, or everything, and notes what it was asked.
type asked struct {
	allow []string
	all   bool
	seen  []string
}

func (a *asked) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	resource := attrs.GetResource()
	if attrs.GetSubresource() != "" {
		resource += "/" + attrs.GetSubresource()
	}
	line := fmt.Sprintf("%s %s %s", attrs.GetVerb(), resource, attrs.GetName())
	if attrs.GetAPIGroup() != "" {
		line = fmt.Sprintf("%s %s.%s %s", attrs.GetVerb(), resource, attrs.GetAPIGroup(), attrs.GetName())
	}
	if attrs.GetNamespace() != "" {
		line += " in " + attrs.GetNamespace()
	}
	a.seen = append(a.seen, line)
	if a.all || slices.Contains(a.allow, line) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "no rule", nil
}

func headers(pairs ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/shop/pods", nil)
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	return r
}

var admin = &user.DefaultInfo{Name: "admin"}

func TestImpersonate(t *testing.T) {
	tests := []struct {
		name    string
		headers []string
		asks    []string
		want    user.DefaultInfo
	}{
		{"nobody", nil, nil, user.DefaultInfo{Name: "admin"}},
		{
			"user",
			[]string{"Impersonate-User", "alice"},
			[]string{"impersonate users alice"},
			user.DefaultInfo{Name: "alice", Groups: []string{"system:authenticated"}},
		},
		{
			"user with all there is",
			[]string{
				"Impersonate-User", "alice", "Impersonate-Group", "dev", "Impersonate-Group", "ops", "Impersonate-Uid", "42",
				"Impersonate-Extra-Example.org%2fScopes", "read", "Impersonate-Extra-Example.org%2fScopes", "write",
			},
			[]string{
				"impersonate users alice", "impersonate uids.authentication.k8s.io 42", "impersonate groups dev", "impersonate groups ops",
				"impersonate userextras/example.org/scopes.authentication.k8s.io read",
				"impersonate userextras/example.org/scopes.authentication.k8s.io write",
			},
			user.DefaultInfo{
				Name: "alice", UID: "42", Groups: []string{"dev", "ops", "system:authenticated"},
				Extra: map[string][]string{"example.org/scopes": {"read", "write"}},
			},
		},
		{
			"service account",
			[]string{"Impersonate-User", "system:serviceaccount:shop:web"},
			[]string{"impersonate serviceaccounts web in shop"},
			user.DefaultInfo{
				Name:   "system:serviceaccount:shop:web",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
			},
		},
		{
			"service account in other groups",
			[]string{"Impersonate-User", "system:serviceaccount:shop:web", "Impersonate-Group", "x"},
			[]string{"impersonate serviceaccounts web in shop", "impersonate groups x"},
			user.DefaultInfo{Name: "system:serviceaccount:shop:web", Groups: []string{"x", "system:authenticated"}},
		},
		{
			"node",
			[]string{"Impersonate-User", "system:node:n1"},
			[]string{"impersonate users system:node:n1"},
			user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:authenticated"}},
		},
		{
			"anonymous",
			[]string{"Impersonate-User", "system:anonymous"},
			[]string{"impersonate users system:anonymous"},
			user.DefaultInfo{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}},
		},
		{
			"unauthenticated",
			[]string{"Impersonate-User", "alice", "Impersonate-Group", "system:unauthenticated"},
			[]string{"impersonate users alice", "impersonate groups system:unauthenticated"},
			user.DefaultInfo{Name: "alice", Groups: []string{"system:unauthenticated"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := &asked{all: true}
			r := headers(test.headers...)
			got, err := authn.Impersonate(r, admin, a)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&test.want, got.(*user.DefaultInfo)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.asks, a.seen); diff != "" {
				t.Errorf("asked:\n%s", diff)
			}
			if len(r.Header) != 0 {
				t.Errorf("headers left: %v", r.Header)
			}
			// Each permission is needed.
			for i := range test.asks {
				less := &asked{allow: slices.Delete(slices.Clone(test.asks), i, i+1)}
				if _, err := authn.Impersonate(headers(test.headers...), admin, less); !apierrors.IsForbidden(err) {
					t.Errorf("without %q: %v", test.asks[i], err)
				}
			}
		})
	}
}

func TestImpersonateNeedsAUser(t *testing.T) {
	for _, h := range [][]string{{"Impersonate-Group", "dev"}, {"Impersonate-Uid", "1"}, {"Impersonate-Extra-A", "b"}} {
		if _, err := authn.Impersonate(headers(h...), admin, &asked{all: true}); !apierrors.IsBadRequest(err) {
			t.Errorf("%v: %v", h, err)
		}
	}
}

func TestImpersonateFor(t *testing.T) {
	agent := &user.DefaultInfo{
		Name:  "system:serviceaccount:shop:agent",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}},
	}
	const list = " pods  in shop"
	tests := []struct {
		name       string
		requester  *user.DefaultInfo
		headers    []string
		allow      []string
		constraint string
		groups     []string
		forbidden  string
	}{
		{
			name: "own node", requester: agent, headers: []string{"Impersonate-User", "system:node:n1"},
			allow:      []string{"impersonate-on:associated-node:list" + list, "impersonate:associated-node nodes.authentication.k8s.io *"},
			constraint: "impersonate:associated-node", groups: []string{"system:nodes", "system:authenticated"},
		},
		{
			name: "not on another node", requester: agent, headers: []string{"Impersonate-User", "system:node:n2"},
			allow:     []string{"impersonate-on:associated-node:list" + list, "impersonate:associated-node nodes.authentication.k8s.io *"},
			forbidden: "impersonate-on:arbitrary-node:list",
		},
		{
			name: "any node", requester: admin, headers: []string{"Impersonate-User", "system:node:n2"},
			allow:      []string{"impersonate-on:arbitrary-node:list" + list, "impersonate:arbitrary-node nodes.authentication.k8s.io n2"},
			constraint: "impersonate:arbitrary-node", groups: []string{"system:nodes", "system:authenticated"},
		},
		{
			name: "service account", requester: admin, headers: []string{"Impersonate-User", "system:serviceaccount:shop:web"},
			allow:      []string{"impersonate-on:serviceaccount:list" + list, "impersonate:serviceaccount serviceaccounts.authentication.k8s.io web in shop"},
			constraint: "impersonate:serviceaccount", groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
		},
		{
			name: "user", requester: admin, headers: []string{"Impersonate-User", "alice", "Impersonate-Group", "dev"},
			allow: []string{
				"impersonate-on:user-info:list" + list, "impersonate:user-info users.authentication.k8s.io alice",
				"impersonate:user-info groups.authentication.k8s.io dev",
			},
			constraint: "impersonate:user-info", groups: []string{"dev", "system:authenticated"},
		},
		{
			name: "another request", requester: admin, headers: []string{"Impersonate-User", "alice"},
			allow:     []string{"impersonate-on:user-info:get" + list, "impersonate:user-info users.authentication.k8s.io alice"},
			forbidden: `User "admin" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "shop": no rule`,
		},
		{
			name: "masters", requester: admin, headers: []string{"Impersonate-User", "alice", "Impersonate-Group", "system:masters"},
			allow: []string{
				"impersonate-on:user-info:list" + list, "impersonate:user-info users.authentication.k8s.io alice",
				"impersonate:user-info groups.authentication.k8s.io system:masters",
			},
			forbidden: "impersonating the system:masters group is not allowed",
		},
		{
			name: "plain", requester: admin, headers: []string{"Impersonate-User", "alice", "Impersonate-Group", "system:masters"},
			allow:  []string{"impersonate users alice", "impersonate groups system:masters"},
			groups: []string{"system:masters", "system:authenticated"},
		},
		{
			name: "many groups at once", requester: admin,
			headers: []string{
				"Impersonate-User", "alice", "Impersonate-Group", "a", "Impersonate-Group", "b", "Impersonate-Group", "c", "Impersonate-Group", "d",
			},
			allow: []string{
				"impersonate-on:user-info:list" + list, "impersonate:user-info users.authentication.k8s.io alice",
				"impersonate:user-info groups.authentication.k8s.io *",
			},
			constraint: "impersonate:user-info", groups: []string{"a", "b", "c", "d", "system:authenticated"},
		},
		{
			name: "odd extra", requester: admin, headers: []string{"Impersonate-User", "alice", "Impersonate-Extra-Plain", "x"},
			allow:     []string{"impersonate-on:user-info:list" + list, "impersonate:user-info users.authentication.k8s.io alice"},
			forbidden: "impersonating an invalid key in extra is not allowed",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			attrs := authorizer.AttributesRecord{User: test.requester, Verb: "list", Namespace: "shop", Resource: "pods", ResourceRequest: true}
			got, err := authn.ImpersonateFor(headers(test.headers...), attrs, &asked{allow: test.allow})
			if test.forbidden != "" {
				if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.forbidden) {
					t.Errorf("got %v, want %q", err, test.forbidden)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.groups, got.User.GetGroups()); diff != "" || got.Constraint != test.constraint {
				t.Errorf("constraint %q, groups:\n%s", got.Constraint, diff)
			}
		})
	}
	if got, err := authn.ImpersonateFor(headers(), authorizer.AttributesRecord{User: admin}, &asked{}); got != nil || err != nil {
		t.Errorf("no headers: %v %v", got, err)
	}
}
