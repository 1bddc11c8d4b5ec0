package rest

import (
	"errors"
	"fmt"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// bind assigns a pod to a node.
func (c *call) bind(name string) error {
	obj, options, err := c.read()
	if err != nil {
		return err
	}
	b, ok := obj.(*core.Binding)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if err := c.admitAsked(b, options); err != nil {
		return err
	}
	if b.Name != name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	return c.assign(b, options)
}

// isBindings says that the request is for the old way to bind pods, which has a
// path of its own.
func (c *call) isBindings() bool { return c.resource.Group == "" && c.resource.Name == "bindings" }

// bindings binds the pod that the body names.
func (c *call) bindings() error {
	obj, options, err := c.read()
	if err != nil {
		return err
	}
	b, ok := obj.(*core.Binding)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if err := c.admitAsked(b, options); err != nil {
		return err
	}
	one := *c
	info := *c.info.RequestInfo
	info.Name = b.Name
	named := *c.info
	named.RequestInfo = &info
	one.info, one.resource = &named, c.Kinds().Find("", c.info.APIVersion, "pods")
	return one.assign(b, options)
}

// assign carries a binding out.
func (c *call) assign(b *core.Binding, options *metav1.CreateOptions) (err error) {
	if errs := validation.ValidatePodBinding(b); len(errs) > 0 {
		return errs.ToAggregate()
	}
	var p preconditions
	if b.UID != "" {
		p.uid = &b.UID
	}
	if b.ResourceVersion != "" {
		p.rev = &b.ResourceVersion
	}
	for range commitTries {
		if err = c.bindOnce(b, p, isDryRun(options.DryRun)); !isConflict(err) {
			break
		}
	}
	if isConflict(err) {
		err = apierrors.NewConflict(c.resource.GroupResource(), c.info.Name, errors.New(optimisticLock))
	}
	if err != nil {
		return err
	}
	c.writeStatus(http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	return nil
}

func (c *call) bindOnce(b *core.Binding, p preconditions, dryRun bool) error {
	have, obj, err := c.load()
	if err != nil {
		return err
	}
	pod, ok := obj.(*core.Pod)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	if err := c.check(p, pod); err != nil {
		return err
	}
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(core.Resource("pods/binding"), pod.Name, fmt.Errorf(format, args...))
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) > 0:
		return conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = b.Target.Name
	pod.Status.NominatedNodeName = ""
	for k, v := range b.Annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, k, v)
	}
	for k, v := range b.Labels {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, k, v)
	}
	podutil.UpdatePodCondition(&pod.Status, &core.PodCondition{Type: core.PodScheduled, Status: core.ConditionTrue})
	_, err = c.rewrite(pod, have, dryRun)
	return err
}

// token makes a token for a service account.
func (c *call) token() error {
	obj, options, err := c.read()
	if err != nil {
		return err
	}
	attributes := c.attributes(obj, nil, admission.Create, options, isDryRun(options.DryRun))
	if err := c.mutate(attributes); err != nil {
		return err
	}
	asked, ok := obj.(*authentication.TokenRequest)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	versioned := &authenticationv1.TokenRequest{}
	if err := c.resource.Scheme.Convert(asked, versioned, nil); err != nil {
		return err
	}
	given, err := c.Issuer.Issue(c.ctx, c.info.Namespace, c.info.Name, versioned, func(completed *authenticationv1.TokenRequest) error {
		if err := c.resource.Scheme.Convert(completed, asked, nil); err != nil {
			return err
		}
		return c.validate(attributes)
	})
	if err != nil {
		return err
	}
	body, err := c.codec().Encode(c.out.info, given, authenticationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	c.writeBody(http.StatusCreated, body)
	return nil
}
