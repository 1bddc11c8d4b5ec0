package rest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
)

// options decodes the query into one of the meta group's options.
func (c *call) options(into runtime.Object) error {
	if err := metainternalscheme.ParameterCodec.DecodeParameters(c.r.URL.Query(), metav1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

func (c *call) createOptions() (*metav1.CreateOptions, error) {
	o := &metav1.CreateOptions{}
	if err := c.options(o); err != nil {
		return nil, err
	}
	return o, invalidOptions("CreateOptions", metav1validation.ValidateCreateOptions(o))
}

func (c *call) updateOptions() (*metav1.UpdateOptions, error) {
	o := &metav1.UpdateOptions{}
	if err := c.options(o); err != nil {
		return nil, err
	}
	return o, invalidOptions("UpdateOptions", metav1validation.ValidateUpdateOptions(o))
}

func isDryRun(dryRun []string) bool { return slices.Contains(dryRun, metav1.DryRunAll) }

// body reads the request's body, up to the limit.
func (c *call) body() ([]byte, error) {
	if c.sent != nil {
		return c.sent, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(nil, c.r.Body, c.MaxBody))
	if err == nil {
		c.sent = b
		return b, nil
	}
	switch {
	case strings.Contains(err.Error(), "request body too large"):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", c.MaxBody))
	case errors.Is(err, os.ErrDeadlineExceeded), c.ctx.Err() != nil:
		return nil, context.DeadlineExceeded // of the request, by not sending it
	}
	return nil, apierrors.NewBadRequest(err.Error())
}

// decode reads an object of the request's kind from a body.
func (c *call) decode(body []byte, fieldValidation string, kind schema.GroupVersionKind) (runtime.Object, error) {
	info, err := c.codec().InputOf(c.r)
	if err != nil {
		return nil, err
	}
	directive := fieldValidation
	if directive == "" {
		directive = metav1.FieldValidationWarn
	}
	obj, got, err := c.codec().Decode(info, directive != metav1.FieldValidationIgnore, body, kind)
	if err := c.strictness(err, obj, directive); err != nil {
		return nil, decodeError(kind.Kind, got, body, err)
	}
	if want, err := c.codec().Scheme.New(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind}); got != nil && err == nil && reflect.TypeOf(want) != reflect.TypeOf(obj) {
		return nil, decodeError(kind.Kind, got, body, c.unlike(*got, want))
	}
	if got != nil && !c.reads(got.GroupVersion(), kind.GroupVersion()) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", got.GroupVersion(), kind.GroupVersion()))
	}
	return obj, nil
}

// reads says that a body in the version got is good where want is expected.
func (c *call) reads(got, want schema.GroupVersion) bool {
	return got == want || c.sub != nil && got.Group == want.Group && slices.Contains(c.sub.Also, got.Version)
}

// unlike says that one kind is not another. Compat: in the words of a failed
// conversion.
func (c *call) unlike(got schema.GroupVersionKind, want runtime.Object) error {
	obj, err := c.codec().Scheme.New(got)
	if err != nil {
		return err
	}
	name := func(o runtime.Object) string { return strings.TrimPrefix(fmt.Sprintf("%T", o), "*") }
	return fmt.Errorf("converting (%s) to (%s): unknown conversion", name(obj), name(want))
}

// strictness lets unknown and duplicate fields pass with a warning, unless the
// client wants an error.
func (c *call) strictness(err error, obj runtime.Object, directive string) error {
	strict, is := runtime.AsStrictDecodingError(err)
	if !is || obj == nil || directive == metav1.FieldValidationStrict {
		return err
	}
	c.warnOf(strict.Errors())
	return nil
}

// warnOf warns of what a strict reader would refuse. YAML's errors come several
// in one.
func (c *call) warnOf(errs []error) {
	for _, e := range errs {
		text, several := strings.CutPrefix(e.Error(), "yaml: unmarshal errors:\n")
		if !several {
			warning.AddWarning(c.ctx, "", e.Error())
			continue
		}
		for line := range strings.SplitSeq(text, "\n") {
			warning.AddWarning(c.ctx, "", strings.TrimSpace(line))
		}
	}
}

// decodeError is what a client reads whose body is no object of the kind.
func decodeError(kind string, got *schema.GroupVersionKind, body []byte, err error) error {
	if got != nil && got.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", got.Kind, got.Version, kind, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", kind, err, summary(body)))
}

// summary is how a body begins: as text where it looks like JSON.
func summary(body []byte) string {
	const most = 30
	more := ""
	if len(body) > most {
		body, more = body[:most], " ..."
	}
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{':
		return string(body) + more
	default:
		return hex.EncodeToString(body) + more
	}
}
