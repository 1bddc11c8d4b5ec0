package admission

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/kinds"
)

// mapper knows which resources have a kind, among those that are served. It
// implements the one method of meta.RESTMapper that plugins call.
type mapper struct {
	meta.RESTMapper // nil
	kinds           func() *kinds.List
}

// RESTMappings implements meta.RESTMapper.
func (m mapper) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	var found []*meta.RESTMapping
	for _, r := range m.kinds().All() {
		if r.Group != kind.Group || r.Kind != kind.Kind || r.Create == nil {
			continue
		}
		for _, version := range r.Versions {
			if len(versions) > 0 && !slices.Contains(versions, version) {
				continue
			}
			scope := meta.RESTScopeRoot
			if r.Namespaced {
				scope = meta.RESTScopeNamespace
			}
			gv := schema.GroupVersion{Group: r.Group, Version: version}
			found = append(found, &meta.RESTMapping{Resource: gv.WithResource(r.Name), GroupVersionKind: gv.WithKind(r.Kind), Scope: scope})
		}
	}
	if len(found) == 0 {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return found, nil
}
