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

// Current is the object of a request in the version that was last asked for,
// with all that has been done to it. It is for those who change it: what they
// change is VersionedObject, and they say so with Dirty.
type Current struct {
	attributes admission.Attributes
	interfaces admission.ObjectInterfaces
	have       *admission.VersionedAttributes
}

// NewCurrent returns the object of a request.
func NewCurrent(a admission.Attributes, o admission.ObjectInterfaces) *Current {
	return &Current{attributes: a, interfaces: o}
}

// Now is the object as it is; nil while no version was asked for.
func (c *Current) Now() *admission.VersionedAttributes { return c.have }

// VersionedAttribute implements upstream's VersionedAttributeAccessor: it
// converts the object to a version, from the one that it is in.
func (c *Current) VersionedAttribute(kind schema.GroupVersionKind) (_ *admission.VersionedAttributes, err error) {
	if c.have == nil {
		c.have, err = admission.NewVersionedAttributes(c.attributes, kind, c.interfaces)
	} else {
		err = admission.ConvertVersionedAttributes(c.have, kind, c.interfaces)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return c.have, nil
}

// Finish gives the request's own object what has been done to the version.
func (c *Current) Finish() error {
	if c.have == nil || c.have.VersionedObject == nil || !c.have.Dirty {
		return nil
	}
	return c.interfaces.GetObjectConvertor().Convert(c.have.VersionedObject, c.attributes.GetObject(), nil)
}
