// Package patch changes objects: object x patch -> object.
//
// JSON patches and merge patches work on an object's JSON in one version,
// strategic merge patches on its fields. Package ownership keeps the record of
// who owns which field and carries out apply; Ownership finds its manager for a
// kind. Nothing here reads or writes
// anything. What a patch makes of an object is at most MaxCopied larger than
// the two together.
package patch

import (
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"setpoint.dev/setpoint/api/initializers"
)

// MaxOperations is how many operations a JSON patch may have.
const MaxOperations = 10_000

// MaxCopied is how many bytes the copy operations of a JSON patch may add; a
// few that copy what others have copied would otherwise fill the memory.
const MaxCopied = 3 << 20

// The library has no other way to be told.
func init() { jsonpatch.AccumulatedCopySizeLimit = MaxCopied }

// TooManyError says that a JSON patch has more operations than MaxOperations.
type TooManyError struct {
	Operations int
}

func (e *TooManyError) Error() string {
	return fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", MaxOperations, e.Operations)
}

// InvalidError says that a patch can be read but not applied to the object.
type InvalidError struct {
	Err error
}

func (e *InvalidError) Error() string { return e.Err.Error() }

// Unwrap returns what was wrong.
func (e *InvalidError) Unwrap() error { return e.Err }

// JSON applies a JSON patch (RFC 6902) to an object's JSON.
func JSON(object, patch []byte) ([]byte, error) {
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return nil, err
	}
	if len(p) > MaxOperations {
		return nil, &TooManyError{len(p)}
	}
	for i, op := range p {
		if err := hasRootValue(op); err != nil {
			return nil, &InvalidError{fmt.Errorf("operation %d: %w", i, err)}
		}
	}
	changed, err := p.Apply(object)
	if err != nil {
		return nil, &InvalidError{err}
	}
	return changed, nil
}

// hasRootValue checks that an operation on the whole object has a value where it
// needs one, for which the library does not look before it uses it.
func hasRootValue(op jsonpatch.Operation) error {
	switch kind := op.Kind(); kind {
	case "add", "replace", "test":
		if path, err := op.Path(); err == nil && path == "" && op["value"] == nil {
			return fmt.Errorf("%s of the whole object without a value", kind)
		}
	}
	return nil
}

// Merge applies a JSON merge patch (RFC 7386) to an object's JSON.
func Merge(object, patch []byte) ([]byte, error) { return jsonpatch.MergePatch(object, patch) }

// Strategic applies a strategic merge patch to an object's fields. Lists are
// merged as the tags of typed, a value of the object's Go type, say. It may
// change what it is given.
func Strategic(object, patch map[string]any, typed any) (map[string]any, error) {
	return strategicpatch.StrategicMergeMapPatch(object, patch, typed)
}

// Initializers applies what a strategic merge patch says of
// metadata.initializers, of which the types that it is applied by do not know.
func Initializers(had, patch any) (any, error) {
	object, wanted := map[string]any{}, map[string]any{"initializers": patch}
	if had != nil {
		object["initializers"] = had
	}
	changed, err := strategicpatch.StrategicMergeMapPatch(object, wanted, struct {
		Initializers *initializers.Initializers `json:"initializers"`
	}{})
	return changed["initializers"], err
}
