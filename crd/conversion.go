package crd

import (
	"sync"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// Conversion turns objects of a custom kind from one version into another:
// by saying the other version, or by asking a webhook. What a webhook returns
// is checked: it has to be the same objects, in the version asked for, with
// nothing of their metadata changed but labels and annotations.
type Conversion struct {
	// Services finds where a webhook that is a service is reached; nil takes
	// its name in the cluster's DNS.
	Services webhook.ServiceResolver
	// Timeout is how long a webhook is waited for; 0 means upstream's 30
	// seconds.
	Timeout time.Duration

	once    sync.Once
	factory *conversion.CRConverterFactory
	err     error
}

// converter is upstream's for a definition. It may change and return what it is
// given to convert.
func (c *Conversion) converter(of *apiextensions.CustomResourceDefinition) (runtime.ObjectConvertor, error) {
	c.once.Do(func() {
		services := c.Services
		if services == nil {
			services = webhook.NewDefaultServiceResolver()
		}
		c.factory, c.err = conversion.NewCRConverterFactory(services, c.bounded)
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

// bounded gives every call of a webhook its end.
func (c *Conversion) bounded(next webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	bound := func(cfg *rest.Config, err error) (*rest.Config, error) {
		if cfg != nil && c.Timeout > 0 {
			cfg.Timeout = c.Timeout
		}
		return cfg, err
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(host string) (*rest.Config, error) { return bound(next.ClientConfigFor(host)) },
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			return bound(next.ClientConfigForService(name, namespace, port))
		},
	}
}
