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
	info runtime.SerializerInfo
	// as is the kind to answer with instead of the object's own: Table,
	// PartialObjectMetadata or PartialObjectMetadataList; "" for none.
	as string
	// version is that of the kind in as: v1 or v1beta1.
	version string
	pretty  bool
}

func (r representation) media() string { return r.info.MediaType }

// metaVersion is the version of the kind in as.
func (r representation) metaVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: metav1.GroupName, Version: r.version}
}

// plain says that stored bytes can be handed out as they are.
func (r representation) plain() bool {
	return r.as == "" && !r.pretty && r.info.MediaType == codec.JSON
}

// negotiate picks the first representation of the Accept header that can be
// made. Nothing asked for means JSON.
func (c *call) negotiate() (representation, error) {
	offered := mediaTypes
	if c.info.Verb == "list" || c.info.Verb == "watch" {
		offered = slices.Concat(mediaTypes, streamTypes)
	}
	if !c.knows(offered) {
		return representation{}, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
			"406: Not Acceptable\n\nAvailable representations: "+strings.Join(offered, ", "), 0, false)
	}
	return c.accepted(true)
}

// plainly is the representation of what has no other form: a Status.
func (c *call) plainly() (representation, error) { return c.accepted(false) }

func (c *call) accepted(mayTransform bool) (representation, error) {
	header := c.r.Header.Get("Accept")
	if header == "" {
		return c.represent(codec.JSON, nil)
	}
	for _, accept := range goautoneg.ParseAccept(header) {
		media := accept.Type + "/" + accept.SubType
		switch media {
		case "*/*", "application/*":
			media = codec.JSON
		}
		r, err := c.represent(media, accept.Params)
		if err == nil && (r.as == "" || mayTransform) {
			return r, nil
		}
	}
	return representation{}, notAcceptable("only the following media types are accepted: " + strings.Join(mediaTypes, ", "))
}

func notAcceptable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}

// knows says that the client names a media type that is offered. Compat: this
// first look takes names literally, so that application/* is none.
func (c *call) knows(offered []string) bool {
	header := c.r.Header.Get("Accept")
	if header == "" {
		return true
	}
	for accept := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(accept, ";")
		if name = strings.TrimSpace(name); name == "*/*" || slices.Contains(offered, name) {
			return true
		}
	}
	return false
}

var (
	mediaTypes  = []string{codec.JSON, codec.YAML, codec.Protobuf}
	streamTypes = []string{codec.JSON + ";stream=watch", codec.Protobuf + ";stream=watch"}
)

func (c *call) represent(media string, params map[string]string) (representation, error) {
	info, err := c.codec().Media(media)
	if err != nil {
		return representation{}, err
	}
	r := representation{info: info, pretty: c.pretty()}
	as, asked := params["as"]
	if !asked {
		return r, nil
	}
	if params["g"] != metav1.GroupName || params["v"] != "v1" && params["v"] != "v1beta1" {
		return r, &codec.UnsupportedError{MediaType: media}
	}
	switch {
	case as == "Table" && media != codec.Protobuf && !c.onlyAsked(), as == "PartialObjectMetadata", as == "PartialObjectMetadataList":
		r.as, r.version = as, params["v"]
		return r, nil
	default:
		return r, &codec.UnsupportedError{MediaType: media}
	}
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
