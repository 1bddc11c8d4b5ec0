// Package admission is what an object passes between being decoded and being
// stored: things that must happen to it before anyone sees it, and things that
// must hold.
//
// A plugin is upstream's admission.Interface: it may change the object while
// it is admitted (admission.MutationInterface), and may refuse it once it is
// complete and valid (admission.ValidationInterface). Each has a line in
// plugins, in the order in which they act, and a folder of its own where it is
// not upstream's. What a plugin reads it reads through a view, so that it never
// decides by what was true before.
package admission

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/imagepolicy"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/autoprovision"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/podtopologylabels"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"

	"setpoint.dev/setpoint/admission/initializer"
	"setpoint.dev/setpoint/admission/lent"
	"setpoint.dev/setpoint/admission/namespace"
	"setpoint.dev/setpoint/admission/podsecurity"
	"setpoint.dev/setpoint/admission/policy"
	"setpoint.dev/setpoint/admission/quota"
	"setpoint.dev/setpoint/admission/reinvoke"
	"setpoint.dev/setpoint/admission/steps"
	"setpoint.dev/setpoint/admission/storage"
	"setpoint.dev/setpoint/admission/tolerations"
	"setpoint.dev/setpoint/admission/webhook"
)

// plugin is a line of the list. One that has neither lend nor make is for kinds
// that are not served: its name is known, and it does nothing.
type plugin struct {
	name string // upstream's
	off  bool   // unless it is asked for
	// lend registers upstream's plugin; of says which resources the plugin looks
	// at, where that is not all.
	lend func(*admission.Plugins)
	of   []schema.GroupResource
	// make makes a plugin of our own; file is its configuration, or nil.
	make func(cfg shared, file []byte) (admission.Interface, error)
	// mark is what the plugin may change of an object, to tell whether it has;
	// nil for one that changes nothing, or tells so itself.
	mark func(runtime.Object) any
	// shows says that the plugin knows what objects wait for, or shows objects to
	// those who do. All others see objects without.
	shows bool
	// fills says that the plugin fills in new pods. A pod that waits for
	// initializers is still new to it: what they add is filled in, too.
	fills bool
	// again says that the plugin is asked about what initializers have made of an
	// object, too.
	again bool
}

var (
	pods    = []schema.GroupResource{core.Resource("pods")}
	nodes   = []schema.GroupResource{core.Resource("nodes")}
	claims  = []schema.GroupResource{core.Resource("persistentvolumeclaims")}
	limited = slices.Concat(pods, claims)
	csrs    = []schema.GroupResource{certificates.Resource("certificatesigningrequests")}
)

// plugins are all there are, in the order in which they act, which is
// upstream's. The whole list mutates first; the whole list validates after the
// object's own validation.
var plugins = []plugin{
	{name: "AlwaysAdmit", off: true, lend: admit.Register},
	{name: "NamespaceAutoProvision", off: true, lend: autoprovision.Register},
	{name: "NamespaceLifecycle", make: func(cfg shared, _ []byte) (admission.Interface, error) { return namespace.New(cfg.Objects), nil }},
	{name: "NamespaceExists", off: true, lend: exists.Register},
	{name: "LimitPodHardAntiAffinityTopology", off: true, lend: antiaffinity.Register, of: pods},
	{name: "LimitRanger", lend: limitranger.Register, of: limited, mark: markResources, fills: true},
	{name: "ServiceAccount", lend: serviceaccount.Register, of: pods, mark: markServiceAccount, fills: true},
	{name: "NodeRestriction", off: true, lend: noderestriction.Register},
	{name: "TaintNodesByCondition", lend: nodetaint.Register, of: nodes, mark: markTaints},
	{name: "AlwaysPullImages", off: true, lend: alwayspullimages.Register, of: pods, mark: markPullPolicies},
	{name: "ImagePolicyWebhook", off: true, lend: imagepolicy.Register, of: pods},
	{name: "PodSecurity", make: func(cfg shared, file []byte) (admission.Interface, error) { return podsecurity.New(cfg.Objects, file) }},
	{name: "PodNodeSelector", off: true, lend: podnodeselector.Register, of: pods, mark: markPlacement, fills: true},
	{name: "Priority", lend: priority.Register, of: slices.Concat(pods, []schema.GroupResource{scheduling.Resource("priorityclasses")}), mark: markPriority},
	{name: "DefaultTolerationSeconds", make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return tolerations.New(*cfg.NotReadySeconds, *cfg.UnreachableSeconds), nil
	}, mark: markPlacement},
	{name: "PodTolerationRestriction", off: true, lend: podtolerationrestriction.Register, of: pods, mark: markPlacement, fills: true},
	{name: "EventRateLimit", off: true, lend: eventratelimit.Register},
	{name: "ExtendedResourceToleration", off: true, lend: extendedresourcetoleration.Register, of: pods, mark: markPlacement},
	{name: "DefaultStorageClass", make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return storage.NewDefaultClass(cfg.Objects), nil
	}, mark: markStorageClass},
	{name: "StorageObjectInUseProtection", make: func(shared, []byte) (admission.Interface, error) { return storage.NewProtection(), nil }, mark: markFinalizers},
	{name: "PodGroupProtection"},
	{name: "OwnerReferencesPermissionEnforcement", off: true, lend: gc.Register},
	{name: "PersistentVolumeClaimResize", lend: resize.Register, of: claims},
	{name: "RuntimeClass", lend: runtimeclass.Register, of: pods, mark: markPlacement},
	{name: "CertificateApproval", lend: approval.Register, of: csrs},
	{name: "CertificateSigning", lend: signing.Register, of: csrs},
	{name: "ClusterTrustBundleAttest", lend: ctbattest.Register, of: []schema.GroupResource{certificates.Resource("clustertrustbundles")}},
	{name: "CertificateSubjectRestriction", lend: subjectrestriction.Register, of: csrs},
	{name: "DefaultIngressClass", lend: defaultingressclass.Register, of: []schema.GroupResource{networking.Resource("ingresses")}, mark: markIngressClass},
	{name: "DenyServiceExternalIPs", off: true, lend: denyserviceexternalips.Register, of: []schema.GroupResource{core.Resource("services")}},
	{name: "PodTopologyLabels", lend: podtopologylabels.Register, of: pods, mark: markTopology},
	{name: "PodGroupWorkloadExists"},
	{name: "NodeDeclaredFeatureValidator", lend: nodedeclaredfeatures.Register, of: pods},
	{name: "JobValidation"},
	{name: "PodResizeValidator", lend: podresize.Register, of: pods},
	{name: policy.MutatingName, make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return policy.NewMutating(cfg.policies()), nil
	}, shows: true, again: true},
	{name: webhook.MutatingName, make: func(cfg shared, _ []byte) (admission.Interface, error) { return webhook.NewMutating(cfg.webhooks), nil }, shows: true, again: true},
	{name: initializer.PluginName, make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return initializer.New(initializer.Config{Settings: cfg.Initializers, Objects: cfg.Objects, Authorizer: cfg.Authorizer, Waiting: cfg.Waiting, Health: cfg.Health}), nil
	}, shows: true},
	{name: policy.ValidatingName, make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return policy.NewValidating(cfg.policies()), nil
	}, shows: true},
	{name: webhook.ValidatingName, make: func(cfg shared, _ []byte) (admission.Interface, error) {
		return webhook.NewValidating(cfg.webhooks), nil
	}, shows: true},
	{name: "ResourceQuota", make: func(cfg shared, file []byte) (admission.Interface, error) { return quota.New(cfg.Objects, file) }, shows: true},
	{name: "AlwaysDeny", off: true, lend: deny.Register},
}

// shared is what plugins are made from: the configuration, and what more than
// one of them uses.
type shared struct {
	Config
	webhooks *webhook.Callers
}

func (s shared) policies() policy.Config {
	return policy.Config{Objects: s.Objects, Kinds: s.Kinds, Authorizer: s.Authorizer}
}

// Chain is the plugins that run.
type Chain struct {
	plugins []running
}

// running is a plugin with what its line says of it.
type running struct {
	admission.Interface
	name                string
	of                  []schema.GroupResource
	mark                func(runtime.Object) any
	shows, fills, again bool
}

// New makes the plugins that cfg asks for.
func New(cfg Config) (*Chain, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	webhooks, err := webhook.New(webhook.Config{Objects: cfg.Objects, Services: cfg.Services, Authorizer: cfg.Authorizer, Failed: cfg.Failed})
	if err != nil {
		return nil, err
	}
	c := &Chain{}
	for _, p := range plugins {
		if !cfg.runs(p) {
			continue
		}
		made, err := shared{cfg, webhooks}.make(p)
		if err != nil {
			return nil, err
		}
		c.plugins = append(c.plugins, running{made, p.name, p.of, p.mark, p.shows, p.fills, p.again})
	}
	return c, nil
}

// make makes a plugin.
func (s shared) make(p plugin) (admission.Interface, error) {
	file, err := s.file(p.name)
	if err != nil {
		return nil, err
	}
	if p.make != nil {
		return p.make(s, file)
	}
	return lent.New(lent.Config{
		Name: p.name, Register: p.lend, File: file,
		Objects: s.Objects, Authorizer: s.Authorizer, Mapper: mapper{kinds: s.Kinds}, Namespaces: s.Namespaces,
	})
}

// Handles implements admission.Interface.
func (c *Chain) Handles(operation admission.Operation) bool {
	return slices.ContainsFunc(c.plugins, func(p running) bool { return p.Handles(operation) })
}

// Admit implements admission.MutationInterface: every plugin may change the
// object; the first error is the answer. When somebody from outside has changed
// it, all go over it once more, so that what they ensure holds of what it has
// become. Of an object that initializers are done with they ask those again who
// want that.
func (c *Chain) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer observeStep(ctx, a, stepAdmit, time.Now(), &err)
	if err := c.mutate(ctx, a, o); err != nil || reinvoke.IsFinal(a) {
		return err
	}
	again := a.GetReinvocationContext()
	if !again.ShouldReinvoke() {
		return nil
	}
	again.SetIsReinvoke()
	return c.mutate(ctx, a, o)
}

func (c *Chain) mutate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	carried, final := carriedBy(a), reinvoke.IsFinal(a)
	for _, p := range c.plugins {
		if final && !p.again {
			continue
		}
		if m, ok := p.Interface.(admission.MutationInterface); ok && p.concerns(a) {
			sees := carried.whileNew(p, a)
			if err := carried.unseen(p, sees, func(a admission.Attributes) error { return p.admit(ctx, m, a, o) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// concerns says that the request may be one for the plugin.
func (p running) concerns(a admission.Attributes) bool {
	return p.Handles(a.GetOperation()) && (len(p.of) == 0 || slices.Contains(p.of, a.GetResource().GroupResource()))
}

// admit lets a plugin change the object, and remembers whether it has.
func (p running) admit(ctx context.Context, m admission.MutationInterface, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer p.observe(ctx, a, stepAdmit, time.Now(), &err)
	if p.mark == nil || a.GetObject() == nil {
		return m.Admit(ctx, a, o)
	}
	before := p.mark(a.GetObject())
	if err := m.Admit(ctx, a, o); err != nil {
		return err
	}
	if p.mark(a.GetObject()) != before {
		steps.Add(ctx, p.name)
	}
	return nil
}

// validate lets a plugin refuse the object.
func (p running) validate(ctx context.Context, v admission.ValidationInterface, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer p.observe(ctx, a, stepValidate, time.Now(), &err)
	return v.Validate(ctx, a, o)
}

// Validate implements admission.ValidationInterface: every plugin may refuse
// the object; the first error is the answer.
func (c *Chain) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) (err error) {
	defer observeStep(ctx, a, stepValidate, time.Now(), &err)
	carried := carriedBy(a)
	for _, p := range c.plugins {
		if v, ok := p.Interface.(admission.ValidationInterface); ok && p.concerns(a) {
			if err := carried.unseen(p, a, func(a admission.Attributes) error { return p.validate(ctx, v, a, o) }); err != nil {
				return err
			}
		}
	}
	return nil
}
