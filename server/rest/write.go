package rest

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"

	"setpoint.dev/setpoint/admission/quota"
	"setpoint.dev/setpoint/client"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/patch/ownership"
	"setpoint.dev/setpoint/server/authn"
	"setpoint.dev/setpoint/server/authz"
	"setpoint.dev/setpoint/store"
)

// commitTries bounds how often a write is tried again because somebody else
// wrote the same object meanwhile.
const commitTries = 100

// op is the operation that stores obj.
func (c *call) op(obj runtime.Object, on store.Condition) (store.Op, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return store.Op{}, err
	}
	m.SetSelfLink("") // Compat: from before 1.20, and kept by nobody
	value, revAt, err := c.keeps().EncodeStored(obj, c.resource.Storage)
	if err != nil {
		return store.Op{}, err
	}
	flags, err := c.flags(obj)
	if err != nil {
		return store.Op{}, err
	}
	index := store.Index{Labels: m.GetLabels(), Flags: flags}
	for _, owner := range m.GetOwnerReferences() {
		index.Owners = append(index.Owners, string(owner.UID))
	}
	index.Owners = distinct(index.Owners)
	if c.resource.Fields != nil {
		set, err := c.resource.Fields(obj)
		if err != nil {
			return store.Op{}, err
		}
		index.Fields = map[string]string{}
		for name, value := range set {
			if name != "metadata.name" && name != "metadata.namespace" {
				index.Fields[name] = value
			}
		}
	}
	return store.Op{
		Plane: c.info.Plane, Resource: c.resource.Table, Key: c.resource.Key(m.GetNamespace(), m.GetName()),
		If: on, Value: value, RevAt: revAt, Index: index,
	}, nil
}

func distinct(of []string) []string {
	if len(of) < 2 {
		return of
	}
	seen := map[string]bool{}
	var kept []string
	for _, s := range of {
		if !seen[s] {
			seen[s] = true
			kept = append(kept, s)
		}
	}
	return kept
}

// provenance says who is writing.
func (c *call) provenance(fieldManager string) store.Provenance {
	p := store.Provenance{
		UserAgent: c.r.UserAgent(), FieldManager: fieldManager, Verb: c.info.Verb,
		RequestID: audit.GetAuditIDTruncated(c.ctx), Cause: store.Revision(client.Cause(c.ctx)),
	}
	if c.user != nil {
		p.User = c.user.GetName()
	}
	if by := authn.Impersonator(c.ctx); by != nil {
		p.Impersonator = by.GetName()
	}
	return p
}

// write carries out op, with what goes along and what it costs, and notes it for
// a caller from inside the process.
func (c *call) write(fieldManager string, op store.Op, along ...store.Op) (store.Revision, error) {
	if c.bill != nil {
		return c.pay(fieldManager, op, along)
	}
	return c.writeFree(fieldManager, op, along...)
}

func (c *call) writeFree(fieldManager string, op store.Op, along ...store.Op) (store.Revision, error) {
	chain := store.Chain{After: c.follows}
	if c.turn != nil && (object{op.Plane, op.Resource, op.Key}) == c.object() {
		chain.Next = c.turn.Pass
	}
	rev, err := c.Store.CommitChained(c.ctx, c.provenance(fieldManager), chain, append([]store.Op{op}, along...)...)
	if err != nil {
		return 0, err
	}
	client.Wrote(c.ctx, op.Resource, int64(rev))
	for _, o := range along {
		if !o.Assert {
			client.Wrote(c.ctx, o.Resource, int64(rev))
		}
	}
	return rev, nil
}

// commit stores op, with what goes along, and returns the stored object.
func (c *call) commit(op store.Op, fieldManager string, along ...store.Op) (*store.Object, error) {
	rev, err := c.write(fieldManager, op, along...)
	if err != nil {
		return nil, c.whyNot(err)
	}
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	o, err := sn.Get(c.ctx, op.Resource, op.Key)
	if err != nil {
		return nil, err
	}
	if o == nil || o.Rev != rev {
		// Somebody has written it again already; the answer is our version.
		return store.Finish(op, rev), nil
	}
	return o, nil
}

// errRedefined says that the kind is not what it was when the request came.
var errRedefined = errors.New("the definition of the kind has changed meanwhile")

// asDefined asserts that the definition of a custom kind is the one that the
// request goes by: nothing is created of a kind that is being removed, and
// nothing stored by rules that are not the kind's any more.
func (c *call) asDefined() []store.Op {
	if c.resource.Custom == nil {
		return nil
	}
	return []store.Op{{
		Plane: c.info.Plane, Resource: kinds.Definitions, Key: c.resource.Table,
		If: store.At(store.Revision(c.resource.Custom.Defined())), Assert: true,
	}}
}

// whyNot is the reason of a commit that failed: errRedefined for what asDefined
// asserts.
func (c *call) whyNot(err error) error {
	conflict, is := errors.AsType[*store.ConflictError](err)
	if is && c.resource.Custom != nil && conflict.Resource == kinds.Definitions {
		return errRedefined
	}
	return err
}

// manager is the name under which a request owns fields.
func (c *call) manager(given string) string {
	if given != "" {
		return given
	}
	name, _, _ := strings.Cut(c.r.UserAgent(), "/")
	var b strings.Builder
	for _, r := range name {
		if unicode.IsPrint(r) && b.Len()+len(string(r)) <= metav1validation.FieldManagerMaxLength {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// dedupOwners removes owner references that are there twice, with a warning.
func (c *call) dedupOwners(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	var kept []metav1.OwnerReference
	var twice []string
	for _, ref := range m.GetOwnerReferences() {
		known := false
		for _, k := range kept {
			known = known || apiequality.Semantic.DeepEqual(k, ref)
		}
		if known {
			twice = append(twice, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(twice) > 0 {
		warning.AddWarning(c.ctx, "", fmt.Sprintf(".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v", strings.Join(twice, ", ")))
		m.SetOwnerReferences(kept)
	}
}

// optionKinds are the kinds of options that operations have.
var optionKinds = map[admission.Operation]string{admission.Create: "CreateOptions", admission.Update: "UpdateOptions"}

// attributes describe a write to admission.
func (c *call) attributes(obj, old runtime.Object, operation admission.Operation, options runtime.Object, dryRun bool) admission.Attributes {
	name := c.info.Name
	if name == "" && obj != nil {
		if m, err := meta.Accessor(obj); err == nil {
			name = m.GetName()
		}
	}
	// Compat: webhooks and policies are told what kind the options are of.
	if kind, has := optionKinds[operation]; has {
		options.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(kind))
	}
	return admission.NewAttributesRecord(obj, old, c.spoken(), c.info.Namespace, name, c.kind.GroupVersion().WithResource(c.resource.Name), c.info.Subresource, operation, options, dryRun, c.user)
}

// guard refuses to store obj in place of old, nil where there is none, when it
// is a role or binding that grants more than the user has.
func (c *call) guard(obj, old runtime.Object) error {
	if c.Guard == nil || c.resource.Group != rbacv1.GroupName {
		return nil
	}
	return c.Guard.Check(c.ctx, authz.Write{User: c.user, Namespace: c.info.Namespace, Name: c.info.Name, Object: obj, Old: old})
}

func (c *call) interfaces() admission.ObjectInterfaces {
	return interfaces{c.resource, c.Kinds(), c.owners()}
}

// mutate lets admission change the object, or refuse it, before anything else
// has looked at it.
func (c *call) mutate(a admission.Attributes) error {
	m, ok := c.Admission.(admission.MutationInterface)
	if !ok || !m.Handles(a.GetOperation()) {
		return nil
	}
	described, err := meta.Accessor(a.GetObject())
	if err != nil {
		return m.Admit(c.ctx, a, c.interfaces()) // nothing is changed, or nothing that has owners
	}
	owned := ownership.Keep(described)
	if err := m.Admit(c.ctx, a, c.interfaces()); err != nil {
		return err
	}
	if owned.In(described) {
		return c.reshape(a)
	}
	if err := managedfields.ValidateManagedFields(described.GetManagedFields()); err != nil {
		owned.Restore(described)
		warning.AddWarning(c.ctx, "", fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: %v", err))
	}
	return c.reshape(a)
}

// withoutRecord prepares and validates an object without the record of its
// owners, which is read several times otherwise. What is wrong is told of the
// object as it is.
func withoutRecord(obj runtime.Object, prepare func() error) error {
	put := ownership.Apart(obj)
	if put == nil {
		return prepare()
	}
	err := prepare()
	put()
	if err != nil {
		return prepare()
	}
	return nil
}

// reshape brings an object without a Go type that webhooks or policies have
// changed back into its shape.
func (c *call) reshape(a admission.Attributes) error {
	if c.resource.Custom != nil && a.GetReinvocationContext().ShouldReinvoke() && !c.scales() {
		return c.keeps().Reshape(a.GetObject())
	}
	return nil
}

// validate lets admission refuse the object as it would be stored. What storing
// it costs is paid by the next commit.
func (c *call) validate(a admission.Attributes) error {
	c.bill, c.refused = nil, nil
	v, ok := c.Admission.(admission.ValidationInterface)
	if !ok || !v.Handles(a.GetOperation()) {
		return nil
	}
	ctx, account := quota.With(c.ctx)
	err := v.Validate(ctx, a, c.interfaces())
	c.bill, c.refused = account.Bill, account.Refused
	return err
}

// admitAsked lets admission change, and then refuse, what is sent to be carried
// out rather than stored.
func (c *call) admitAsked(obj runtime.Object, options *metav1.CreateOptions) error {
	a := c.attributes(obj, nil, admission.Create, options, isDryRun(options.DryRun))
	if err := c.mutate(a); err != nil {
		return err
	}
	return c.validate(a)
}

// preconditions are what a client says must hold of the stored object.
type preconditions struct {
	uid *types.UID
	rev *string
}

func (c *call) check(p preconditions, have metav1.Object) error {
	if p.uid != nil && *p.uid != have.GetUID() {
		return apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.uid, have.GetUID())) //nolint:staticcheck // clients know this text
	}
	if p.rev != nil && *p.rev != have.GetResourceVersion() {
		return apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.rev, have.GetResourceVersion())) //nolint:staticcheck // clients know this text
	}
	return nil
}

// isConflict says that a commit failed because somebody was faster.
func isConflict(err error) bool {
	_, is := errors.AsType[*store.ConflictError](err)
	return is
}
