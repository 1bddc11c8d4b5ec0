package fair

import (
	"net/http"
	"slices"
	"sort"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/apihelpers"
	informers "k8s.io/client-go/informers/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
)

// schema is a FlowSchema whose priority level is there.
type schema struct {
	name, level string
	rules       []flowcontrolv1.PolicyRulesWithSubjects
	// What is told of it, as headers have it. They are shared, and full.
	uid, levelUID []string
}

// tell says by which schema and level the request was judged.
func (s *schema) tell(h http.Header) { h[schemaHeader], h[levelHeader] = s.uid, s.levelUID }

// follow keeps the schemas as they are in the API.
func (r *rules) follow(of informers.Interface) error {
	schemas, levels := of.FlowSchemas(), of.PriorityLevelConfigurations()
	again := func() {
		// From memory, which does not fail.
		s, _ := schemas.Lister().List(labels.Everything())
		l, _ := levels.Lister().List(labels.Everything())
		inOrder := arrange(s, l)
		r.schemas.Store(&inOrder)
	}
	again()
	on := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { again() }, UpdateFunc: func(any, any) { again() }, DeleteFunc: func(any) { again() }}
	if _, err := schemas.Informer().AddEventHandler(on); err != nil {
		return err
	}
	_, err := levels.Informer().AddEventHandler(on)
	return err
}

// arrange puts schemas in order, with those that are always there, and without
// those whose level is not.
func arrange(schemas []*flowcontrolv1.FlowSchema, levels []*flowcontrolv1.PriorityLevelConfiguration) []*schema {
	uids := map[string][]string{}
	for _, l := range slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, levels) {
		uids[l.Name] = []string{string(l.UID)}
	}
	for _, always := range bootstrap.MandatoryFlowSchemas {
		if !slices.ContainsFunc(schemas, func(s *flowcontrolv1.FlowSchema) bool { return s.Name == always.Name }) {
			schemas = append(schemas, always)
		}
	}
	schemas = slices.Clone(schemas)
	sort.Sort(apihelpers.FlowSchemaSequence(schemas))
	out := make([]*schema, 0, len(schemas))
	for _, s := range schemas {
		level := s.Spec.PriorityLevelConfiguration.Name
		if uids[level] != nil {
			out = append(out, &schema{name: s.Name, level: level, rules: s.Spec.Rules, uid: []string{string(s.UID)}, levelUID: uids[level]})
		}
	}
	return out
}

// classify finds the first schema that matches a request, and its level; the level
// is nil when it is not there yet. Where none matches, which no user that has been
// identified comes to, the catch-all counts.
func (r *rules) classify(who user.Info, what *request.RequestInfo) (*schema, *level) {
	all := *r.schemas.Load()
	i := slices.IndexFunc(all, func(s *schema) bool { return s.matches(who, what) })
	if i < 0 {
		i = slices.IndexFunc(all, func(s *schema) bool { return s.name == flowcontrolv1.FlowSchemaNameCatchAll })
	}
	return all[i], r.levels.find(all[i].level)
}

func (s *schema) matches(who user.Info, what *request.RequestInfo) bool {
	for i := range s.rules {
		if rule := &s.rules[i]; isOneOf(who, rule.Subjects) && asksFor(what, rule) {
			return true
		}
	}
	return false
}

func isOneOf(who user.Info, subjects []flowcontrolv1.Subject) bool {
	for i := range subjects {
		if isOf(who, &subjects[i]) {
			return true
		}
	}
	return false
}

// isOf says that a user is the subject, or one of them.
func isOf(who user.Info, subject *flowcontrolv1.Subject) bool {
	switch {
	case subject.Kind == flowcontrolv1.SubjectKindUser && subject.User != nil:
		return subject.User.Name == flowcontrolv1.NameAll || subject.User.Name == who.GetName()
	case subject.Kind == flowcontrolv1.SubjectKindGroup && subject.Group != nil:
		return subject.Group.Name == flowcontrolv1.NameAll || slices.Contains(who.GetGroups(), subject.Group.Name)
	case subject.Kind == flowcontrolv1.SubjectKindServiceAccount && subject.ServiceAccount != nil:
		account := subject.ServiceAccount
		if account.Name != flowcontrolv1.NameAll {
			return serviceaccount.MatchesUsername(account.Namespace, account.Name, who.GetName())
		}
		name, is := strings.CutPrefix(who.GetName(), serviceaccount.ServiceAccountUsernamePrefix)
		namespace, _, of := strings.Cut(name, serviceaccount.ServiceAccountUsernameSeparator)
		return is && of && namespace == account.Namespace
	}
	return false
}

func asksFor(what *request.RequestInfo, rule *flowcontrolv1.PolicyRulesWithSubjects) bool {
	if what.IsResourceRequest {
		for i := range rule.ResourceRules {
			if asksForResource(what, &rule.ResourceRules[i]) {
				return true
			}
		}
		return false
	}
	for i := range rule.NonResourceRules {
		if n := &rule.NonResourceRules[i]; has(n.Verbs, what.Verb) && leadsTo(n.NonResourceURLs, what.Path) {
			return true
		}
	}
	return false
}

func asksForResource(what *request.RequestInfo, rule *flowcontrolv1.ResourcePolicyRule) bool {
	if !has(rule.Verbs, what.Verb) || !has(rule.APIGroups, what.APIGroup) || !hasResource(rule.Resources, what) {
		return false
	}
	if what.Namespace == "" {
		return rule.ClusterScope
	}
	return has(rule.Namespaces, what.Namespace)
}

// hasResource says that what is asked for is among the resources, which name
// subresources as in "pods/status".
func hasResource(resources []string, what *request.RequestInfo) bool {
	if what.Subresource == "" || isAll(resources) {
		return has(resources, what.Resource)
	}
	return slices.ContainsFunc(resources, func(r string) bool {
		resource, sub, _ := strings.Cut(r, "/")
		return resource == what.Resource && sub == what.Subresource
	})
}

// isAll says that the only word stands for all.
func isAll(words []string) bool { return len(words) == 1 && words[0] == "*" }

// has says that the word is there, or that the only one stands for all.
func has(words []string, word string) bool { return isAll(words) || slices.Contains(words, word) }

// leadsTo says that a path is one of these, or below one of them. Compat: a path
// without a star at its end has what is below it, too.
func leadsTo(paths []string, path string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		if p == flowcontrolv1.NonResourceAll || p == path {
			return true
		}
		under := strings.TrimSuffix(strings.TrimSuffix(p, "*"), "/")
		below, is := strings.CutPrefix(path, under)
		return is && strings.HasPrefix(below, "/")
	})
}
