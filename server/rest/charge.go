package rest

import (
	"errors"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"setpoint.dev/setpoint/admission/quota"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// quotas is where resource quotas are stored, as JSON of v1.
const quotas = "resourcequotas"

// pay stores op together with what it costs. Writes that cost something take
// turns in their namespace: each would change the quotas that the others have
// been measured by. The commit has the condition that they have not changed all
// the same, by somebody else; then the write is measured again.
func (c *call) pay(fieldManager string, op store.Op, along []store.Op) (store.Revision, error) {
	turn, err := c.turns.Take(c.ctx, object{c.info.Plane, quotas, c.info.Namespace})
	if err != nil {
		return 0, err
	}
	defer turn.Done()
	for range commitTries {
		charges, err := c.bill()
		if err != nil {
			return 0, err
		}
		ops, err := c.charged(charges)
		if err != nil {
			return 0, err
		}
		rev, err := c.writeFree(fieldManager, op, append(ops, along...)...)
		if !isCharges(err, ops) {
			return rev, err
		}
	}
	return 0, errBusy(c.resource.GroupResource(), c.info.Verb)
}

// charged are the operations that write charges down.
func (c *call) charged(charges []quota.Charge) ([]store.Op, error) {
	var ops []store.Op
	for _, charge := range charges {
		rev, err := strconv.ParseInt(charge.Old.ResourceVersion, 10, 64)
		if err != nil {
			return nil, err
		}
		op, err := c.statusOp(corev1.SchemeGroupVersion.WithResource(quotas), store.At(store.Revision(rev)), charge.Old.DeepCopy(), charge.New)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// isCharges says that a commit failed because a quota has changed.
func isCharges(err error, charges []store.Op) bool {
	conflict, is := errors.AsType[*store.ConflictError](err)
	if !is || conflict.Resource != quotas {
		return false
	}
	for _, op := range charges {
		if op.Key == conflict.Key {
			return true
		}
	}
	return false
}

// statusOp is the operation that gives a stored object of any kind another
// status. Compat: it is upstream's server that owns what has changed.
func (c *call) statusOp(resource schema.GroupVersionResource, on store.Condition, old, obj runtime.Object) (store.Op, error) {
	one := *c
	one.resource = c.Kinds().Find(resource.Group, resource.Version, resource.Resource)
	one.kind = one.resource.GroupVersionKind(resource.Version)
	internal := schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal}
	before, err := one.resource.Scheme.ConvertToVersion(old, internal)
	if err != nil {
		return store.Op{}, err
	}
	after, err := one.resource.Scheme.ConvertToVersion(obj, internal)
	if err != nil {
		return store.Op{}, err
	}
	status := one.resource.Subresources["status"]
	owned, err := one.codecs.get(one.resource.Scheme).owners.For(one.kind, status.Name, fieldpath.NewExcludeFilterSetMap(kinds.ResetFields(status.Update)))
	if err != nil {
		return store.Op{}, err
	}
	return one.op(owned.Update(before, after, serverManager), on)
}
