package authn

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"setpoint.dev/setpoint/server/authz"
)

// Impersonated is a user that another user acts as.
type Impersonated struct {
	User user.Info
	// Constraint is the verb that allowed it, for the audit log; empty when it
	// was plain "impersonate".
	Constraint string
}

// Impersonate returns whom a request is to be made as: requester, unless the
// request has impersonation headers and the authorizer lets requester use them. Every
// user, group, UID and extra value takes a permission of its own for the verb
// impersonate. The headers are removed from the request.
//
// Errors are API errors.
func Impersonate(r *http.Request, requester user.Info, a authorizer.Authorizer) (user.Info, error) {
	wanted, err := takeHeaders(r.Header)
	if err != nil || wanted == nil {
		return requester, err
	}
	as, err := plain(a).become(r.Context(), requester, wanted)
	if err != nil {
		return nil, err
	}
	return as.User, nil
}

// ImpersonateFor is Impersonate for a request whose attributes are known, with
// the requester as their user. It lets in, too, who may impersonate for that
// very request only (constrained impersonation):
//
//	impersonate-on:<mode>:<verb>  on what the request is about, and
//	impersonate:<mode>            on whom it is made as
//
// with a mode for one's own node, any node, service accounts, and other users.
// It returns nil when the request has no impersonation headers. When no mode
// allows it, the error is that of the most constrained that applies.
func ImpersonateFor(r *http.Request, attrs authorizer.Attributes, a authorizer.Authorizer) (*Impersonated, error) {
	wanted, err := takeHeaders(r.Header)
	if err != nil || wanted == nil {
		return nil, err
	}
	ctx, requester := r.Context(), attrs.GetUser()
	var first error
	for _, m := range modes(a) {
		if !m.applies(wanted, requester) {
			continue
		}
		as, err := m.check(ctx, wanted, attrs)
		if err == nil {
			return as, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// impersonatorKey is the context key for who acts as the request's user.
type impersonatorKey struct{}

// WithImpersonator says in a context who acts as its user.
func WithImpersonator(ctx context.Context, by user.Info) context.Context {
	return context.WithValue(ctx, impersonatorKey{}, by)
}

// Impersonator is who acts as the context's user; nil when the user does.
func Impersonator(ctx context.Context) user.Info {
	by, _ := ctx.Value(impersonatorKey{}).(user.Info)
	return by
}

// takeHeaders reads and removes the impersonation headers; nil when there are
// none.
func takeHeaders(h http.Header) (*user.DefaultInfo, error) {
	wanted := &user.DefaultInfo{
		Name:   h.Get(authenticationv1.ImpersonateUserHeader),
		UID:    h.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(h[authenticationv1.ImpersonateGroupHeader]),
	}
	extras := false
	for name, values := range h {
		key, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		extras = true
		if len(values) == 0 {
			continue
		}
		key = strings.ToLower(key)
		if unescaped, err := url.PathUnescape(key); err == nil {
			key = unescaped
		}
		if wanted.Extra == nil {
			wanted.Extra = map[string][]string{}
		}
		wanted.Extra[key] = append(wanted.Extra[key], values...)
	}
	if wanted.Name == "" {
		if wanted.UID != "" || len(wanted.Groups) > 0 || extras {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("requested %#v without impersonating a user name", wanted))
		}
		return nil, nil
	}
	for name := range h {
		if name == authenticationv1.ImpersonateUserHeader || name == authenticationv1.ImpersonateUIDHeader ||
			name == authenticationv1.ImpersonateGroupHeader || strings.HasPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			delete(h, name)
		}
	}
	return wanted, nil
}

// mode is one way to be allowed to impersonate.
type mode struct {
	name  string // empty for plain impersonation
	authz authorizer.Authorizer
	// own says that questions are about whatever node the requester runs on.
	own bool
	// applies says whether the mode is for this user at all.
	applies func(wanted *user.DefaultInfo, requester user.Info) bool
}

// modes are tried in order, the most constrained first.
func modes(a authorizer.Authorizer) []mode {
	return []mode{
		{"associated-node", a, true, func(wanted *user.DefaultInfo, requester user.Info) bool {
			node, ok := nodeName(wanted.Name)
			return ok && nameOnly(wanted) && runsOn(requester, node)
		}},
		{"arbitrary-node", a, false, func(wanted *user.DefaultInfo, _ user.Info) bool {
			_, ok := nodeName(wanted.Name)
			return ok && nameOnly(wanted)
		}},
		{"serviceaccount", a, false, func(wanted *user.DefaultInfo, _ user.Info) bool {
			_, _, err := serviceaccount.SplitUsername(wanted.Name)
			return err == nil && nameOnly(wanted)
		}},
		{"user-info", a, false, func(wanted *user.DefaultInfo, _ user.Info) bool {
			_, node := nodeName(wanted.Name)
			_, _, err := serviceaccount.SplitUsername(wanted.Name)
			return !node && err != nil
		}},
		plain(a),
	}
}

func plain(a authorizer.Authorizer) mode {
	return mode{"", a, false, func(*user.DefaultInfo, user.Info) bool { return true }}
}

// check asks whether the request may be made in this mode, then whether as
// this user.
func (m mode) check(ctx context.Context, wanted *user.DefaultInfo, attrs authorizer.Attributes) (*Impersonated, error) {
	if m.name != "" {
		if err := m.allow(ctx, onAttributes{attrs, m.name}); err != nil {
			return nil, err
		}
	}
	return m.become(ctx, attrs.GetUser(), wanted)
}

// become asks for each part of a user whether the requester may take it on,
// and returns the user with the groups that go without saying.
func (m mode) become(ctx context.Context, requester user.Info, wanted *user.DefaultInfo) (*Impersonated, error) {
	as := *wanted
	as.Groups = slices.Clone(wanted.Groups)

	// Compat: plain impersonation asks about users and groups of the core
	// group, constrained impersonation about those of authentication.k8s.io.
	verb, identities := "impersonate", corev1.SchemeGroupVersion
	if m.name != "" {
		verb, identities = "impersonate:"+m.name, authenticationv1.SchemeGroupVersion
	}
	ask := func(gv schema.GroupVersion, resource, sub, namespace, name string) error {
		return m.allow(ctx, attributes(requester, gv, verb, resource, sub, namespace, name))
	}

	resource, namespace, name := "users", "", wanted.Name
	if node, ok := nodeName(wanted.Name); ok && m.name != "" {
		resource, name = "nodes", node
		as.Groups = []string{user.NodesGroup}
	} else if ns, account, err := serviceaccount.SplitUsername(wanted.Name); err == nil {
		resource, namespace, name = "serviceaccounts", ns, account
		if len(wanted.Groups) == 0 {
			as.Groups = serviceaccount.MakeGroupNames(ns)
		}
	}
	if err := ask(identities, resource, "", namespace, name); err != nil {
		return nil, err
	}
	if wanted.UID != "" {
		if err := ask(authenticationv1.SchemeGroupVersion, "uids", "", "", wanted.UID); err != nil {
			return nil, err
		}
	}
	if m.name != "" {
		if err := m.refuse(requester, wanted, identities, verb); err != nil {
			return nil, err
		}
	}
	if !m.everyOf(len(wanted.Groups), func() error { return ask(identities, "groups", "", "", "*") }) {
		for _, g := range wanted.Groups {
			if err := ask(identities, "groups", "", "", g); err != nil {
				return nil, err
			}
		}
	}
	values := 0
	for _, v := range wanted.Extra {
		values += len(v)
	}
	if !m.everyOf(max(values, len(wanted.Extra)), func() error { return ask(authenticationv1.SchemeGroupVersion, "userextras", "*", "", "*") }) {
		for _, key := range slices.Sorted(maps.Keys(wanted.Extra)) {
			for _, value := range wanted.Extra[key] {
				if err := ask(authenticationv1.SchemeGroupVersion, "userextras", key, "", value); err != nil {
					return nil, err
				}
			}
		}
	}

	implied := user.AllAuthenticated
	if as.Name == user.Anonymous {
		implied = user.AllUnauthenticated
	}
	if !slices.Contains(as.Groups, implied) && !slices.Contains(as.Groups, user.AllUnauthenticated) {
		as.Groups = append(as.Groups, implied)
	}
	constraint := ""
	if m.name != "" {
		constraint = verb
	}
	return &Impersonated{User: &as, Constraint: constraint}, nil
}

// everyOf says whether many values are allowed with one question; that is
// asked in constrained modes only, from four values on.
func (m mode) everyOf(values int, ask func() error) bool {
	return m.name != "" && values >= 4 && ask() == nil
}

// refuse names what constrained impersonation never allows.
func (m mode) refuse(requester user.Info, wanted *user.DefaultInfo, identities schema.GroupVersion, verb string) error {
	groups := attributes(requester, identities, verb, "groups", "", "", "")
	if slices.Contains(wanted.Groups, "") {
		return authz.Forbidden(groups, "impersonating the empty string group is not allowed")
	}
	if slices.Contains(wanted.Groups, user.SystemPrivilegedGroup) {
		groups.Name = user.SystemPrivilegedGroup
		return authz.Forbidden(groups, "impersonating the system:masters group is not allowed")
	}
	extras := attributes(requester, authenticationv1.SchemeGroupVersion, verb, "userextras", "", "", "")
	for _, key := range slices.Sorted(maps.Keys(wanted.Extra)) {
		if key == "" {
			return authz.Forbidden(extras, "impersonating the empty string key in extra is not allowed")
		}
		if err := utilvalidation.IsDomainPrefixedPath(field.NewPath("extra", "key"), key).ToAggregate(); err != nil {
			return authz.Forbidden(extras, fmt.Sprintf("impersonating an invalid key in extra is not allowed: %v", err))
		}
		if key != strings.ToLower(key) {
			return authz.Forbidden(extras, fmt.Sprintf("impersonating a non-lowercase key in extra is not allowed: %q", key))
		}
		if slices.Contains(wanted.Extra[key], "") {
			return authz.Forbidden(extras, "impersonating the empty string value in extra is not allowed")
		}
	}
	return nil
}

// allow returns nil when the attributes are allowed, else a Forbidden error.
// An authorizer may report errors and allow all the same.
func (m mode) allow(ctx context.Context, attrs authorizer.Attributes) error {
	if m.own {
		attrs = ownNodeAttributes{attrs}
	}
	decision, reason, err := m.authz.Authorize(ctx, attrs)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	switch {
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return authz.Forbidden(attrs, reason)
}

func attributes(requester user.Info, gv schema.GroupVersion, verb, resource, sub, namespace, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: requester, Verb: verb, APIGroup: gv.Group, APIVersion: gv.Version,
		Resource: resource, Subresource: sub, Namespace: namespace, Name: name, ResourceRequest: true,
	}
}

// onAttributes are a request's, asked about as "may be made in this mode".
type onAttributes struct {
	authorizer.Attributes
	mode string
}

// GetVerb implements authorizer.Attributes.
func (a onAttributes) GetVerb() string {
	return "impersonate-on:" + a.mode + ":" + a.Attributes.GetVerb()
}

// ownNodeAttributes leave out which node it is: the permission is for one's own.
//
// Compat: webhook authorizers see the keys of the requester's extra values in
// place of the values.
type ownNodeAttributes struct{ authorizer.Attributes }

// GetName implements authorizer.Attributes.
func (a ownNodeAttributes) GetName() string {
	if a.GetVerb() == "impersonate:associated-node" {
		return "*"
	}
	return a.Attributes.GetName()
}

// GetUser implements authorizer.Attributes.
func (a ownNodeAttributes) GetUser() user.Info { return extraKeys{a.Attributes.GetUser()} }

type extraKeys struct{ user.Info }

// GetExtra implements user.Info.
func (u extraKeys) GetExtra() map[string][]string {
	return map[string][]string{
		"authentication.kubernetes.io/associated-node-keys": slices.Sorted(maps.Keys(u.Info.GetExtra())),
	}
}

// nodeName is the node that a user name stands for.
func nodeName(name string) (string, bool) {
	node, ok := strings.CutPrefix(name, "system:node:")
	return node, ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// runsOn says whether a user is a service account whose token names the node.
func runsOn(u user.Info, node string) bool {
	_, _, err := serviceaccount.SplitUsername(u.GetName())
	return err == nil && slices.Equal(u.GetExtra()[serviceaccount.NodeNameKey], []string{node})
}

func nameOnly(u *user.DefaultInfo) bool {
	return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0
}
