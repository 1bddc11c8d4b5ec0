package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	upstream "k8s.io/apiserver/pkg/registry/rest"

	"setpoint.dev/setpoint/admission/settled"
	"setpoint.dev/setpoint/patch/ownership"
	"setpoint.dev/setpoint/store"
)

// change says how a write makes the new object from the stored one.
type change struct {
	strategy upstream.RESTUpdateStrategy
	// make returns the new object, in its internal type, with its ownership
	// brought up to date. old is an empty object where nothing is stored.
	make func(old runtime.Object) (runtime.Object, error)
	// mayCreate says that the object is created when there is none.
	mayCreate bool
	// applies says that the change is an apply.
	applies bool
	// retry says that somebody else's write in between is no reason to fail:
	// the change is made again to what is stored then.
	retry   bool
	uid     preconditions
	options *metav1.UpdateOptions
	manager string
}

func (c *call) update(strategy upstream.RESTUpdateStrategy) error {
	options, err := c.updateOptions()
	if err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	obj, err := c.decode(body, options.FieldValidation, c.spoken())
	if err != nil {
		return err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if err := c.sameNamespace(m); err != nil {
		return err
	}
	if err := c.named(m); err != nil {
		return err
	}
	c.dedupOwners(obj)
	owned, err := c.fieldManager(strategy)
	if err != nil {
		return err
	}
	manager := c.manager(options.FieldManager)
	ch := change{
		strategy: strategy, options: options, manager: manager, mayCreate: strategy.AllowCreateOnUpdate() && c.sub == nil,
		// Compat: an update without a revision overwrites whatever is there.
		retry: m.GetResourceVersion() == "" && strategy.AllowUnconditionalUpdate(),
		make: func(old runtime.Object) (runtime.Object, error) {
			return owned.Update(old, obj.DeepCopyObject(), manager), nil
		},
	}
	if c.scales() {
		ch.make = c.throughScale(ch.options, ch.make)
	}
	if uid := m.GetUID(); uid != "" {
		ch.uid.uid = &uid
	}
	code, stored, err := c.change(ch)
	if err != nil {
		return err
	}
	return c.respond(code, stored)
}

// change carries a change out. One that creates the object waits for its
// initializers, after its turn: they write the same object.
func (c *call) change(ch change) (code int, stored *store.Object, err error) {
	defer c.dequeue()
	code, stored, err = c.carryOut(ch)
	if err == nil && code == http.StatusCreated {
		return c.created(stored)
	}
	return code, stored, err
}

// carryOut makes a change and stores it. Those that may be made again take
// turns at the object once one of them has been in another's way.
func (c *call) carryOut(ch change) (code int, stored *store.Object, err error) {
	takesTurns := ch.retry && !isDryRun(ch.options.DryRun)
	defer func() {
		c.turn.Done()
		c.turn = nil
	}()
	if takesTurns {
		if c.turn, err = c.turns.Join(c.ctx, c.object()); err != nil {
			return 0, nil, err
		}
	}
	for range commitTries {
		var misled bool
		if code, stored, misled, err = c.changeInTurn(ch); misled {
			continue
		}
		if !isConflict(err) || !ch.retry && !c.isCompanions(err) {
			break
		}
		if takesTurns && c.turn == nil {
			var gone error
			if c.turn, gone = c.turns.Take(c.ctx, c.object()); gone != nil {
				return 0, nil, gone
			}
		}
	}
	if isConflict(err) {
		err = apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New(optimisticLock))
	}
	return code, stored, err
}

// changeInTurn makes a change to what the turn before has made of the object, which
// may not be stored yet, or else to what is stored. It was misled when it has been
// made to something that was not stored in the end: nothing of it has happened then.
func (c *call) changeInTurn(ch change) (code int, stored *store.Object, misled bool, err error) {
	if c.turn == nil || c.turn.Given == nil {
		code, stored, err = c.changeOnce(ch)
		return code, stored, false, err
	}
	ctx := c.ctx
	c.follows, c.turn.Given = c.turn.Given, nil
	c.ctx = settled.With(ctx, c.follows.Wait)
	code, stored, err = c.changeOnce(ch)
	misled = c.follows.Wait() != nil
	c.follows, c.ctx = nil, ctx
	return code, stored, misled, err
}

// toChange is the object that a change is made to; nil when there is none.
func (c *call) toChange() (*store.Object, error) {
	if c.follows != nil {
		return c.follows.Object(), nil
	}
	sn, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	return sn.Get(c.ctx, c.resource.Table, c.key())
}

// object names a stored object.
type object struct{ plane, table, key string }

// object is the one that the request names.
func (c *call) object() object { return object{c.info.Plane, c.resource.Table, c.key()} }

func (c *call) changeOnce(ch change) (int, *store.Object, error) {
	have, err := c.toChange()
	if err != nil {
		return 0, nil, err
	}
	if have == nil {
		return c.changeToCreate(ch)
	}
	old, err := c.before(have)
	if err != nil {
		return 0, nil, err
	}
	oldMeta, err := meta.Accessor(old)
	if err != nil {
		return 0, nil, err
	}
	if err := c.check(ch.uid, oldMeta); err != nil {
		return 0, nil, err
	}
	c.changing = have
	obj, err := ch.make(old.DeepCopyObject())
	if err != nil {
		return 0, nil, err
	}
	attributes := c.scaled
	if attributes == nil {
		attributes = c.attributes(obj, old, admission.Update, ch.options, isDryRun(ch.options.DryRun))
		if err := c.mutate(attributes); err != nil {
			return 0, nil, err
		}
	}
	if err := settleInitializers(obj); err != nil {
		return 0, nil, err
	}
	if _, err := c.finalMutation(obj, old, isDryRun(ch.options.DryRun)); err != nil {
		return 0, nil, err
	}
	if err := c.guard(obj, old); err != nil {
		return 0, nil, err
	}
	c.dedupOwners(obj)
	if err := c.currentRevision(ch.strategy, obj, oldMeta.GetResourceVersion()); err != nil {
		return 0, nil, err
	}
	stored, err := c.replace(ch, obj, old, have, attributes)
	if err == nil && stored == have && c.follows == nil { // what is not stored yet may never be
		c.keepUnchanged(have, old)
	}
	return http.StatusOK, stored, err
}

// currentRevision checks the revision that the new object claims to be based
// on, and fills it in where the client has left it open.
func (c *call) currentRevision(strategy upstream.RESTUpdateStrategy, obj runtime.Object, have string) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	switch claimed := m.GetResourceVersion(); {
	case claimed == have:
		return nil
	case claimed != "" && claimed != "0":
		if _, err := strconv.ParseUint(claimed, 10, 64); err != nil {
			return err
		}
		return apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New(optimisticLock))
	case !strategy.AllowUnconditionalUpdate():
		return apierrors.NewInvalid(schema.GroupKind{Group: c.resource.Group, Kind: c.resource.Name}, c.info.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata").Child("resourceVersion"), uint64(0), "must be specified for an update"),
		})
	}
	m.SetResourceVersion(have)
	return nil
}

// replace prepares, validates and stores an object in place of another. What
// is equal to the stored object is not stored again.
func (c *call) replace(ch change, obj, old runtime.Object, have *store.Object, attributes admission.Attributes) (_ *store.Object, err error) {
	dryRun := isDryRun(ch.options.DryRun)
	var along []store.Op
	if c.joins() {
		if along, err = c.join(obj, old, dryRun); err != nil {
			return nil, err
		}
	}
	strategy := c.whileWaiting(ch.strategy, old)
	if err := withoutRecord(obj, func() error { return upstream.BeforeUpdate(strategy, c.ctx, obj, old) }); err != nil {
		return nil, err
	}
	if err := ignoreTimes(obj, old); err != nil {
		return nil, err
	}
	if err := c.validate(attributes); err != nil {
		return nil, err
	}
	if err := c.finalAdmission(obj, old, dryRun); err != nil {
		return nil, err
	}
	if c.isFinalized(obj, old) {
		// Compat: the answer has the revision before the object went.
		if !dryRun {
			if _, err := c.remove(obj, have, false); err != nil {
				return nil, err
			}
		}
		op, err := c.op(obj, store.At(have.Rev))
		if err != nil {
			return nil, err
		}
		return c.unstored(op, obj)
	}
	// Compat: an update that changes nothing is not written; clients stop
	// their loops on the unchanged resourceVersion.
	same := apiequality.Semantic.DeepEqual(obj, old)
	if same && c.byTheseRules(have) {
		return have, nil
	}
	op, err := c.op(obj, store.At(have.Rev))
	if err != nil {
		return nil, err
	}
	// Compat: what would now be stored otherwise, in another version or with
	// defaults that have come since, is: so objects migrate.
	if same && storedAlike(have.Value(), op.Value) {
		return have, nil
	}
	if dryRun {
		return c.pretend(op, obj)
	}
	beside, err := c.remember(obj, old)
	if err != nil {
		return nil, err
	}
	stored, err := c.commit(op, ch.manager, slices.Concat(along, beside, c.asDefined())...)
	if err != nil {
		return nil, err
	}
	return stored, c.initialized(obj, old)
}

// storedAlike says that two stored objects differ in nothing but their revision.
func storedAlike(a, b []byte) bool {
	var objects [2]map[string]any
	for i, data := range [][]byte{a, b} {
		if err := json.Unmarshal(data, &objects[i]); err != nil {
			return false
		}
		unstructured.RemoveNestedField(objects[i], "metadata", "resourceVersion")
	}
	return apiequality.Semantic.DeepEqual(objects[0], objects[1])
}

// isFinalized says that the update takes the last thing away that kept a
// deleted object.
func (c *call) isFinalized(obj, old runtime.Object) bool {
	m, err := meta.Accessor(obj)
	if err != nil || len(m.GetFinalizers()) > 0 {
		return false
	}
	o, err := meta.Accessor(old)
	if err != nil || o.GetDeletionTimestamp() == nil {
		return false
	}
	if grace := o.GetDeletionGracePeriodSeconds(); grace != nil && *grace != 0 {
		return false
	}
	return c.resource.Linger == nil || !c.resource.Linger.Held(obj)
}

// ignoreTimes gives obj the stored ownership when nothing but its times
// differs, so that a write that changes nothing is seen to.
func ignoreTimes(obj, old runtime.Object) error {
	if ownership.Differ(obj, old) {
		return nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	o, err := meta.Accessor(old)
	if err != nil {
		return err
	}
	ours, theirs := m.GetManagedFields(), o.GetManagedFields()
	if len(ours) != len(theirs) {
		return nil
	}
	for i := range ours {
		mine := ours[i]
		mine.Time = theirs[i].Time
		if !apiequality.Semantic.DeepEqual(mine, theirs[i]) {
			return nil
		}
	}
	m.SetManagedFields(theirs)
	if !apiequality.Semantic.DeepEqual(obj, old) {
		m.SetManagedFields(ours)
	}
	return nil
}

func (c *call) changeToCreate(ch change) (int, *store.Object, error) {
	if !ch.mayCreate {
		return 0, nil, c.notFound()
	}
	if ch.uid.uid != nil {
		// Compat: an update that names a UID is for an object that was there.
		return 0, nil, apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New("Precondition failed: UID in precondition: "+string(*ch.uid.uid)+", UID in object meta: "))
	}
	// In the version of the request: converted from the internal type, numbers
	// that nobody has set would look as if somebody had.
	empty, err := c.resource.Scheme.New(c.kind)
	if err != nil {
		return 0, nil, err
	}
	obj, err := ch.make(empty)
	if err != nil {
		return 0, nil, err
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return 0, nil, err
	}
	if ch.applies {
		if uid := m.GetUID(); uid != "" {
			return 0, nil, apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
	} else if rv := m.GetResourceVersion(); rv != "" && rv != "0" {
		return 0, nil, c.notFound()
	}
	m.SetResourceVersion("")
	stored, err := c.insert(obj, &metav1.CreateOptions{DryRun: ch.options.DryRun, FieldManager: ch.options.FieldManager, FieldValidation: ch.options.FieldValidation}, ch.manager)
	if apierrors.IsAlreadyExists(err) && ch.retry {
		return 0, nil, &store.ConflictError{Resource: c.resource.Table, Key: c.key()}
	}
	return http.StatusCreated, stored, err
}
