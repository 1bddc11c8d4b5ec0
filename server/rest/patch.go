package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	upstream "k8s.io/apiserver/pkg/registry/rest"
	kjson "sigs.k8s.io/json"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/api/onepass"
	"setpoint.dev/setpoint/patch"
)

func (c *call) patch(strategy upstream.RESTUpdateStrategy) error {
	media, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	kind := types.PatchType(media) // Compat: as it is written, upper case and all
	if c.resource.Custom != nil && kind != types.JSONPatchType && kind != types.MergePatchType && codec.Applied(kind) == nil {
		return unsupportedMediaType(&codec.UnsupportedError{MediaType: media, Offered: untypedPatches()})
	}
	options := &metav1.PatchOptions{}
	if err := c.options(options); err != nil {
		return err
	}
	if err := invalidOptions("PatchOptions", metav1validation.ValidatePatchOptions(options, kind)); err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	owned, err := c.fieldManager(strategy)
	if err != nil {
		return err
	}
	ch := change{
		strategy: strategy, retry: true, manager: c.manager(options.FieldManager),
		options: &metav1.UpdateOptions{DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation},
	}
	applies := codec.Applied(kind)
	switch {
	case kind == types.JSONPatchType, kind == types.MergePatchType, kind == types.StrategicMergePatchType:
		ch.make = func(old runtime.Object) (runtime.Object, error) {
			obj, err := c.patched(c.spoken(), kind, old, body, options.FieldValidation)
			if err == nil {
				err = c.sameName(obj)
			}
			if err != nil {
				return nil, err
			}
			return owned.Update(old, obj, ch.manager), nil
		}
	case applies != nil:
		ch.mayCreate, ch.applies = c.sub == nil, true
		ch.manager = options.FieldManager
		ch.make, err = c.applied(applies, body, options, owned)
		if err != nil {
			return err
		}
	default:
		return unknownPatch()
	}
	if c.scales() {
		ch.make = c.throughScale(ch.options, ch.make)
	}
	code, stored, err := c.change(ch)
	if err != nil {
		return err
	}
	return c.respond(code, stored)
}

// untypedPatches are the patches that kinds without a Go type are known to
// take: what a strategic patch needs to know is in Go types.
func untypedPatches() []string {
	taken := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	for _, r := range codec.Representations {
		if r.Apply != "" {
			taken = append(taken, string(r.Apply))
		}
	}
	return taken
}

// unknownPatch is the answer to a patch of a type that there is not.
func unknownPatch() error {
	return outside{apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "", schema.GroupResource{}, "", "415: Unsupported Media Type", 0, false)}
}

// patched applies a patch to an object, in the version that the request speaks.
func (c *call) patched(as schema.GroupVersionKind, kind types.PatchType, old runtime.Object, body []byte, fieldValidation string) (runtime.Object, error) {
	directive := fieldValidation
	if directive == "" {
		directive = metav1.FieldValidationWarn
	}
	if obj := c.plainly(as, kind, body, directive); obj != nil {
		return obj, nil
	}
	if kind == types.StrategicMergePatchType {
		return c.merged(as, old, body, directive)
	}
	speaks, err := c.codec().Media(codec.JSON)
	if err != nil {
		return nil, err
	}
	before := c.storedAs(as)
	if before == nil || c.resource.Custom != nil { // Compat: errors show it, and what is stored has its own order
		if before, err = c.codec().Encode(speaks, old, as.GroupVersion()); err != nil {
			return nil, err
		}
	}
	var twice []error
	if directive != metav1.FieldValidationIgnore {
		if twice, err = strictPatch(kind, body); err != nil {
			return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
		}
	}
	var after []byte
	if kind == types.JSONPatchType {
		after, err = patch.JSON(before, body)
	} else {
		after, err = patch.Merge(before, body)
	}
	if err != nil {
		return nil, patchError(err)
	}
	obj, _, err := c.codec().Decode(speaks, directive != metav1.FieldValidationIgnore, after, as)
	if err == nil || obj != nil {
		err = joinStrict(twice, err)
	}
	if err := c.strictness(err, obj, directive); err != nil {
		return nil, invalidPatch(string(after), err)
	}
	if want, err := c.codec().Scheme.New(schema.GroupVersionKind{Group: as.Group, Version: runtime.APIVersionInternal, Kind: as.Kind}); err == nil && reflect.TypeOf(want) != reflect.TypeOf(obj) {
		gvk := as
		if v, k, err := kindIn(after); err == nil {
			gvk = schema.FromAPIVersionAndKind(v, k)
		}
		return nil, invalidPatch(string(after), c.unlike(gvk, want))
	}
	return obj, nil
}

// storedAs is the JSON of the object that is being changed, where it is stored
// in the kind and version that is asked for; nil where it has to be made.
func (c *call) storedAs(kind schema.GroupVersionKind) []byte {
	o := c.changing
	if o == nil || kind != c.resource.StorageKind() || c.scales() || c.resource.Custom != nil && !c.byTheseRules(o) {
		return nil
	}
	return o.Value()
}

// kindIn is what an object's JSON says it is.
func kindIn(body []byte) (version, kind string, err error) {
	var t metav1.TypeMeta
	err = json.Unmarshal(body, &t)
	return t.APIVersion, t.Kind, err
}

func invalidPatch(value string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), value, err.Error())})
}

// strictPatch reads a patch for nothing but what is in it twice, or unknown.
func strictPatch(kind types.PatchType, body []byte) ([]error, error) {
	if kind != types.JSONPatchType {
		return kjson.UnmarshalStrict(body, &map[string]any{})
	}
	var operations []struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		From  string `json:"from"`
		Value any    `json:"value"`
	}
	errs, err := kjson.UnmarshalStrict(body, &operations)
	for i, e := range errs {
		errs[i] = fmt.Errorf("json patch %w", e)
	}
	return errs, err
}

// joinStrict adds what is wrong with a patch to what is wrong with the object.
func joinStrict(first []error, err error) error {
	strict, is := runtime.AsStrictDecodingError(err)
	switch {
	case err != nil && !is:
		return err
	case is:
		first = append(first, strict.Errors()...)
	}
	if len(first) == 0 {
		return nil
	}
	return runtime.NewStrictDecodingError(first)
}

// merged applies a strategic merge patch.
func (c *call) merged(as schema.GroupVersionKind, old runtime.Object, body []byte, directive string) (runtime.Object, error) {
	strict := directive != metav1.FieldValidationIgnore
	wanted := map[string]any{}
	var twice []error
	var err error
	if strict {
		twice, err = kjson.UnmarshalStrict(body, &wanted)
	} else {
		err = json.Unmarshal(body, &wanted)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	fields, carried, err := c.fieldsOf(as, old)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%+v", wanted) // merging changes it
	typed, err := c.resource.Scheme.New(as)
	if err != nil {
		return nil, err
	}
	sent := initializers.Cut(wanted, typed)
	after, err := patch.Strategic(fields, wanted, typed)
	if err != nil {
		return nil, strategicError(err)
	}
	carried, unknown, err := carried.Merged(typed, sent, patch.Initializers)
	if err != nil {
		return nil, strategicError(err)
	}
	if strict {
		twice = append(twice, unknown...)
	}
	err = joinStrict(twice, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, typed, strict))
	carried.Attach(typed)
	if err := c.strictness(err, typed, directive); err != nil {
		return nil, invalidPatch(text, err)
	}
	return c.codec().Internal(typed)
}

// fieldsOf are the fields of the object that is being changed, in a version, and
// what it carried beside them.
func (c *call) fieldsOf(as schema.GroupVersionKind, old runtime.Object) (map[string]any, initializers.Taken, error) {
	if stored := c.storedAs(as); !bytes.Contains(stored, []byte("initializers")) {
		if fields, ok := onepass.Fields(stored); ok {
			return fields, initializers.Taken{}, nil
		}
	}
	versioned, err := c.resource.Scheme.ConvertToVersion(old, as.GroupVersion())
	if err != nil {
		return nil, initializers.Taken{}, err
	}
	carried := initializers.Detach(versioned)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(versioned)
	return fields, carried, err
}

func patchError(err error) error {
	tooMany, isTooMany := errors.AsType[*patch.TooManyError](err)
	invalid, isInvalid := errors.AsType[*patch.InvalidError](err)
	switch {
	case isTooMany:
		return apierrors.NewRequestEntityTooLargeError(tooMany.Error())
	case isInvalid:
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", invalid.Error(), 0, false)
	default:
		return apierrors.NewBadRequest(err.Error())
	}
}

// strategicError is the answer to a strategic merge patch that cannot be
// applied. Compat: what is not named here is answered with 500.
func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists):
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	default:
		return err
	}
}

// sameName checks that a patch has not renamed its object.
func (c *call) sameName(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if err := c.named(m); err != nil {
		return err
	}
	return c.sameNamespace(m)
}

// named checks that an object has the name that the path has.
func (c *call) named(m metav1.Object) error {
	switch m.GetName() {
	case c.info.Name:
		return nil
	case "":
		return apierrors.NewBadRequest("the name of the object (" + c.info.Name + " based on URL) was undeterminable: name must be provided")
	default:
		return apierrors.NewBadRequest("the name of the object (" + m.GetName() + ") does not match the name on the URL (" + c.info.Name + ")")
	}
}

// applied returns the change that an apply makes. Compat: whatever it is in, it
// is called YAML.
func (c *call) applied(in *codec.Representation, body []byte, options *metav1.PatchOptions, owned *patch.Manager) (func(runtime.Object) (runtime.Object, error), error) {
	wanted, twice := in.Fields(body, true)
	if twice != nil {
		var err error
		if wanted, err = in.Fields(body, false); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding YAML: %v", err))
		}
	}
	force := options.Force != nil && *options.Force
	return func(old runtime.Object) (runtime.Object, error) {
		manifest := &unstructured.Unstructured{Object: wanted}
		if wanted = nil; manifest.Object == nil { // it was used, and may be changed since
			manifest.Object, _ = in.Fields(body, false)
		}
		obj, err := owned.Apply(old, manifest, options.FieldManager, force)
		if err == nil {
			err = c.strictApply(twice, options.FieldValidation)
		}
		if err != nil {
			return nil, err
		}
		return obj, c.appliedName(obj)
	}, nil
}

// strictApply tells of what is twice in an applied manifest. Compat: whether it
// can be applied at all is said first.
func (c *call) strictApply(twice error, directive string) error {
	switch {
	case twice == nil || directive == metav1.FieldValidationIgnore:
	case directive == metav1.FieldValidationStrict:
		return apierrors.NewBadRequest(fmt.Sprintf("error strict decoding YAML: %v", twice))
	default:
		c.warnOf([]error{errors.New(strings.TrimPrefix(twice.Error(), "error converting YAML to JSON: "))})
	}
	return nil
}

// appliedName gives an applied object the name that the path has, or says that
// the two differ.
func (c *call) appliedName(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if m.GetName() == "" {
		m.SetName(c.info.Name)
	}
	return c.sameName(obj)
}
