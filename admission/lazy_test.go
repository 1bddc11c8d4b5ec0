package admission_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/admission"

	"setpoint.dev/setpoint/admission"
)

func TestALazyChainThatCannotBeMade(t *testing.T) {
	l := admission.NewLazy(admission.Config{Options: admission.Options{Enable: []string{"NoSuchPlugin"}}})
	if !l.Handles(upstream.Create) {
		t.Error("it lets writes pass by")
	}
	if err := l.Admit(t.Context(), nil, nil); !apierrors.IsInternalError(err) {
		t.Errorf("it admits: %v", err)
	}
	if err := l.Validate(t.Context(), nil, nil); !apierrors.IsInternalError(err) {
		t.Errorf("it validates: %v", err)
	}
}
