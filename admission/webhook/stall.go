package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"

	"setpoint.dev/setpoint/admission/view"
)

// BlocksItself is the annotation of a configuration with a webhook that cannot
// be reached and keeps the pods from being created that would serve it. Its value
// says which, and when that was last seen.
const BlocksItself = "admission.setpoint.dev/blocks-itself"

// Bounds of what is reported.
const (
	maxStalls  = 64               // that wait to be reported; more are not
	sayAgain   = time.Minute      // after which the same is said again
	lookAgain  = 10 * time.Second // whether what was reported still holds
	sendWithin = 10 * time.Second
)

// Stalls reports webhooks that block themselves: in an annotation of their
// configuration, and as an event about it. The annotation goes when the
// webhook's service can be reached again, or somebody changes the configuration.
//
// What is seen is what happened: a pod, or the template of pods, that the
// webhook's own service selects was refused because the webhook could not be
// called.
type Stalls struct {
	Objects view.Objects
	// Reachable says whether a service can be reached.
	Reachable func(namespace, name string, port int32) bool
	// Send sends a request to this server's own API.
	Send   func(ctx context.Context, method, path, media string, body any) error
	Logger *slog.Logger

	seen chan stall
}

// stall is a webhook that blocks itself.
type stall struct {
	kind, configuration, webhook string
	namespace, service           string
	port                         int32
	why                          string
}

// told is what was reported of a configuration.
type told struct {
	stall
	at time.Time
	// revision is the configuration's, with the annotation.
	revision string
}

// NewStalls returns reports of nothing.
func NewStalls(s Stalls) *Stalls {
	s.seen = make(chan stall, maxStalls)
	return &s
}

// Failed is Config.Failed. It does not wait: what there is no room for is
// seen again, or over.
func (s *Stalls) Failed(f Failure) {
	ref := f.Client.Service
	if !f.Refused || ref == nil || f.Attributes.GetOperation() != admission.Create || f.Attributes.GetNamespace() != ref.Namespace {
		return
	}
	of, serves := podLabels(f.Attributes.GetObject())
	if !serves {
		return
	}
	service, err := view.Get[*corev1.Service](context.Background(), s.Objects, corev1.SchemeGroupVersion.WithResource("services"), ref.Namespace, ref.Name)
	if err != nil || len(service.Spec.Selector) == 0 || !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(of)) {
		return
	}
	port := int32(443)
	if ref.Port != nil {
		port = *ref.Port
	}
	select {
	case s.seen <- stall{f.Configuration.Kind, f.Configuration.Name, f.Webhook, ref.Namespace, ref.Name, port, f.Err.Error()}:
	default:
	}
}

// podLabels are those of a pod, or of the pods that a workload makes.
func podLabels(obj runtime.Object) (map[string]string, bool) {
	switch o := obj.(type) {
	case *core.Pod:
		return o.Labels, true
	case *core.ReplicationController:
		if o.Spec.Template == nil {
			return nil, false
		}
		return o.Spec.Template.Labels, true
	case *apps.ReplicaSet:
		return o.Spec.Template.Labels, true
	case *apps.Deployment:
		return o.Spec.Template.Labels, true
	case *apps.StatefulSet:
		return o.Spec.Template.Labels, true
	case *apps.DaemonSet:
		return o.Spec.Template.Labels, true
	case *batch.Job:
		return o.Spec.Template.Labels, true
	}
	return nil, false
}

// configurations are where configurations of each kind are.
var configurations = map[string]schema.GroupVersionResource{
	"MutatingWebhookConfiguration":   mutatingSource().resource,
	"ValidatingWebhookConfiguration": validatingSource().resource,
}

// Run reports until ctx ends.
func (s *Stalls) Run(ctx context.Context) error {
	reported := map[string]told{} // by kind and name
	clock := time.NewTicker(lookAgain)
	defer clock.Stop()
	s.adopt(ctx, reported)
	for {
		select {
		case <-ctx.Done():
			return nil
		case seen := <-s.seen:
			key := seen.kind + "/" + seen.configuration
			if time.Since(reported[key].at) < sayAgain || len(reported) >= maxStalls {
				continue
			}
			if revision, err := s.report(ctx, seen); err == nil {
				reported[key] = told{seen, time.Now(), revision}
			} else if ctx.Err() == nil {
				s.Logger.Warn("a webhook blocks itself, which cannot be reported", "configuration", seen.configuration, "error", err)
			}
		case <-clock.C:
			for key, t := range reported {
				if s.over(ctx, t) {
					delete(reported, key)
				}
			}
		}
	}
}

// adopt takes over what was reported before this server started.
func (s *Stalls) adopt(ctx context.Context, reported map[string]told) {
	for kind, resource := range configurations {
		for obj, err := range s.Objects.List(ctx, resource, "") {
			if err != nil {
				return
			}
			if m, err := meta.Accessor(obj); err == nil && m.GetAnnotations()[BlocksItself] != "" {
				// Its webhooks are asked again soon, if they still block.
				reported[kind+"/"+m.GetName()] = told{stall: stall{kind: kind, configuration: m.GetName()}}
			}
		}
	}
}

// report says that a webhook blocks itself, and returns the revision of the
// configuration that says so.
func (s *Stalls) report(ctx context.Context, seen stall) (revision string, err error) {
	now := metav1.Now()
	message := fmt.Sprintf("webhook %s is served by service %s/%s, whose pods it keeps from being created: %s", seen.webhook, seen.namespace, seen.service, seen.why)
	if err := s.annotate(ctx, seen, now.UTC().Format(time.RFC3339)+" "+message); err != nil {
		return "", err
	}
	m, err := s.configuration(ctx, seen)
	if err != nil {
		return "", err
	}
	event := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{GenerateName: seen.configuration + ".", Namespace: metav1.NamespaceDefault},
		InvolvedObject: corev1.ObjectReference{APIVersion: "admissionregistration.k8s.io/v1", Kind: seen.kind, Name: seen.configuration, UID: m.GetUID()},
		Reason:         "WebhookBlocksItself", Message: message, Type: corev1.EventTypeWarning, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: "setpoint"},
	}
	return m.GetResourceVersion(), s.send(ctx, http.MethodPost, "/api/v1/namespaces/default/events", "application/json", event)
}

// over says that a report holds no more, and takes its annotation away. What
// somebody has changed since is looked at anew.
func (s *Stalls) over(ctx context.Context, t told) bool {
	m, err := s.configuration(ctx, t.stall)
	if err != nil || m.GetAnnotations()[BlocksItself] == "" {
		return true
	}
	if t.revision == m.GetResourceVersion() && !s.Reachable(t.namespace, t.service, t.port) {
		return false
	}
	return s.annotate(ctx, t.stall, nil) == nil
}

func (s *Stalls) configuration(ctx context.Context, of stall) (metav1.Object, error) {
	obj, err := s.Objects.Get(ctx, configurations[of.kind], "", of.configuration)
	if err != nil {
		return nil, err
	}
	return meta.Accessor(obj)
}

// annotate sets the annotation, or with nil takes it away.
func (s *Stalls) annotate(ctx context.Context, of stall, value any) error {
	resource := configurations[of.kind]
	path := fmt.Sprintf("/apis/%s/%s/%s", resource.GroupVersion(), resource.Resource, of.configuration)
	return s.send(ctx, http.MethodPatch, path, string(types.MergePatchType), map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{BlocksItself: value}},
	})
}

func (s *Stalls) send(ctx context.Context, method, path, media string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	return s.Send(ctx, method, path, media, body)
}
