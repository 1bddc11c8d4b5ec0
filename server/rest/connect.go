package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"setpoint.dev/setpoint/store"
)

// pipedMethods are those that are passed on to pods, services and nodes,
// whatever verb they are to authorizers.
var pipedMethods = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions,
}

// pipes says that requests are passed on as they are, with the rest of their path.
func (c *call) pipes() bool { return c.sub != nil && c.sub.Name == "proxy" }

// logs says that the log of a container is asked for.
func (c *call) logs() bool { return c.sub != nil && c.sub.Name == "log" }

// connects says that the request is for something that runs, and that its
// connection is handed on.
func (c *call) connects() bool {
	return c.pipes() || c.sub != nil && slices.Contains([]string{"attach", "exec", "portforward"}, c.sub.Name)
}

// connect hands the connection on to what the request is for.
func (c *call) connect() error {
	if c.r.URL.Query().Get("dryRun") != "" {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	options, err := c.admitConnection()
	if err != nil {
		return err
	}
	if err := c.mayUpgrade(); err != nil {
		return err
	}
	if c.Streams == nil {
		return c.nothingRuns()
	}
	return c.Streams.Connect(c.w, c.r, c.info.Name, options, c.fail)
}

// admitConnection lets admission refuse a connection to what runs on a node. It
// is shown what the request asks for, which it may change.
func (c *call) admitConnection() (runtime.Object, error) {
	kind := c.spoken()
	options, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: kind.Group, Version: runtime.APIVersionInternal, Kind: kind.Kind})
	if err != nil {
		return nil, err
	}
	if err := legacyscheme.ParameterCodec.DecodeParameters(c.parameters(), c.groupVersion(), options); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	a := c.attributes(options, nil, admission.Connect, nil, false)
	if err := c.mutate(a); err != nil {
		return nil, err
	}
	return options, c.validate(a)
}

// parameters are those of a connection: the query, and of one that
// is passed on the rest of the path.
func (c *call) parameters() url.Values {
	given := c.r.URL.Query()
	if !c.pipes() {
		return given
	}
	path := strings.Join(c.info.Parts[min(maxParts, len(c.info.Parts)):], "/")
	if path != "" && path[0] != '/' {
		path = "/" + path
	}
	if strings.HasSuffix(c.info.Path, "/") && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	given.Set("path", path)
	return given
}

// mayUpgrade asks whether who opens a stream by GET may do so by POST, too.
// Compat: WebSockets are opened by GET, and roles are written for POST.
func (c *call) mayUpgrade() error {
	if c.pipes() || c.info.Verb == "create" {
		return nil
	}
	decision, reason, err := c.Authorizer.Authorize(c.ctx, authorizer.AttributesRecord{
		User: c.user, Verb: "create", Namespace: c.info.Namespace, APIGroup: c.info.APIGroup, APIVersion: c.info.APIVersion,
		Resource: c.info.Resource, Subresource: c.info.Subresource, Name: c.info.Name, ResourceRequest: true, Path: c.r.URL.Path,
	})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(c.resource.GroupResource(), c.info.Name, errors.New(reason))
	}
	return nil
}

// log answers with the log of a container.
func (c *call) log() error {
	options := &core.PodLogOptions{}
	if err := legacyscheme.ParameterCodec.DecodeParameters(c.r.URL.Query(), c.groupVersion(), options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidatePodLogOptions(options, false); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, c.info.Name, errs)
	}
	if c.Streams == nil {
		return c.nothingRuns()
	}
	return c.Streams.Log(c.w, c.r, c.info.Name, options)
}

// nothingRuns is the answer of a plane whose pods do not run: a fork, or the
// past. Its nodes are those of main, where who may do what is for others to say.
func (c *call) nothingRuns() error {
	sn, err := c.snapshot()
	if err != nil {
		return err
	}
	if !c.pipes() { // there, a port may stand beside the name
		if _, err := c.find(sn); err != nil {
			return err
		}
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("no node serves %s %q: %s", c.resource.Singular, c.info.Name, c.notRunning()))
}

// notRunning says where nothing runs.
func (c *call) notRunning() string {
	switch {
	case c.At != 0:
		return "nothing runs in the past"
	case c.info.Plane == store.Main:
		return "nothing runs on this server"
	default:
		return "nothing runs in plane " + c.info.Plane
	}
}
