package rest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
)

// representation is the form in which the client wants its answer.
type representation struct {
	*codec.Representation
	info runtime.SerializerInfo
	// as is the kind to answer with instead of the object's own: Table,
	// PartialObjectMetadata or PartialObjectMetadataList; "" for none.
	as string
	// version is that of the kind in as: v1 or v1beta1.
	version string
	// pretty asks for an indented answer, in a form that has one.
	pretty bool
}

// metaVersion is the version of the kind in as.
func (r representation) metaVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: metav1.GroupName, Version: r.version}
}

// negotiate picks the first representation of the Accept header that can be
// made. Nothing asked for means JSON.
func (c *call) negotiate() (representation, error) {
	offered := codec.MediaTypes(codec.Representations)
	if c.info.Verb == "list" || c.info.Verb == "watch" {
		offered = append(offered, codec.StreamTypes()...)
	}
	if c.logs() {
		offered = append(offered, "text/plain")
	}
	if err := Offer(c.r, offered); err != nil {
		return representation{}, err
	}
	return c.accepted(codec.Representations, true)
}

// accepted picks among offered representations. What mayTransform can be
// answered as another kind, too.
func (c *call) accepted(offered []*codec.Representation, mayTransform bool) (representation, error) {
	header := c.r.Header.Get("Accept")
	if header == "" {
		header = offered[0].MediaType
	}
	for _, accept := range goautoneg.ParseAccept(header) {
		for _, r := range offered {
			name := accept.Type + "/" + accept.SubType
			if name != r.MediaType && name != "application/*" && name != "*/*" {
				continue
			}
			if out, ok := c.represent(r, accept.Params, mayTransform); ok && (!mayTransform || c.canSay(out)) {
				return out, nil
			}
		}
	}
	return representation{}, notAcceptable(codec.MediaTypes(offered))
}

// canSay says that a representation can have objects of the kind. Compat: of a kind
// without a Go type, only the metadata has a protobuf message.
func (c *call) canSay(out representation) bool {
	custom := c.resource != nil && c.resource.Custom != nil && !c.scales()
	return !custom || out.MediaType != codec.Protobuf || out.as != ""
}

// notAcceptable says what would be.
func notAcceptable(offered []string) error {
	return refused("only the following media types are accepted: " + strings.Join(offered, ", "))
}

func refused(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}

// Offer says which media types there are, as an error when the client names
// none of them. Compat: this first look takes names literally, so that
// application/* is none.
func Offer(r *http.Request, offered []string) error {
	header := r.Header.Get("Accept")
	if header == "" {
		return nil
	}
	for accept := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(accept, ";")
		if name = strings.TrimSpace(name); name == "*/*" || slices.Contains(offered, name) {
			return nil
		}
	}
	return outside{apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
		"406: Not Acceptable\n\nAvailable representations: "+strings.Join(offered, ", "), 0, false)}
}

// represent reads the parameters that a client asks for a representation with;
// false when it cannot be had with them.
func (c *call) represent(r *codec.Representation, params map[string]string, mayTransform bool) (representation, bool) {
	info, err := c.codec().Media(r.MediaType)
	if err != nil {
		return representation{}, false
	}
	out := representation{Representation: r, info: info, pretty: (params["pretty"] == "1" || c.pretty()) && info.PrettySerializer != nil}
	if stream := params["stream"]; stream != "" && (stream != "watch" || r.Stream == "") {
		return out, false
	}
	_, as := params["as"]
	_, g := params["g"]
	_, v := params["v"]
	if !as && !g && !v {
		return out, true
	}
	out.as, out.version = params["as"], params["v"]
	if !mayTransform || params["g"] != metav1.GroupName || out.version != "v1" && out.version != "v1beta1" {
		return out, false
	}
	return out, out.as == "Table" && r.Tables && !c.onlyAsked() || out.as == "PartialObjectMetadata" || out.as == "PartialObjectMetadataList"
}

// pretty says that a person is reading.
func (c *call) pretty() bool {
	if v := c.r.URL.Query().Get("pretty"); v != "" {
		pretty, _ := strconv.ParseBool(v) // what is no bool is not pretty
		return pretty
	}
	agent := c.r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
