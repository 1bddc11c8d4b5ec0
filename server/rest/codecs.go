package rest

import (
	"sync"

	metainternalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/kinds"
	"setpoint.dev/setpoint/patch"
)

// codecs are made per scheme, when they are first needed: nearly all kinds
// share one.
type codecs struct {
	mu  sync.Mutex // guards all
	all map[*runtime.Scheme]*speech
}

// speech is what there is to know about the kinds of one scheme.
type speech struct {
	codec  *codec.Codec
	owners *patch.Ownership
}

func (c *codecs) get(scheme kinds.Scheme) *speech {
	s, ok := scheme.(*runtime.Scheme)
	if !ok {
		s = legacyscheme.Scheme
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[*runtime.Scheme]*speech{}
	}
	if c.all[s] == nil {
		c.all[s] = &speech{codec: codec.New(s), owners: patch.NewOwnership(s)}
	}
	return c.all[s]
}

// metaCodec speaks the kinds of the meta group: tables, options, and objects
// reduced to their metadata.
var metaCodec = sync.OnceValue(func() *codec.Codec { return codec.New(metainternalscheme.Scheme) })

// of speaks a kind's representations.
func (c *codecs) of(r *kinds.Resource) *codec.Codec {
	if r.Custom != nil {
		return r.Custom.Codec()
	}
	return c.get(r.Scheme).codec
}
