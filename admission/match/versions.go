package match

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
)

// Versions are the objects of a request in the versions that are asked for,
// each converted once. They are for those who change nothing. They are not safe
// for concurrent use; what they return is.
type Versions struct {
	attributes admission.Attributes
	interfaces admission.ObjectInterfaces
	have       map[schema.GroupVersionKind]*admission.VersionedAttributes
}

// NewVersions returns the versions of a request's objects.
func NewVersions(a admission.Attributes, o admission.ObjectInterfaces) *Versions {
	return &Versions{attributes: a, interfaces: o}
}

// VersionedAttribute implements upstream's VersionedAttributeAccessor.
func (v *Versions) VersionedAttribute(kind schema.GroupVersionKind) (*admission.VersionedAttributes, error) {
	if have := v.have[kind]; have != nil {
		return have, nil
	}
	made, err := admission.NewVersionedAttributes(v.attributes, kind, v.interfaces)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if v.have == nil {
		v.have = map[schema.GroupVersionKind]*admission.VersionedAttributes{}
	}
	v.have[kind] = made
	return made, nil
}
