package rest

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/quota"
	"setpoint.dev/setpoint/admission/reinvoke"
	"setpoint.dev/setpoint/api/initializers"
)

// What initializers have made of an object is admitted as if its creator had
// asked for that, by the write that completes it: first those may change it who
// want to be asked again, then all may refuse it. A refusal is no answer to who
// writes. It fails the object, and its creator reads why.

// finalMutation lets those change an object that initializers are done with who
// want to be asked again when others have changed it. It says whether it has been
// changed.
func (c *call) finalMutation(obj, old runtime.Object, dryRun bool) (bool, error) {
	waited, waits, err := waiting(obj, old)
	if err != nil || waited == nil || waits != nil || c.Initializers.SkipFinalAdmission {
		return false, err
	}
	r, made, err := c.asCreated(obj, dryRun)
	if err != nil || r != nil && !r.Changed && !changed(obj, old) {
		return false, err
	}
	reinvoke.Finally(made)
	if denied := c.mutate(made); denied != nil {
		return false, c.deny(obj, waited, denied)
	}
	return made.GetReinvocationContext().ShouldReinvoke(), nil
}

// finalAdmission checks what initializers have made of an object: whether the
// quotas have room for what they added, whenever they do, and all else once the
// last one is done.
func (c *call) finalAdmission(obj, old runtime.Object, dryRun bool) error {
	waited, waits, err := waiting(obj, old)
	if err != nil || waited == nil || waits != nil && waits.Result != nil {
		return err
	}
	denied := c.refused
	if denied == nil && waits == nil && !c.Initializers.SkipFinalAdmission {
		denied = c.validateAsCreated(obj, dryRun)
	}
	if denied == nil {
		return nil
	}
	return c.deny(obj, waited, denied)
}

// waiting is what an object waited for before a write, and does after it.
func waiting(obj, old runtime.Object) (before, after *initializers.Initializers, err error) {
	if before, err = initializers.Of(old); err != nil || before == nil {
		return nil, nil, err
	}
	after, err = initializers.Of(obj)
	return before, after, err
}

// deny fails an object, unless nobody has decided.
func (c *call) deny(obj runtime.Object, waited *initializers.Initializers, why error) error {
	if c.ctx.Err() != nil {
		return why
	}
	return initializers.Set(obj, &initializers.Initializers{Pending: waited.Pending, Result: c.status(why)})
}

// validateAsCreated asks those who may refuse new objects. The object has been
// paid for.
func (c *call) validateAsCreated(obj runtime.Object, dryRun bool) error {
	_, made, err := c.asCreated(obj, dryRun)
	if err != nil {
		return err
	}
	one := *c
	one.ctx = quota.Paid(c.ctx)
	return one.validate(made)
}

// asCreated describes an object to admission as its creator's, and what is
// remembered of it; nil when that is lost, and it counts as the writer's.
func (c *call) asCreated(obj runtime.Object, dryRun bool) (*initializer.Record, admission.Attributes, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, nil, err
	}
	r, err := c.record(m.GetUID())
	if err != nil {
		return nil, nil, err
	}
	who, as := c.user, c.groupVersion().WithResource(c.resource.Name)
	if r != nil {
		who, as = r.User(), r.Resource
	}
	options := &metav1.CreateOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	options.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(optionKinds[admission.Create]))
	return r, admission.NewAttributesRecord(obj, nil, c.resource.GroupVersionKind(as.Version), m.GetNamespace(), m.GetName(), as, "", admission.Create, options, dryRun, who), nil
}

// changed says that more than what an object waits for differs.
func changed(obj, old runtime.Object) bool {
	return !apiequality.Semantic.DeepEqual(content(obj), content(old))
}

// content is a copy of an object without what every write may change, and what
// the server notes of initializers itself.
func content(obj runtime.Object) runtime.Object {
	bare := obj.DeepCopyObject()
	initializers.Detach(bare)
	m, err := meta.Accessor(bare)
	if err != nil {
		return bare
	}
	m.SetManagedFields(nil)
	m.SetResourceVersion("")
	annotations := m.GetAnnotations()
	delete(annotations, skippedKey)
	if len(annotations) == 0 {
		annotations = nil
	}
	m.SetAnnotations(annotations)
	return bare
}
