package crd_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"setpoint.dev/setpoint/crd"
	"setpoint.dev/setpoint/kinds"
)

// changing is a source whose definitions are others at each revision.
type changing struct {
	revision atomic.Uint64
	at       func(revision uint64) []crd.Stored
}

func (c *changing) Revision() uint64 { return c.revision.Load() }

func (c *changing) Since(context.Context, uint64) ([]crd.Stored, bool, uint64, error) {
	return c.at(c.Revision()), true, c.Revision(), nil
}

func (c *changing) Wait(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestEqualSchemasAreShared(t *testing.T) {
	const ruled = `{type: object, properties: {spec: {type: object, properties: {a: {type: string, x-kubernetes-validations: [{rule: "self == 'text'"}]}, set: {type: array, items: {type: string}, x-kubernetes-list-type: set}}}}}`
	var stored []crd.Stored
	for i, schema := range []string{ruled, ruled, ruled, open} {
		stored = append(stored, accepted(t, definition(t, fmt.Sprintf("kinds%d", i), fmt.Sprintf("Kind%d", i), schema)).stored)
	}
	source := &changing{at: func(revision uint64) []crd.Stored {
		switch revision {
		case 1:
			return stored
		case 2:
			return stored[2:]
		default:
			return nil
		}
	}}
	source.revision.Store(1)
	r := crd.NewRegistry(kinds.NewList(nil), source, &crd.Conversion{}, slog.New(slog.DiscardHandler))
	use := func(i int) {
		t.Helper()
		plural, kind := fmt.Sprintf("kinds%d", i), fmt.Sprintf("Kind%d", i)
		k := r.Kinds().Find("example.org", "v1", plural)
		good := object(t, kind, "a")
		if errs := k.Create.Validate(t.Context(), good); len(errs) > 0 {
			t.Errorf("%s: %v", kind, errs)
		}
		bad := good.DeepCopy()
		_ = unstructured.SetNestedField(bad.Object, "other", "spec", "a") // it has a spec
		if errs := k.Create.Validate(t.Context(), bad); (len(errs) == 1) != (i < 3) {
			t.Errorf("%s: %v", kind, errs)
		}
		if errs := k.Create.Validate(t.Context(), object(t, "Other", "a")); len(errs) != 1 {
			t.Errorf("an object of another kind: %v", errs)
		}
	}
	want := func(n int) {
		t.Helper()
		runtime.GC()
		eventually(t, fmt.Sprintf("%d schemas are kept, not %d", n, r.Shapes()), func(context.Context) bool {
			runtime.GC()
			return r.Shapes() == n
		})
	}
	r.Kinds()
	want(0)
	for i := range stored {
		use(i)
	}
	want(2)
	source.revision.Store(2) // without two of three
	use(2)
	use(3)
	want(2)
	source.revision.Store(3) // without any
	r.Kinds()
	want(0)
}
