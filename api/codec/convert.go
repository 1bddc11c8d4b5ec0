package codec

import "k8s.io/apimachinery/pkg/runtime"

// converter converts by pointer where it can: what it returns may share memory
// with what it is given, which stays as it is. An object whose Go type stands
// for several versions would be its own conversion, and get another kind; it is
// copied.
type converter struct{ *runtime.Scheme }

// ConvertToVersion implements runtime.ObjectConvertor.
func (c converter) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	if kinds, _, err := c.ObjectKinds(in); err == nil && len(kinds) > 1 {
		return c.Scheme.ConvertToVersion(in, target)
	}
	return c.UnsafeConvertToVersion(in, target)
}
