package rest

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	upstream "k8s.io/apiserver/pkg/registry/rest"

	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/store"
)

// generateTries is how many names are tried for an object that asks for a
// generated one.
const generateTries = 8

func (c *call) create() error {
	obj, options, err := c.read()
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	upstream.WipeObjectMetaSystemFields(m)
	if err := c.sameNamespace(m); err != nil {
		return err
	}
	c.dedupOwners(obj)
	manager := c.manager(options.FieldManager)
	owned, err := c.fieldManager(c.resource.Update)
	if err != nil {
		return err
	}
	live, err := c.resource.Scheme.New(c.kind)
	if err != nil {
		return err
	}
	obj = owned.Update(live, obj, manager)
	defer c.dequeue()
	stored, err := c.insert(obj, options, manager)
	if err != nil {
		return err
	}
	code, stored, err := c.created(stored)
	if err != nil {
		return err
	}
	return c.respond(code, stored)
}

// read decodes what a create sends: an object of the resource's kind, or of the
// subresource's.
func (c *call) read() (runtime.Object, *metav1.CreateOptions, error) {
	options, err := c.createOptions()
	if err != nil {
		return nil, nil, err
	}
	body, err := c.body()
	if err != nil {
		return nil, nil, err
	}
	obj, err := c.decode(body, options.FieldValidation, c.spoken())
	if err != nil {
		return nil, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	if c.sub != nil || c.resource.Create == nil {
		err = c.sameNamespace(m)
	}
	return obj, options, err
}

// sameNamespace makes the object's namespace that of the path, or says that
// the two differ.
func (c *call) sameNamespace(m metav1.Object) error {
	expected := ""
	if c.resource.Namespaced {
		expected = c.info.Namespace
	}
	return upstream.EnsureObjectNamespaceMatchesRequestNamespace(expected, m)
}

// insert admits, prepares, validates and stores a new object.
func (c *call) insert(obj runtime.Object, options *metav1.CreateOptions, manager string) (*store.Object, error) {
	if c.isNamespaceItself() {
		// Compat: a namespace is in itself, for admission and strategies.
		if m, err := meta.Accessor(obj); err == nil {
			c.ctx = request.WithNamespace(c.ctx, m.GetName())
		}
	}
	dryRun := isDryRun(options.DryRun)
	initializers.Forget(obj)
	if c.resource.Leaving {
		return nil, c.leaving(obj)
	}
	attributes := c.attributes(obj, nil, admission.Create, options, dryRun)
	if err := c.begin(attributes, dryRun); err != nil {
		return nil, err
	}
	if err := settleInitializers(obj); err != nil {
		return nil, err
	}
	if err := c.guard(obj, nil); err != nil {
		return nil, err
	}
	c.dedupOwners(obj)
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	upstream.FillObjectMetaSystemFields(m)
	generated := m.GetGenerateName() != "" && m.GetName() == ""
	var asked runtime.Object
	if c.resource.Join != nil {
		asked = obj.DeepCopyObject()
	}
	joins := 0
	for try := 1; ; try++ {
		if generated {
			m.SetName(c.resource.Create.GenerateName(m.GetGenerateName()))
		}
		stored, err := c.insertOnce(obj, attributes, dryRun, manager)
		if !isConflict(err) {
			return stored, err
		}
		if c.isCompanions(err) && joins < commitTries {
			// What was allocated is somebody else's by now: begin again with
			// what the client has asked for.
			joins++
			obj = asked.DeepCopyObject()
			if m, err = meta.Accessor(obj); err != nil {
				return nil, err
			}
			attributes = c.attributes(obj, nil, admission.Create, options, dryRun)
			continue
		}
		if c.isCompanions(err) {
			return nil, errBusy(c.resource.GroupResource(), c.info.Verb)
		}
		if generated && try < generateTries+joins {
			continue
		}
		taken := apierrors.NewAlreadyExists(c.resource.GroupResource(), m.GetName())
		taken.ErrStatus.Message = c.taken(m.GetName()) + taken.ErrStatus.Message
		return nil, upstream.CheckGeneratedNameError(c.ctx, c.resource.Create, taken, obj)
	}
}

// leaving is the answer to a create of a kind that is being removed.
func (c *call) leaving(obj runtime.Object) error {
	name := c.info.Name
	if m, err := meta.Accessor(obj); err == nil {
		name = m.GetName()
	}
	return apierrors.NewForbidden(c.resource.GroupResource(), name, errors.New("create not allowed while custom resource definition is terminating"))
}

func (c *call) insertOnce(obj runtime.Object, attributes admission.Attributes, dryRun bool, manager string) (*store.Object, error) {
	along, err := c.join(obj, nil, dryRun)
	if err != nil {
		return nil, err
	}
	if err := withoutRecord(obj, func() error { return upstream.BeforeCreate(c.resource.Create, c.ctx, obj) }); err != nil {
		return nil, err
	}
	if err := c.validate(attributes); err != nil {
		return nil, err
	}
	op, err := c.op(obj, store.Absent)
	if err != nil {
		return nil, err
	}
	if dryRun {
		return c.pretend(op, obj)
	}
	if err := unnumbered(obj); err != nil {
		return nil, err
	}
	beside, err := c.remember(obj, nil)
	if err != nil {
		return nil, err
	}
	return c.commit(op, manager, slices.Concat(along, beside, c.asDefined())...)
}

// unnumbered refuses a new object that says which revision it is. Compat: it is
// the last thing that is looked at, and a dry run does not look.
func unnumbered(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if rv := m.GetResourceVersion(); rv != "" && rv != "0" {
		return errors.New("resourceVersion should not be set on objects to be created")
	}
	return nil
}

// pretend is what commit would return, without a commit: obj with the revision
// that it already has, if any.
func (c *call) pretend(op store.Op, obj runtime.Object) (*store.Object, error) {
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	have, err := sn.Get(c.ctx, op.Resource, op.Key)
	if err != nil {
		return nil, err
	}
	if err := op.Check(have); err != nil {
		return nil, err
	}
	return c.unstored(op, obj)
}

// unstored is obj in the form of a stored object.
func (c *call) unstored(op store.Op, obj runtime.Object) (*store.Object, error) {
	value, err := c.keeps().EncodeUnstored(obj, c.resource.Storage)
	if err != nil {
		return nil, err
	}
	op.Value, op.RevAt = value, -1
	return store.Finish(op, 0), nil
}
