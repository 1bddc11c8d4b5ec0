package initializer

import (
	"context"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"setpoint.dev/setpoint/admission/match"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/api/initializers/v1alpha1"
)

var configurations = v1alpha1.GroupVersion.WithResource(v1alpha1.Resource)

// List is all initializers there are, in the order in which they act: that of
// their configurations' names, then that within each.
type List struct {
	entries []*entry
	byName  map[string]*entry
}

// entry is one initializer, ready to be asked.
type entry struct {
	v1alpha1.Initializer
	configuration string
	uid           types.UID // of the configuration
	generation    int64     // of the configuration
	terms         Terms
	matcher       *match.Matcher
	conditions    match.Conditions
}

// NewList reads configurations, which are sorted by name. Of several initializers
// of one name the first is meant. What last, which may be nil, has of a
// configuration that has not changed but for its status is used again.
func NewList(all []*v1alpha1.InitializerConfiguration, otherwise Terms, last *List) *List {
	l := &List{byName: map[string]*entry{}}
	for _, c := range all {
		for i := range c.Initializers {
			in := c.Initializers[i]
			if l.byName[in.Name] != nil {
				continue
			}
			e := last.find(c, in.Name)
			if e == nil {
				e = newEntry(in, c, otherwise)
			}
			l.entries = append(l.entries, e)
			l.byName[in.Name] = e
		}
	}
	return l
}

// find is the entry of a name if it was made from the same configuration.
func (l *List) find(c *v1alpha1.InitializerConfiguration, name string) *entry {
	if l == nil {
		return nil
	}
	if e := l.byName[name]; e != nil && e.uid == c.UID && e.generation == c.Generation {
		return e
	}
	return nil
}

func newEntry(in v1alpha1.Initializer, c *v1alpha1.InitializerConfiguration, otherwise Terms) *entry {
	e := &entry{Initializer: in, configuration: c.Name, uid: c.UID, generation: c.Generation, terms: terms(in, otherwise)}
	criteria := match.Criteria{Policy: in.MatchPolicy, Namespaces: selector(in.NamespaceSelector), Objects: selector(in.ObjectSelector)}
	for _, r := range in.Rules {
		criteria.Rules = append(criteria.Rules, admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create}, Rule: r,
		}})
	}
	e.matcher = match.New(criteria)
	failure := admissionregistrationv1.Fail
	if e.terms.Policy == v1alpha1.Ignore {
		failure = admissionregistrationv1.Ignore
	}
	e.conditions = match.Conditions{Name: in.Name, Kind: "initializer", Step: "admit", Of: in.MatchConditions, Failure: &failure}
	return e
}

// selector is one that was given, or one that selects everything.
func selector(given *metav1.LabelSelector) *metav1.LabelSelector {
	if given == nil {
		return &metav1.LabelSelector{}
	}
	return given
}

// terms are what a configuration says, and otherwise what holds for those that
// do not say.
func terms(in v1alpha1.Initializer, otherwise Terms) Terms {
	t := otherwise
	if in.FailurePolicy != nil {
		t.Policy = *in.FailurePolicy
	}
	if in.TimeoutSeconds != nil {
		t.Timeout = time.Duration(*in.TimeoutSeconds) * time.Second
		if in.FailurePolicy == nil {
			t.Policy = v1alpha1.Fail // who gives a time wants it to end
		}
	}
	if t.Policy == v1alpha1.Wait {
		t.Timeout = 0
	}
	if c := in.Controller; c != nil && c.ServiceAccount != nil {
		t.Account = c.ServiceAccount.Namespace + "/" + c.ServiceAccount.Name
	}
	return t
}

// AllTerms are those of every name that configurations, sorted by name, have.
func AllTerms(of []*v1alpha1.InitializerConfiguration, otherwise Terms) map[string]Terms {
	all := map[string]Terms{}
	for _, c := range of {
		for _, in := range c.Initializers {
			if _, taken := all[in.Name]; !taken {
				all[in.Name] = terms(in, otherwise)
			}
		}
	}
	return all
}

// list is the configurations as they are.
func (p *Plugin) list(ctx context.Context) (*List, error) {
	return p.configured.Of(ctx, p.cfg.Objects, []schema.GroupResource{configurations.GroupResource()}, func() (*List, error) {
		all, err := view.List[*v1alpha1.InitializerConfiguration](ctx, p.cfg.Objects, configurations, "")
		if err != nil && !apierrors.IsNotFound(err) { // a kind that is not served configures nothing
			return nil, err
		}
		p.last = NewList(all, p.cfg.Default(), p.last)
		return p.last, nil
	})
}
