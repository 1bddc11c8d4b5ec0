package rest

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/deprecation"
	"k8s.io/apiserver/pkg/warning"
)

// The release whose contract is kept, to which the ages of kinds are compared.
const (
	releaseMajor = 1
	releaseMinor = 36
)

// ages are the warnings about kinds by schema.GroupVersionKind; "" for kinds
// that are up to date.
var ages sync.Map

// warnOfAge tells a client that uses a deprecated version of a kind.
func (c *call) warnOfAge() {
	if c.resource.Custom != nil {
		if c.resource.Warning != "" {
			warning.AddWarning(c.ctx, "", c.resource.Warning)
		}
		return
	}
	text, known := ages.Load(c.kind)
	if !known {
		text, _ = ages.LoadOrStore(c.kind, c.age(c.kind))
	}
	if s, _ := text.(string); s != "" {
		warning.AddWarning(c.ctx, "", s)
	}
}

func (c *call) age(kind schema.GroupVersionKind) string {
	obj, err := c.resource.Scheme.New(kind)
	if err != nil || !deprecation.IsDeprecated(obj, releaseMajor, releaseMinor) {
		return ""
	}
	obj.GetObjectKind().SetGroupVersionKind(kind)
	return deprecation.WarningMessage(obj)
}
