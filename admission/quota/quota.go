// Package quota keeps what a namespace holds within its resource quotas. What
// objects use, and whether that fits, is decided by upstream's evaluators.
//
// In comes a write that is otherwise admitted; out goes a refusal, or a bill: by
// how much each quota's usage grows. The bill is left in the context (With), for
// whoever commits the write to pay in the same commit, so that no charge is lost
// and none is made for an object that is not stored. A bill can be asked for
// again when a quota has changed before it was paid.
//
// An object that waits for initializers is billed for what they add, write by
// write. What does not fit is not refused to them: why is left in the context, too, for
// the object's creator.
package quota

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	upstream "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"

	"setpoint.dev/setpoint/admission/lent"
	"setpoint.dev/setpoint/admission/view"
	"setpoint.dev/setpoint/api/initializers"
)

// Charge is what a write does to a quota.
type Charge struct {
	// Old is the quota as it is, shared; New has its usage after the write.
	Old, New *corev1.ResourceQuota
}

// Bill says what a write costs as the quotas are now, or refuses it.
type Bill func() ([]Charge, error)

type key struct{}

// Account is where the bill of a write is left.
type Account struct {
	// Bill is nil when the write costs nothing.
	Bill Bill
	// Refused is why an object that waits for initializers must not become what
	// they make of it; nil when it may.
	Refused error
}

// With returns a context whose write is billed to the account.
func With(ctx context.Context) (context.Context, *Account) {
	account := &Account{}
	return context.WithValue(ctx, key{}, account), account
}

type paidKey struct{}

// Paid returns a context in which nothing is billed: the object is looked at as
// a new one, and has been paid for write by write.
func Paid(ctx context.Context) context.Context { return context.WithValue(ctx, paidKey{}, true) }

// grown is the evaluator of objects that wait: every write of one may cost
// something, and what it costs is the difference.
type grown struct{ upstream.Evaluator }

func (grown) Handles(admission.Attributes) bool { return true }

// Plugin bills writes.
type Plugin struct {
	*admission.Handler
	objects view.Objects
	limited []resourcequotaapi.LimitedResource
	devices view.Memo[*extendedresourcecache.ExtendedResourceCache]

	mu         sync.Mutex // guards evaluators
	evaluators map[schema.GroupResource]upstream.Evaluator
}

// New returns the plugin; file is a ResourceQuotaConfiguration, or nil for the
// defaults.
func New(objects view.Objects, file []byte) (*Plugin, error) {
	var from io.Reader
	if file != nil {
		from = bytes.NewReader(file)
	}
	configuration, err := resourcequota.LoadConfiguration(from)
	if err != nil {
		return nil, err
	}
	if errs := validation.ValidateConfiguration(configuration); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	p := &Plugin{
		Handler: admission.NewHandler(admission.Create, admission.Update), objects: objects,
		limited: configuration.LimitedResources, evaluators: map[schema.GroupResource]upstream.Evaluator{},
	}
	static, err := core.NewEvaluators(nil, nil, func(r schema.GroupVersionResource) bool { return r.GroupResource() != resourceClaims })
	if err != nil {
		return nil, err
	}
	for _, e := range static {
		p.evaluators[e.GroupResource()] = e
	}
	return p, nil
}

var (
	quotas         = corev1.SchemeGroupVersion.WithResource("resourcequotas")
	namespaces     = corev1.SchemeGroupVersion.WithKind("Namespace").GroupKind()
	resourceClaims = resourcev1.SchemeGroupVersion.WithResource("resourceclaims").GroupResource()
	deviceClasses  = resourcev1.SchemeGroupVersion.WithResource("deviceclasses")
)

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetNamespace() == "" || a.GetOperation() == admission.Create && a.GetKind().GroupKind() == namespaces || ctx.Value(paidKey{}) != nil {
		return nil
	}
	if _, free := install.DefaultIgnoredResources()[a.GetResource().GroupResource()]; free {
		return nil
	}
	if !p.any(ctx, a.GetNamespace()) && len(p.limited) == 0 {
		return nil
	}
	evaluator, err := p.evaluator(ctx, a.GetResource().GroupResource())
	if err != nil {
		return err
	}
	account, _ := ctx.Value(key{}).(*Account)
	growing := account != nil && waits(a)
	if growing {
		evaluator = grown{evaluator}
	}
	if !evaluator.Handles(a) {
		return nil
	}
	bill := func() ([]Charge, error) { return p.bill(ctx, a, evaluator) }
	charges, err := bill()
	switch {
	case err != nil && growing:
		account.Refused = err
		return nil
	case err != nil:
		return err
	case account != nil && len(charges) > 0 && !a.IsDryRun():
		account.Bill = bill
	}
	return nil
}

// waits says that the request writes an object that waits for initializers.
func waits(a admission.Attributes) bool {
	if a.GetOperation() != admission.Update || a.GetSubresource() != "" || a.GetOldObject() == nil {
		return false
	}
	pending, err := initializers.Of(a.GetOldObject())
	return err == nil && pending != nil
}

// any says that a namespace has quotas.
func (p *Plugin) any(ctx context.Context, namespace string) bool {
	for range p.objects.List(ctx, quotas, namespace) {
		return true
	}
	return false
}

// bill is what a write costs.
func (p *Plugin) bill(ctx context.Context, a admission.Attributes, evaluator upstream.Evaluator) ([]Charge, error) {
	have, err := view.List[*corev1.ResourceQuota](ctx, p.objects, quotas, a.GetNamespace())
	if err != nil {
		return nil, admission.NewForbidden(a, fmt.Errorf("error resolving quota: %w", err))
	}
	before := make([]corev1.ResourceQuota, len(have))
	for i, q := range have {
		before[i] = *q
	}
	after, err := resourcequota.CheckRequest(before, a, evaluator, p.limited)
	if err != nil {
		return nil, err
	}
	var charges []Charge
	for i := range after {
		if !upstream.Equals(before[i].Status.Used, after[i].Status.Used) {
			charges = append(charges, Charge{Old: have[i], New: &after[i]})
		}
	}
	return charges, nil
}

// evaluator knows what objects of a resource use: those of most count.
func (p *Plugin) evaluator(ctx context.Context, of schema.GroupResource) (upstream.Evaluator, error) {
	if of == resourceClaims {
		return p.claims(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.evaluators[of]
	if e == nil {
		// Compat: whatever is in a namespace can be counted.
		e = generic.NewObjectCountEvaluator(of, nil, "")
		if len(p.evaluators) < maxEvaluators {
			p.evaluators[of] = e
		}
	}
	return e, nil
}

// maxEvaluators bounds how many evaluators are kept; others are made again.
const maxEvaluators = 4096

// claims knows what claims for devices use, which depends on device classes,
// pods and other claims.
func (p *Plugin) claims(ctx context.Context) (upstream.Evaluator, error) {
	classes, err := p.devices.Of(ctx, p.objects, []schema.GroupResource{deviceClasses.GroupResource()}, func() (*extendedresourcecache.ExtendedResourceCache, error) {
		all, err := view.List[*resourcev1.DeviceClass](ctx, p.objects, deviceClasses, "")
		known := extendedresourcecache.NewExtendedResourceCache(klog.Background())
		for _, class := range all {
			known.OnAdd(class, true)
		}
		return known, err
	})
	if err != nil {
		return nil, err
	}
	owned := func(namespace string, pod types.UID) (found []*resourcev1.ResourceClaim, err error) {
		all, err := view.List[*resourcev1.ResourceClaim](ctx, p.objects, resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), namespace)
		for _, claim := range all {
			if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.UID == pod {
				found = append(found, claim)
			}
		}
		return found, err
	}
	pods := lent.Listers(ctx, p.objects).Core().V1().Pods().Lister()
	return core.NewResourceClaimEvaluator(nil, classes, pods, owned), nil
}
