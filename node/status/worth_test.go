package status

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestWorth has a pod go a moment before its node knows, and a node that may not.
func TestWorth(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	n := &News{}
	for i := range patience - 1 {
		if n.worth(apierrors.NewForbidden(pods, "web", errors.New("no relationship found"))) {
			t.Errorf("it is told at once: after %d times", i+1)
		}
	}
	if !n.worth(apierrors.NewForbidden(pods, "web", errors.New("no relationship found"))) {
		t.Error("it is never told")
	}
	if n.worth(apierrors.NewConflict(pods, "web", errors.New("somebody was faster"))) {
		t.Error("a conflict is told")
	}
	if !n.worth(errors.New("connection refused")) {
		t.Error("an error is not told")
	}
}
