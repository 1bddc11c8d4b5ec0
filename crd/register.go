package crd

import (
	"context"
	"errors"

	internal "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"setpoint.dev/setpoint/kinds"
)

// Automanaged is the label of APIServices that the server makes by itself. Those
// of custom kinds have the value "true".
const Automanaged = "kube-aggregator.kubernetes.io/automanaged"

const (
	apiServices = "apiservices.apiregistration.k8s.io" // their table
	managed     = "true"
)

// GroupPriority and VersionPriority are the place of custom kinds in discovery.
// Compat: they are upstream's.
const (
	GroupPriority   = 1000
	VersionPriority = 100
)

// Registration is the APIService of a version of custom kinds.
func Registration(gv schema.GroupVersion) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group, Labels: map[string]string{Automanaged: managed}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: GroupPriority, VersionPriority: VersionPriority,
		},
		Status: apiregistrationv1.APIServiceStatus{Conditions: []apiregistrationv1.APIServiceCondition{
			helper.NewLocalAvailableAPIServiceCondition(),
		}},
	}
}

// registrations are the APIServices that a definition needs and that are not
// there: they are made in its own commit.
func registrations(ctx context.Context, crd *internal.CustomResourceDefinition, stored kinds.Reader) ([]kinds.Companion, error) {
	var along []kinds.Companion
	for _, v := range crd.Spec.Versions {
		if !v.Served || crd.DeletionTimestamp != nil {
			continue
		}
		r := Registration(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name})
		have, err := stored.Get(ctx, apiServices, r.Name)
		if err != nil {
			return nil, err
		}
		if have == nil {
			along = append(along, kinds.Companion{Object: r})
		}
	}
	return along, nil
}

// serves are the versions of a definition that have an APIService.
func (d *definition) serves() (all []schema.GroupVersion) {
	if d == nil {
		return nil
	}
	for _, v := range d.head.Spec.Versions {
		if v.Served {
			all = append(all, schema.GroupVersion{Group: d.head.Spec.Group, Version: v.Name})
		}
	}
	return all
}

// count notes for each version how many definitions serve it.
func (l *listing) count(of *definition, by int) {
	for _, gv := range of.serves() {
		n, _ := l.versions.Get(gv.String())
		if n += by; n > 0 {
			l.versions.Set(gv.String(), n)
		} else {
			l.versions.Delete(gv.String())
		}
	}
}

// register sees to the APIServices of versions that definitions have come to
// serve, or to serve no more. One that is not the server's own is left alone.
func (r *Registry) register(ctx context.Context, hands Hands) error {
	r.mu.Lock()
	due, seen := r.touched, r.made.Load()
	r.touched = map[schema.GroupVersion]bool{}
	r.mu.Unlock()
	var errs []error
	for gv := range due {
		_, served := seen.versions.Get(gv.String())
		if err := settle(ctx, Registration(gv), served, hands); err != nil {
			errs = append(errs, err)
			r.mu.Lock()
			r.touched[gv] = true
			r.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

func settle(ctx context.Context, want *apiregistrationv1.APIService, served bool, hands Hands) error {
	obj, err := hands.Stored(ctx, want)
	if err != nil {
		return err
	}
	have, _ := obj.(*apiregistrationv1.APIService) // nil when there is none
	switch {
	case have == nil && served:
		return hands.Add(ctx, want)
	case have != nil && !served && have.Labels[Automanaged] == managed:
		return hands.Drop(ctx, have)
	}
	return nil
}
