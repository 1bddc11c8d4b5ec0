package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	internal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"setpoint.dev/setpoint/api/codec"
)

// maxBody bounds the bytes that are kept of a body in either direction. Of a
// longer one nothing is told, but that it was.
const maxBody = 8 << 20

// truncated is upstream's annotation on events that something is missing from.
const truncated = "audit.k8s.io/truncated"

// Entry is what is known of one request. All methods of a nil Entry do
// nothing.
type Entry struct {
	ctx   context.Context
	audit *audit.AuditContext
	attrs authorizer.Attributes
	level internal.Level
	long  bool

	asked      body
	askedType  string
	answered   body
	answerCode int
	header     http.Header
}

// body is what has been seen of a body.
type body struct {
	keep bool
	buf  bytes.Buffer
	over bool
}

func (b *body) add(p []byte) {
	if !b.keep {
		return
	}
	if b.over = b.over || b.buf.Len()+len(p) > maxBody; b.over {
		b.buf = bytes.Buffer{}
		return
	}
	b.buf.Write(p)
}

// Begin takes note of a request that came in at the given time, and returns
// nil when the policy says that nothing is told of it. The request's context
// has an audit context; attrs name the user who is authenticated. Its body is
// listened to as it is read.
func (l *Log) Begin(r *http.Request, attrs authorizer.Attributes, received time.Time, long bool) *Entry {
	ctx := r.Context()
	ac := audit.AuditContextFrom(ctx)
	rules := l.all
	if private(attrs) {
		rules = l.named
	}
	decided := rules.EvaluatePolicyRule(attrs)
	if ac == nil || ac.Init(decided, l) != nil || decided.Level == internal.LevelNone {
		return nil
	}
	audit.LogRequestMetadata(ctx, r, received, attrs)
	ac.ProcessEventStage(ctx, internal.StageRequestReceived)
	e := &Entry{ctx: ctx, audit: ac, attrs: attrs, level: decided.Level, long: long, askedType: r.Header.Get("Content-Type")}
	// The name of what is created is in the body only.
	e.asked.keep = e.tells(internal.LevelRequest) || attrs.IsResourceRequest() && attrs.GetVerb() == "create" && attrs.GetName() == ""
	if e.asked.keep && r.Body != nil {
		r.Body = &listened{r.Body, &e.asked}
	}
	return e
}

// listened keeps what is read.
type listened struct {
	io.ReadCloser
	body *body
}

// Read implements io.Reader.
func (l *listened) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	l.body.add(p[:n])
	return n, err
}

func (e *Entry) tells(level internal.Level) bool { return !e.level.Less(level) }

// Started takes note of the answer's status and headers, which are on their
// way to the client.
func (e *Entry) Started(code int, h http.Header) {
	if e == nil || e.answerCode != 0 {
		return
	}
	e.answerCode, e.header = code, h
	e.audit.SetEventResponseStatusCode(int32(code)) //nolint:gosec // a status has three digits
	if e.long {
		e.audit.ProcessEventStage(e.ctx, internal.StageResponseStarted)
	}
	// What went wrong is told at every level.
	e.answered.keep = code >= http.StatusBadRequest || !e.long && e.tells(internal.LevelRequestResponse)
}

// Wrote takes note of a part of the answer.
func (e *Entry) Wrote(p []byte) {
	if e != nil {
		e.answered.add(p)
	}
}

// End takes note that the request has been answered, or has panicked with
// something that is not nil.
func (e *Entry) End(panicked any) {
	if e == nil {
		return
	}
	e.logAsked()
	if panicked != nil {
		e.audit.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
			Message: fmt.Sprintf("APIServer panic'd: %v", panicked),
		})
		e.audit.ProcessEventStage(e.ctx, internal.StagePanic)
		return
	}
	e.logAnswered()
	if e.answerCode == 0 {
		e.audit.SetEventResponseStatus(&metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"})
		if e.long {
			e.audit.ProcessEventStage(e.ctx, internal.StageResponseStarted)
		}
	}
	e.audit.ProcessEventStage(e.ctx, internal.StageResponseComplete)
}

func (e *Entry) logAsked() {
	if e.asked.over {
		audit.AddAuditAnnotation(e.ctx, truncated, "true")
	}
	if e.asked.buf.Len() == 0 {
		return
	}
	raw := e.asked.buf.Bytes()
	if e.attrs.GetVerb() == "patch" {
		if patch, err := patchText(raw, e.askedType); err == nil {
			audit.LogRequestPatch(e.ctx, patch)
		}
		return
	}
	obj, err := object(raw, e.askedType)
	if err != nil {
		return // the answer says that it could not be read
	}
	e.conceal(obj)
	gv := schema.GroupVersion{Group: e.attrs.GetAPIGroup(), Version: e.attrs.GetAPIVersion()}
	audit.LogRequestObject(e.ctx, obj, gv, gv.WithResource(e.attrs.GetResource()), e.attrs.GetSubresource(), asIs{})
}

func (e *Entry) logAnswered() {
	if e.answered.over {
		audit.AddAuditAnnotation(e.ctx, truncated, "true")
	}
	if e.answered.buf.Len() == 0 {
		return
	}
	raw := e.answered.buf.Bytes()
	if e.header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return // it was cut off
		}
		if raw, err = io.ReadAll(io.LimitReader(z, 4*maxBody)); err != nil {
			return // it was cut off
		}
	}
	obj, err := object(raw, e.header.Get("Content-Type"))
	if err != nil {
		return // a text
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetKind() == "Status" && u.GetAPIVersion() == "v1" {
		status := &metav1.Status{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, status) == nil {
			obj = status
		}
	}
	e.conceal(obj)
	audit.LogResponseObject(e.ctx, obj, schema.GroupVersion{}, asIs{})
	if e.answerCode != 0 {
		e.audit.SetEventResponseStatusCode(int32(e.answerCode)) //nolint:gosec // a status has three digits
	}
}

// mediaType is a content type without its parameters.
func mediaType(contentType string) string {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType
	}
	return media
}

// patchText is a patch as JSON.
func patchText(raw []byte, contentType string) ([]byte, error) {
	in := codec.Applied(types.PatchType(mediaType(contentType)))
	if in == nil {
		return yaml.YAMLToJSON(raw) // it is JSON, or the answer says that it is not
	}
	fields, err := in.Fields(raw, false)
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// typedFields reads a body that only makes sense with its type.
func typedFields(raw []byte) (map[string]any, error) {
	typed, kind, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	typed.GetObjectKind().SetGroupVersionKind(*kind)
	if raw, err = json.Marshal(typed); err != nil {
		return nil, err
	}
	return codec.Find(codec.JSON).Fields(raw, false)
}

// object reads a body of any representation that kinds have.
func object(raw []byte, contentType string) (runtime.Object, error) {
	in := codec.Find(mediaType(contentType))
	if contentType == "" {
		in = codec.Find(codec.JSON)
	}
	var content map[string]any
	var err error
	if in != nil && in.Fields != nil {
		content, err = in.Fields(raw, false)
	} else {
		content, err = typedFields(raw)
	}
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: content}
	if !u.IsList() {
		return u, nil
	}
	return u.ToList()
}

// conceal removes tokens.
func (e *Entry) conceal(obj runtime.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok || !private(e.attrs) {
		return
	}
	switch e.attrs.GetResource() {
	case "tokenreviews":
		unstructured.RemoveNestedField(u.Object, "spec", "token")
	case "serviceaccounts":
		unstructured.RemoveNestedField(u.Object, "status", "token")
	}
}

// asIs writes objects in the version that they have.
type asIs struct{ runtime.NegotiatedSerializer }

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (asIs) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON}}
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (asIs) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return plainJSON{}
}

type plainJSON struct{}

// Encode implements runtime.Encoder.
func (plainJSON) Encode(obj runtime.Object, w io.Writer) error {
	raw, err := json.Marshal(obj)
	if err == nil {
		_, err = w.Write(raw)
	}
	return err
}

// Identifier implements runtime.Encoder.
func (plainJSON) Identifier() runtime.Identifier { return "json" }
