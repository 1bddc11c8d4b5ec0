package crd

import (
	"sync"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
)

// Conversion turns objects of a custom kind from one version into another:
// by saying the other version, or by asking a webhook.
type Conversion struct {
	// Services finds where a webhook that is a service is reached.
	Services webhook.ServiceResolver

	once    sync.Once
	factory *conversion.CRConverterFactory
	err     error
}

// converter is upstream's for a definition. It may change and return what it is
// given to convert.
func (c *Conversion) converter(of *apiextensions.CustomResourceDefinition) (runtime.ObjectConvertor, error) {
	c.once.Do(func() {
		same := func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r }
		c.factory, c.err = conversion.NewCRConverterFactory(c.Services, same)
	})
	if c.err != nil {
		return nil, c.err
	}
	if of.Spec.Conversion == nil {
		of.Spec.Conversion = &apiextensions.CustomResourceConversion{Strategy: apiextensions.NoneConverter}
	}
	safe, _, err := c.factory.NewConverter(of)
	return safe, err
}
