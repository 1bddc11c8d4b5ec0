package rest

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/patch"
)

// interfaces are what admission may ask about the kind of a request. It
// implements admission.ObjectInterfaces.
type interfaces struct {
	resource *kinds.Resource
	all      *kinds.List
	owners   *patch.Ownership
}

// TypeConverter tells about the lists and maps of the kind, for policies that
// apply to them.
func (i interfaces) TypeConverter() (managedfields.TypeConverter, error) { return i.owners.Types() }

func (i interfaces) GetObjectCreater() runtime.ObjectCreater     { return i.resource.Scheme }
func (i interfaces) GetObjectTyper() runtime.ObjectTyper         { return i.resource.Scheme }
func (i interfaces) GetObjectDefaulter() runtime.ObjectDefaulter { return i.resource.Scheme }
func (i interfaces) GetObjectConvertor() runtime.ObjectConvertor { return i.resource.Scheme }

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return equivalents{i.all}
}

// equivalents knows which resources show the same objects.
type equivalents struct{ all *kinds.List }

// EquivalentResourcesFor implements runtime.EquivalentResourceMapper.
func (e equivalents) EquivalentResourcesFor(resource schema.GroupVersionResource, subresource string) []schema.GroupVersionResource {
	of := e.all.Find(resource.Group, resource.Version, resource.Resource)
	if of == nil {
		return nil
	}
	var found []schema.GroupVersionResource
	for _, r := range e.all.All() {
		if r.Table != of.Table || subresource != "" && r.Subresources[subresource] == nil {
			continue
		}
		for _, version := range r.Versions {
			found = append(found, schema.GroupVersionResource{Group: r.Group, Version: version, Resource: r.Name})
		}
	}
	return found
}

// KindFor implements runtime.EquivalentResourceMapper.
func (e equivalents) KindFor(resource schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	r := e.all.Find(resource.Group, resource.Version, resource.Resource)
	if r == nil {
		return schema.GroupVersionKind{}
	}
	kind := r.GroupVersionKind(resource.Version)
	if subresource == "" {
		return kind
	}
	sub := r.Subresources[subresource]
	if sub == nil {
		return schema.GroupVersionKind{}
	}
	return sub.KindIn(kind.GroupVersion())
}
