package webhook

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/admission"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	webhookrequest "k8s.io/apiserver/pkg/admission/plugin/webhook/request"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"setpoint.dev/setpoint/api/initializers"
)

// apply is the object with the patch that a webhook has answered with; nil
// when the patch does nothing.
func (h *hook) apply(result *webhookrequest.AdmissionResponse, a *admission.VersionedAttributes, o admission.ObjectInterfaces) (runtime.Object, jsonpatch.Patch, error) {
	operations, err := jsonpatch.DecodePatch(result.Patch)
	if err != nil {
		return nil, nil, h.failed(fmt.Errorf("received undecodable patch in webhook response: %w", err), apierrors.NewServiceUnavailable("error decoding patch in webhook response"))
	}
	if len(operations) == 0 {
		return nil, nil, nil
	}
	if a.VersionedObject == nil {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.name))
	}
	if result.PatchType != admissionv1.PatchTypeJSONPatch {
		return nil, nil, h.failed(fmt.Errorf("unsupported patch type %q", result.PatchType), webhookerrors.ToStatusErr(h.name, result.Result))
	}
	patched, err := patch(operations, a, o)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return patched, operations, nil
}

// patch is the object with the operations done to it. They are done to what the
// webhook was shown; what the object waits for is not theirs to change.
func patch(operations jsonpatch.Patch, a *admission.VersionedAttributes, o admission.ObjectInterfaces) (runtime.Object, error) {
	speaks := serializer.NewSerializerWithOptions(serializer.DefaultMetaFactory, o.GetObjectCreater(), o.GetObjectTyper(), serializer.SerializerOptions{})
	whole, err := initializers.Shown(a.VersionedObject)
	if err != nil {
		return nil, err
	}
	before, err := runtime.Encode(speaks, whole)
	if err != nil {
		return nil, err
	}
	after, err := operations.Apply(before)
	if err != nil {
		return nil, err
	}
	var into runtime.Object = &unstructured.Unstructured{}
	if _, untyped := a.VersionedObject.(*unstructured.Unstructured); !untyped {
		if into, err = o.GetObjectCreater().New(a.VersionedKind); err != nil {
			return nil, err
		}
	}
	patched, _, err := speaks.Decode(after, nil, into)
	if err != nil {
		return nil, err
	}
	initializers.Detach(patched)
	initializers.CarriedBy(a.VersionedObject).Attach(patched)
	return patched, nil
}

func same(a, b runtime.Object) bool { return apiequality.Semantic.DeepEqual(a, b) }

// recordMutation says in the audit log whether the webhook changed the object.
func (h *hook) recordMutation(a *admission.VersionedAttributes, round, index int, changed bool) {
	value, err := json.Marshal(mutating.MutationAuditAnnotation{Configuration: h.accessor.GetConfigurationName(), Webhook: h.name, Mutated: changed})
	if err == nil {
		annotate(a, mutating.MutationAuditAnnotationPrefix, round, index, string(value))
	}
}

// recordPatch says in the audit log, where it has what was asked, what the
// webhook has answered with.
func (h *hook) recordPatch(a *admission.VersionedAttributes, round, index int, operations jsonpatch.Patch) {
	value, err := json.Marshal(mutating.PatchAuditAnnotation{
		Configuration: h.accessor.GetConfigurationName(), Webhook: h.name, Patch: operations, PatchType: string(admissionv1.PatchTypeJSONPatch),
	})
	if err == nil {
		key := fmt.Sprintf("%sround_%d_index_%d", mutating.PatchAuditAnnotationPrefix, round, index)
		_ = a.AddAnnotationWithLevel(key, string(value), auditinternal.LevelRequest) // one that is there stays
	}
}
