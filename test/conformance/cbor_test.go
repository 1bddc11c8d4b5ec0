package conformance

import (
	"net/http"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/rest"

	"setpoint.dev/setpoint/app/apptest"
)

// wire remembers the media types that went over it.
type wire struct {
	mu   sync.Mutex // guards seen
	seen map[string]bool
}

func (w *wire) note(direction string, h http.Header) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[direction+" "+h.Get("Content-Type")] = true
}

// tapped is a wire that goes through another.
type tapped struct {
	*wire
	through http.RoundTripper
}

func (t tapped) RoundTrip(r *http.Request) (*http.Response, error) {
	t.note("sent", r.Header)
	resp, err := t.through.RoundTrip(r)
	if err == nil {
		t.note("got", resp.Header)
	}
	return resp, err
}

// Clients that prefer CBOR, as client-go's gates make them, live the lives that
// others do, and CBOR is what they send and get.
func TestClientsThatPreferCBOR(t *testing.T) {
	featurestesting.SetFeatureDuringTest(t, features.ClientsAllowCBOR, true)
	featurestesting.SetFeatureDuringTest(t, features.ClientsPreferCBOR, true)
	plane := apptest.Start(t)
	for name, life := range map[string]struct {
		live func(t *testing.T, config *rest.Config)
		want []string
	}{
		"typed": {
			// Typed clients choose protobuf even so.
			func(t *testing.T, config *rest.Config) {
				t.Helper()
				typedLife(t, speaking(config, runtime.ContentTypeCBOR), "cbor")
			},
			[]string{"sent application/cbor", "sent application/apply-patch+cbor", "got application/cbor"},
		},
		"dynamic": {dynamicLife, []string{"sent application/cbor", "sent application/apply-patch+cbor", "got application/cbor"}},
		"followed": {func(t *testing.T, config *rest.Config) {
			t.Helper()
			followedLife(t, speaking(config, runtime.ContentTypeCBOR))
		}, []string{"got application/cbor", "got application/cbor-seq"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &wire{seen: map[string]bool{}}
			config := rest.CopyConfig(plane.Config)
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return tapped{w, rt} })
			life.live(t, config)
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, want := range life.want {
				if !w.seen[want] {
					t.Errorf("nobody %s; seen was %v", want, w.seen)
				}
			}
		})
	}
}
