package rest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/apiserver/pkg/registry/rest"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/store"
)

// skippedKey is the annotation that names the initializers that an object has
// gone on without.
const skippedKey = "initializers.setpoint.dev/skipped"

// step does something to an object that waits, unless somebody else has
// changed meanwhile what it waits for. A record without an object goes. Nobody
// may refuse it: whoever would, may be who does not answer.
func (h *Handler) step(ctx context.Context, r *initializer.Record, step initializer.Step, terms initializer.Terms) (err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	resource := h.find(r)
	if resource == nil {
		return h.drop(ctx, r)
	}
	if resource.Custom != nil {
		if err := resource.Custom.Ready(); err != nil {
			return err
		}
	}
	c, err := h.inside(ctx, resource, "update", r.Namespace, r.Name, "")
	if err != nil {
		return err
	}
	for range commitTries {
		if err = c.stepOnce(r, step, terms); !isConflict(err) {
			break
		}
	}
	return err
}

// find is the kind of an object that waits, in the version that it was created
// in or another.
func (h *Handler) find(r *initializer.Record) *kinds.Resource {
	if found := h.Kinds().Find(r.Resource.Group, r.Resource.Version, r.Resource.Resource); found != nil {
		return found
	}
	for _, other := range h.Kinds().All() {
		if other.Group == r.Resource.Group && other.Name == r.Resource.Resource {
			return other
		}
	}
	return nil
}

// drop removes a record that is about nothing.
func (h *Handler) drop(ctx context.Context, r *initializer.Record) error {
	_, err := h.Store.Commit(ctx, store.Provenance{User: "system:apiserver", Verb: "sweep"},
		store.Op{Plane: h.Plane, Resource: waitingTable, Key: string(r.UID), Delete: true, RevAt: -1})
	if isConflict(err) {
		return nil // it is gone
	}
	return err
}

func (c *call) stepOnce(r *initializer.Record, step initializer.Step, terms initializer.Terms) error {
	have, old, err := c.load()
	if apierrors.IsNotFound(err) {
		return c.drop(c.ctx, r)
	}
	if err != nil {
		return err
	}
	m, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	waits, err := initializers.Of(old)
	if err != nil {
		return err
	}
	if m.GetUID() != r.UID || waits == nil {
		return c.drop(c.ctx, r)
	}
	if step.Do == initializer.Remove {
		return c.expel(r.UID)
	}
	obj := old.DeepCopyObject()
	did, err := settle(obj, waits, r, step, terms)
	if err != nil || !did {
		return err
	}
	if err := c.finish(obj, old); err != nil {
		return err
	}
	return c.storeStep(obj, old, have, step)
}

// finish admits an object that a step has completed. What those make of it who
// are asked again must be valid.
func (c *call) finish(obj, old runtime.Object) error {
	changed, err := c.finalMutation(obj, old, false)
	if err != nil {
		return err
	}
	if changed {
		if invalid := upstream.BeforeUpdate(c.whileWaiting(c.resource.Update, old), c.ctx, obj, old); invalid != nil {
			waited, err := initializers.Of(old)
			if err != nil {
				return err
			}
			return c.deny(obj, waited, invalid)
		}
	}
	return c.finalAdmission(obj, old, false)
}

// settle changes what obj waits for; false when there is nothing to change any
// more.
func settle(obj runtime.Object, waits *initializers.Initializers, r *initializer.Record, step initializer.Step, terms initializer.Terms) (bool, error) {
	names := initializer.Names(waits)
	at := slices.Index(names, step.Name)
	if at < 0 || waits.Result != nil || step.Do != initializer.Release && at > 0 {
		return false, nil
	}
	now := &initializers.Initializers{Pending: slices.Clone(waits.Pending)}
	switch step.Do {
	case initializer.Expire:
		now.Result = expired(r, step, terms.Timeout)
	case initializer.Skip:
		now.Pending = slices.Delete(now.Pending, at, at+1)
		if err := addSkipped(obj, step.Name); err != nil {
			return false, err
		}
	case initializer.Release:
		now.Pending = slices.Delete(now.Pending, at, at+1)
	default:
		return false, nil
	}
	if now.Empty() {
		now = nil
	}
	return true, initializers.Set(obj, now)
}

// addSkipped says on an object whom it has gone on without.
func addSkipped(obj runtime.Object, name string) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	annotations := m.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	if have := annotations[skippedKey]; have != "" {
		name = have + "," + name
	}
	annotations[skippedKey] = name
	m.SetAnnotations(annotations)
	return nil
}

// storeStep stores what a step has made of an object, and says so in an event.
func (c *call) storeStep(obj, old runtime.Object, have *store.Object, step initializer.Step) error {
	op, err := c.op(obj, store.At(have.Rev))
	if err != nil {
		return err
	}
	beside, err := c.remember(obj, old)
	if err != nil {
		return err
	}
	if _, err := c.commit(op, serverManager, append(beside, c.asDefined()...)...); err != nil {
		return err
	}
	c.outcome(step.Name, string(step.Do))
	if reason, message := tidings(step); reason != "" {
		c.report(obj, reason, message)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if waits, err := initializers.Of(obj); err != nil || waits == nil || waits.Result == nil {
		return err
	}
	return c.expel(m.GetUID())
}

// tidings are what an event says about a step; empty when there is nothing to
// say.
func tidings(step initializer.Step) (reason, message string) {
	why := fmt.Sprintf("initializer %q did not act in time", step.Name)
	if step.Locked {
		why = fmt.Sprintf("initializer %q cannot act, because its own pods wait for this one", step.Name)
	}
	switch {
	case step.Do == initializer.Release:
		return "InitializerGone", fmt.Sprintf("no configuration has initializer %q any more; the object goes on without it", step.Name)
	case step.Do == initializer.Skip && step.Locked:
		return "InitializerDeadlocked", why + "; the object goes on without it"
	case step.Do == initializer.Skip:
		return "InitializerSkipped", why + "; the object goes on without it"
	case step.Do == initializer.Expire && step.Locked:
		return "InitializerDeadlocked", why + "; the object is removed"
	case step.Do == initializer.Expire:
		return "InitializerTimeout", why + "; the object is removed"
	default:
		return "", ""
	}
}

// report makes an event that warns of something about an object. One that cannot
// be made changes nothing.
func (c *call) report(obj runtime.Object, reason, message string) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	now := metav1.Now()
	namespace := m.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	op, err := c.creation(c.info.Plane, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: m.GetName() + "." + strconv.FormatInt(now.UnixNano(), 16)},
		InvolvedObject: corev1.ObjectReference{
			Kind: c.kind.Kind, APIVersion: c.groupVersion().String(), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(), ResourceVersion: m.GetResourceVersion(),
		},
		Reason: reason, Message: message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "initializers"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		EventTime: metav1.NewMicroTime(time.Time{}),
	}, serverManager)
	if err == nil {
		_, _ = c.Store.Commit(c.ctx, c.provenance(serverManager), op) // told of by the object itself, too
	}
}
