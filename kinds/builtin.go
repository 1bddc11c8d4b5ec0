package kinds

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

// Deps are what a few strategies ask of the rest of the control plane while
// they validate. The zero value refuses what it would have to ask about.
type Deps struct {
	// Authorizer says who may write the parts of policies, bindings and
	// resource claims that need a permission of their own.
	Authorizer authorizer.Authorizer
	// Namespaces tell whether resource claims may ask for admin access.
	Namespaces corev1client.NamespaceInterface
	// Resolve finds the resource of a policy's parameters among all kinds that
	// are served now, custom ones included.
	Resolve func(schema.GroupVersionKind) (schema.GroupVersionResource, error)
	// ValidatingPolicy and MutatingPolicy find the policy that a binding names.
	ValidatingPolicy func(ctx context.Context, name string) (*admissionregistration.ValidatingAdmissionPolicy, error)
	MutatingPolicy   func(ctx context.Context, name string) (*admissionregistration.MutatingAdmissionPolicy, error)
	// JoinServices is the Join of services; without one they get no addresses
	// and ports.
	JoinServices func(ctx context.Context, w Write) ([]Companion, error)
	// JoinDefinitions is the Join of custom resource definitions; without one
	// they are never established.
	JoinDefinitions func(ctx context.Context, w Write) ([]Companion, error)
	// Metrics says that there is also what nodes and pods use, which
	// kube-apiserver leaves to others.
	Metrics bool
}

// Builtin returns the kinds that kube-apiserver 1.36 serves by default, in the
// order of its discovery, and InitializerConfiguration, which it no longer has.
//
// Roles and bindings come without upstream's check that nobody grants what they
// do not have: it needs the rules in force, which are not known here.
func Builtin(d Deps) *List {
	d.fill()
	groups := []group{
		coreGroup(d),
		apiregistrationGroup(),
		appsGroup(),
		eventsGroup(),
		authenticationGroup(),
		authorizationGroup(),
		autoscalingGroup(),
		batchGroup(),
		certificatesGroup(),
		networkingGroup(),
		policyGroup(),
		rbacGroup(),
		storageGroup(),
		admissionregistrationGroup(d),
		apiextensionsGroup(d),
		schedulingGroup(),
		coordinationGroup(),
		nodeGroup(),
		discoveryGroup(),
		resourceGroup(d),
		flowcontrolGroup(),
		storagemigrationGroup(),
	}
	if d.Metrics {
		groups = append(groups, metricsGroup())
	}
	var all []*Resource
	for _, g := range groups {
		for _, r := range g.rows {
			all = append(all, r.resource(g))
		}
	}
	return NewList(all)
}

// group is an API group and its rows in the order of discovery.
type group struct {
	name     string
	versions []string // the preferred one first
	// scheme holds the group's types; legacyscheme.Scheme when nil.
	scheme *runtime.Scheme
	rows   []row
}

// row is a kind in the table: what is worth saying about it, the rest being the
// same for all.
type row struct {
	name, kind string
	// short are short names, with spaces between; category is a category, if
	// it has one.
	short, category string
	// strategy is nil for kinds that are not stored.
	strategy strategy
	// unseen are the rules for updates of objects that wait for initializers,
	// where they are others.
	unseen rest.RESTUpdateStrategy
	// attrs gives the selectable fields; only name and namespace when nil.
	attrs func(runtime.Object) (labels.Set, fields.Set, error)

	// status and scale make the subresources of these names; subs are others.
	status rest.RESTUpdateStrategy
	scale  func(runtime.Object) (scaled, error)
	subs   []*Subresource

	// versions are the group's when nil.
	versions []string
	// verbs are allVerbs when nil.
	verbs []string
	// namespaced is for kinds without a strategy, which would know.
	namespaced bool
	// storage is the version that is stored, when it is not the preferred one.
	storage schema.GroupVersion
	// plain says that a table shows no more than the name and when it was made.
	plain bool
	// columns are upstream's printers when nil, and it is not plain.
	columns rest.TableConvertor

	returnsDeleted bool
	ttl            time.Duration
	checkDelete    func(context.Context, string, *metav1.DeleteOptions) (string, error)
	linger         *Linger
	join           func(context.Context, Write) ([]Companion, error)
	settles        *Settled
	undescribed    []string
}

// strategy is what upstream's strategies are for a whole object.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

var (
	allVerbs  = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	viewVerbs = []string{"get", "patch", "update"}
	callVerbs = []string{"create", "get"}
	pipeVerbs = []string{"create", "delete", "get", "patch", "update"}
	postVerbs = []string{"create"}
)

// view is a subresource that shows the whole object and updates a part of it.
func view(name string, update rest.RESTUpdateStrategy) *Subresource {
	return &Subresource{Name: name, Verbs: viewVerbs, Update: update}
}

// call is a subresource that does something with the object.
func call(name, kind string, verbs []string) *Subresource {
	return &Subresource{Name: name, Kind: schema.GroupVersionKind{Kind: kind}, Verbs: verbs}
}

// resource writes a row out in full.
func (w row) resource(g group) *Resource {
	r := &Resource{
		Group:          g.name,
		Name:           w.name,
		Singular:       strings.ToLower(w.kind),
		Kind:           w.kind,
		Namespaced:     w.namespaced,
		Versions:       g.versions,
		Verbs:          w.verbs,
		Scheme:         legacyscheme.Scheme,
		Columns:        w.columns,
		ReturnsDeleted: w.returnsDeleted,
		TTL:            w.ttl,
		CheckDelete:    w.checkDelete,
		Linger:         w.linger,
		Join:           w.join,
		Settles:        w.settles,
		Undescribed:    w.undescribed,
		Subresources:   make(map[string]*Subresource),
	}
	if w.short != "" {
		r.ShortNames = strings.Fields(w.short)
	}
	if w.category != "" {
		r.Categories = []string{w.category}
	}
	if w.verbs == nil {
		r.Verbs = allVerbs
	}
	if w.versions != nil {
		r.Versions = w.versions
	}
	if g.scheme != nil {
		r.Scheme = g.scheme
	}
	switch {
	case w.plain:
		r.Columns = rest.NewDefaultTableConvertor(r.GroupResource())
	case w.columns == nil:
		r.Columns = printerColumns{}
	}
	if w.strategy != nil {
		w.store(r)
	}

	subs := w.subs
	if w.status != nil {
		subs = append(subs, view("status", w.status))
	}
	if w.scale != nil {
		subs = append(subs, scaleOf(r, w.scale))
	}
	for _, s := range subs {
		if s.Kind.Kind == "" {
			s.Kind.Kind = w.kind
		}
		r.Subresources[s.Name] = s
	}
	return r
}

// store fills in what only stored kinds have.
func (w row) store(r *Resource) {
	r.Create, r.Update, r.Delete, r.Unseen = w.strategy, w.strategy, w.strategy, w.unseen
	r.Namespaced = w.strategy.NamespaceScoped()
	r.Storage = w.storage
	if w.storage.Empty() {
		r.Storage = schema.GroupVersion{Group: r.Group, Version: r.Versions[0]}
	}
	r.Table = schema.GroupResource{Group: r.Storage.Group, Resource: r.Name}.String()
	switch {
	case w.attrs != nil:
		r.Fields = func(obj runtime.Object) (fields.Set, error) {
			_, set, err := w.attrs(obj)
			return set, err
		}
	case r.Namespaced:
		r.Fields = nameAndNamespace
	default:
		r.Fields = nameOnly
	}
}

func nameOnly(obj runtime.Object) (fields.Set, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return fields.Set{"metadata.name": m.GetName()}, nil
}

func nameAndNamespace(obj runtime.Object) (fields.Set, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	return fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}, nil
}

// printerColumns are upstream's printers, made when a table is first asked for.
type printerColumns struct{}

var printer = sync.OnceValue(func() rest.TableConvertor {
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)}
})

func (printerColumns) ConvertToTable(ctx context.Context, obj, opts runtime.Object) (*metav1.Table, error) {
	return printer().ConvertToTable(ctx, obj, opts)
}

// errNoDeps is the answer of those who were not given.
var errNoDeps = errors.New("cannot be looked up here")

// fill puts someone who refuses in each empty place.
func (d *Deps) fill() {
	if d.Authorizer == nil {
		d.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, errNoDeps.Error(), nil
		})
	}
	if d.Namespaces == nil {
		d.Namespaces = noNamespaces{}
	}
	if d.Resolve == nil {
		d.Resolve = func(k schema.GroupVersionKind) (schema.GroupVersionResource, error) {
			return schema.GroupVersionResource{}, &meta.NoKindMatchError{GroupKind: k.GroupKind(), SearchedVersions: []string{k.Version}}
		}
	}
	if d.ValidatingPolicy == nil {
		d.ValidatingPolicy = func(context.Context, string) (*admissionregistration.ValidatingAdmissionPolicy, error) {
			return nil, errNoDeps
		}
	}
	if d.MutatingPolicy == nil {
		d.MutatingPolicy = func(context.Context, string) (*admissionregistration.MutatingAdmissionPolicy, error) {
			return nil, errNoDeps
		}
	}
}

// noNamespaces finds no namespace; strategies only get them.
type noNamespaces struct {
	corev1client.NamespaceInterface
}

func (noNamespaces) Get(context.Context, string, metav1.GetOptions) (*corev1.Namespace, error) {
	return nil, errNoDeps
}
