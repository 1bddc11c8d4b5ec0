package kinds

import (
	_ "k8s.io/kubernetes/pkg/apis/resource/install" // into the scheme
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

func resourceGroup(d Deps) group {
	claim := resourceclaim.NewStrategy(d.Namespaces, d.Authorizer)
	return group{name: "resource.k8s.io", versions: []string{"v1"}, rows: []row{
		{name: "deviceclasses", kind: "DeviceClass", strategy: deviceclass.Strategy, returnsDeleted: true},
		{
			name: "resourceclaims", kind: "ResourceClaim", strategy: claim, attrs: resourceclaim.GetAttrs,
			status: resourceclaim.NewStatusStrategy(claim), returnsDeleted: true,
		},
		{
			name: "resourceclaimtemplates", kind: "ResourceClaimTemplate", strategy: resourceclaimtemplate.NewStrategy(d.Namespaces),
			attrs: resourceclaimtemplate.GetAttrs, returnsDeleted: true,
		},
		{
			name: "resourceslices", kind: "ResourceSlice", strategy: resourceslice.Strategy,
			attrs: resourceslice.GetAttrs, returnsDeleted: true,
		},
	}}
}
