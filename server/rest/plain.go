package rest

import (
	"bytes"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/onepass"
)

// plainly applies a patch to the stored bytes, and reads what comes of it once.
// That is done for merge patches, for strategic ones that say no more than a
// merge patch could, and for JSON patches of fields. Where there is anything to say about the patch, or about
// what it makes of the object, it returns nil: others say it.
func (c *call) plainly(as schema.GroupVersionKind, kind types.PatchType, body []byte, directive string) runtime.Object {
	stored := c.storedAs(as)
	if stored == nil || kind == types.StrategicMergePatchType && !c.mergesOnly(as, stored, body) {
		return nil
	}
	change := onepass.Merge
	if kind == types.JSONPatchType {
		change = onepass.Patch
	}
	after, ok := change(stored, body)
	if !ok {
		return nil
	}
	speaks, err := c.codec().Media(codec.JSON)
	if err != nil {
		return nil
	}
	obj, got, err := c.codec().Decode(speaks, directive != metav1.FieldValidationIgnore, after, as)
	if err != nil || got == nil || *got != as {
		return nil
	}
	return obj
}

// mergesOnly says that a strategic merge patch does what a merge patch of the
// same text does: it has no lists and no directives, and nothing in it replaces
// an object as a whole.
func (c *call) mergesOnly(as schema.GroupVersionKind, stored, body []byte) bool {
	if bytes.Contains(stored, []byte("initializers")) || bytes.Contains(body, []byte("initializers")) {
		return false // the types do not know of them
	}
	fields, ok := onepass.Fields(body)
	if !ok {
		return false
	}
	typed, err := c.resource.Scheme.New(as)
	if err != nil {
		return false
	}
	about, err := strategicpatch.NewPatchMetaFromStruct(typed)
	return err == nil && onlyMerges(fields, about)
}

func onlyMerges(fields map[string]any, about strategicpatch.LookupPatchMeta) bool {
	for name, value := range fields {
		if strings.HasPrefix(name, "$") {
			return false
		}
		switch value := value.(type) {
		case []any:
			return false
		case map[string]any:
			below, how, err := about.LookupPatchMetadataForStruct(name)
			if err != nil || slices.Contains(how.GetPatchStrategies(), "replace") || !onlyMerges(value, below) {
				return false
			}
		}
	}
	return true
}
