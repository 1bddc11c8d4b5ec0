package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	upstream "k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/store"
)

// waitingTable has a record of every object that waits for initializers, by
// the object's UID. It is no kind's. Its one declared field is whom the object
// waits for now.
const (
	waitingTable = "waiting.initializers.setpoint.dev"
	nextField    = "next"
)

// Waiting tells which objects wait for initializers.
type Waiting struct {
	Objects *Objects
}

// Next implements initializer.Waiting.
func (w Waiting) Next(ctx context.Context, name string) bool {
	sn, err := w.Objects.Store.Snapshot(w.Objects.Plane(ctx))
	if err != nil {
		return false // in a plane that is gone nothing waits
	}
	for range sn.Scan(ctx, waitingTable, store.Range{Field: nextField, Value: name}) {
		return true
	}
	return false
}

// All implements initializer.Waiting.
func (w Waiting) All(ctx context.Context) iter.Seq2[*initializer.Record, error] {
	return func(yield func(*initializer.Record, error) bool) {
		sn, err := w.Objects.Store.Snapshot(w.Objects.Plane(ctx))
		if err != nil {
			yield(nil, err)
			return
		}
		for o, err := range sn.Scan(ctx, waitingTable, store.Range{}) {
			var r *initializer.Record
			if err == nil {
				r, err = readRecord(o)
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

func readRecord(o *store.Object) (*initializer.Record, error) {
	r := &initializer.Record{}
	if err := json.Unmarshal(o.Value(), r); err != nil {
		return nil, fmt.Errorf("record of %s: %w", o.Key(), err)
	}
	return r, nil
}

// recordOp is the operation that writes a record.
func recordOp(plane string, r *initializer.Record) (store.Op, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return store.Op{}, err
	}
	return store.Op{
		Plane: plane, Resource: waitingTable, Key: string(r.UID), Value: value, RevAt: -1,
		Index: store.Index{Fields: map[string]string{nextField: r.Head()}},
	}, nil
}

// record is what is remembered of an object that waits; nil when nothing is.
func (c *call) record(uid types.UID) (*initializer.Record, error) {
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	o, err := sn.Get(c.ctx, waitingTable, string(uid))
	if err != nil || o == nil {
		return nil, err
	}
	return readRecord(o)
}

// newRecord is what is remembered of an object that begins to wait.
func (c *call) newRecord(obj runtime.Object, m metav1.Object, waits *initializers.Initializers) *initializer.Record {
	now := time.Now()
	r := &initializer.Record{
		UID: m.GetUID(), Resource: c.groupVersion().WithResource(c.resource.Name), Namespace: m.GetNamespace(), Name: m.GetName(), Created: now,
	}
	r.SetCreator(c.user)
	r.Wait(initializer.Names(waits), now)
	r.Assigned = c.assigned
	if _, is := obj.(*core.Pod); is {
		r.Account = initializer.AccountOf(obj, m.GetNamespace())
	}
	return r
}

// remember is what is to be written beside an object, in its place of old, nil
// where it is new: nothing for those that do not wait.
func (c *call) remember(obj, old runtime.Object) ([]store.Op, error) {
	waits, err := initializers.Of(obj)
	if err != nil {
		return nil, err
	}
	var waited *initializers.Initializers
	if old != nil {
		if waited, err = initializers.Of(old); err != nil {
			return nil, err
		}
	}
	if waits == nil && waited == nil {
		return nil, nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if waits == nil {
		return c.forget(m.GetUID())
	}
	r, err := c.record(m.GetUID())
	if err != nil {
		return nil, err
	}
	if r == nil {
		// It is new, or its record is lost: then it waits since it was made.
		r = c.newRecord(obj, m, waits)
		if old != nil {
			r.HeadSince, r.Created, r.Assigned = m.GetCreationTimestamp().Time, m.GetCreationTimestamp().Time, nil
		}
	}
	r.Wait(initializer.Names(waits), time.Now())
	r.Changed = r.Changed || old != nil && changed(obj, old)
	r.Failed = waits.Result != nil
	op, err := recordOp(c.info.Plane, r)
	return []store.Op{op}, err
}

// forget removes the record of an object, if there is one.
func (c *call) forget(uid types.UID) ([]store.Op, error) {
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	o, err := sn.Get(c.ctx, waitingTable, string(uid))
	if err != nil || o == nil {
		return nil, err
	}
	return []store.Op{{Plane: c.info.Plane, Resource: waitingTable, Key: string(uid), Delete: true, RevAt: -1}}, nil
}

// begin lets admission change a new object, and finds out whether it waits for
// initializers then.
func (c *call) begin(a admission.Attributes, dryRun bool) error {
	if _, err := initializers.Of(a.GetObject()); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	ctx, assigned := initializer.TellAssigned(c.ctx)
	c.ctx = ctx
	if err := c.mutate(a); err != nil {
		return err
	}
	c.assigned = *assigned
	return c.queue(a.GetObject(), dryRun)
}

// whileWaiting are the rules for a write: kinds may have others for objects
// that wait.
func (c *call) whileWaiting(strategy upstream.RESTUpdateStrategy, old runtime.Object) upstream.RESTUpdateStrategy {
	if c.sub != nil || c.resource.Unseen == nil {
		return strategy
	}
	if waits, err := initializers.Of(old); err != nil || waits == nil || len(waits.Pending) == 0 {
		return strategy
	}
	return c.resource.Unseen
}

// initialized is called when a write of an object that waits has been stored:
// one that has failed goes at once, whatever would keep it.
func (c *call) initialized(obj, old runtime.Object) error {
	waited, err := initializers.Of(old)
	if err != nil || waited == nil {
		return err
	}
	waits, err := initializers.Of(obj)
	if err != nil {
		return err
	}
	before, now := initializer.Names(waited), initializer.Names(waits)
	failed := waits != nil && waits.Result != nil
	if len(before) > 0 && (failed || len(now) == 0 || now[0] != before[0]) {
		c.Health.Acted(before[0], time.Now())
		what := "complete"
		if failed {
			what = "fail"
		}
		c.outcome(before[0], what)
	}
	if !failed {
		return nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	return c.expel(m.GetUID())
}

// expel removes the object that the request names, ignoring finalizers and
// grace.
func (c *call) expel(uid types.UID) (err error) {
	for range commitTries {
		var have *store.Object
		var obj runtime.Object
		if have, obj, err = c.load(); err != nil {
			break
		}
		if m, err := meta.Accessor(obj); err != nil || m.GetUID() != uid {
			return err
		}
		if _, err = c.remove(obj, have, false); !isConflict(err) {
			break
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// outcome counts what became of an object that waited for an initializer.
// Names that no configuration has are counted together: clients can make up
// any number of them.
func (c *call) outcome(name, what string) {
	if c.Initialized == nil {
		return
	}
	known := false
	if backlog := c.backlog.Load(); backlog != nil {
		_, known = (*backlog)[name]
	}
	if !known {
		name = "other"
	}
	c.Initialized(name, what)
}
