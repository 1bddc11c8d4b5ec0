package webhook

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	upstream "k8s.io/apiserver/pkg/admission/plugin/webhook"

	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/view"
)

// hook is a webhook that is ready to be asked. It does not change.
type hook struct {
	accessor upstream.WebhookAccessor
	name     string
	kind     string // of its configuration
	step     string // as metrics call it
	ignores  bool   // failures of calls
	// reinvocation says whether a mutating one is asked again.
	reinvocation admissionregistrationv1.ReinvocationPolicyType
	matcher      *match.Matcher
	conditions   *match.Conditions
}

// newHook reads a webhook. Compat: metrics of conditions and of calls call the
// step by different names.
func newHook(a upstream.WebhookAccessor, kind, step string) *hook {
	failure := a.GetFailurePolicy()
	return &hook{
		accessor: a, name: a.GetName(), kind: kind, step: step,
		ignores: failure != nil && *failure == admissionregistrationv1.Ignore,
		matcher: match.New(match.Criteria{
			Rules: match.Rules(a.GetRules()), Policy: a.GetMatchPolicy(), Namespaces: a.GetNamespaceSelector(), Objects: a.GetObjectSelector(),
		}),
		conditions: &match.Conditions{Name: a.GetName(), Kind: "webhook", Step: a.GetType(), Of: a.GetMatchConditions(), Failure: failure},
	}
}

// source is the webhooks of one kind of configuration.
type source struct {
	resource schema.GroupVersionResource
	// read is the webhooks of one configuration.
	read func(runtime.Object) ([]*hook, error)

	memo view.Memo[[]*hook]
	// kept are the webhooks of configurations as of their revisions: what they
	// have compiled is not compiled again because another one changes. The memo
	// guards it: it makes one list at a time.
	kept map[version][]*hook
}

// version is a state of a configuration.
type version struct {
	uid      types.UID
	revision string
}

// hooks are all webhooks of the plane, by the name of their configuration and
// in the order in which it has them.
func (s *source) hooks(ctx context.Context, objects view.Objects) ([]*hook, error) {
	return s.memo.Of(ctx, objects, []schema.GroupResource{s.resource.GroupResource()}, func() ([]*hook, error) {
		var all []*hook
		kept := map[version][]*hook{}
		for obj, err := range objects.List(ctx, s.resource, "") {
			if err != nil {
				return nil, err
			}
			m, err := meta.Accessor(obj)
			if err != nil {
				return nil, err
			}
			v := version{m.GetUID(), m.GetResourceVersion()}
			hooks, same := s.kept[v]
			if !same {
				if hooks, err = s.read(obj); err != nil {
					return nil, err
				}
			}
			kept[v] = hooks
			all = append(all, hooks...)
		}
		s.kept = kept
		return all, nil
	})
}

// uid tells a webhook from others, also of the same name.
func uid(configuration, name string, times map[string]int) string {
	text := fmt.Sprintf("%s/%s/%d", configuration, name, times[name])
	times[name]++
	return text
}

func mutatingSource() *source {
	return &source{
		resource: admissionregistrationv1.SchemeGroupVersion.WithResource("mutatingwebhookconfigurations"),
		read: func(obj runtime.Object) ([]*hook, error) {
			c, ok := obj.(*admissionregistrationv1.MutatingWebhookConfiguration)
			if !ok {
				return nil, fmt.Errorf("unexpected configuration %T", obj)
			}
			hooks, times := make([]*hook, len(c.Webhooks)), map[string]int{}
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				hooks[i] = newHook(upstream.NewMutatingWebhookAccessor(uid(c.Name, w.Name, times), c.Name, w), "MutatingWebhookConfiguration", "admit")
				if w.ReinvocationPolicy != nil {
					hooks[i].reinvocation = *w.ReinvocationPolicy
				}
			}
			return hooks, nil
		},
	}
}

func validatingSource() *source {
	return &source{
		resource: admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"),
		read: func(obj runtime.Object) ([]*hook, error) {
			c, ok := obj.(*admissionregistrationv1.ValidatingWebhookConfiguration)
			if !ok {
				return nil, fmt.Errorf("unexpected configuration %T", obj)
			}
			hooks, times := make([]*hook, len(c.Webhooks)), map[string]int{}
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				hooks[i] = newHook(upstream.NewValidatingWebhookAccessor(uid(c.Name, w.Name, times), c.Name, w), "ValidatingWebhookConfiguration", "validating")
			}
			return hooks, nil
		},
	}
}
