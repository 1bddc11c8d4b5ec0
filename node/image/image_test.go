package image_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/image"
)

// registry has some images and gives others to whom it knows.
type registry struct {
	present map[string]bool
	given   []string // the users that asked
	user    string   // who gets what they ask for; "" is everybody
	fails   error
}

func (r *registry) ImageStatus(_ context.Context, i *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	if !r.present[i.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "id of " + i.Image, Size: 7}}, nil
}

func (r *registry) PullImage(_ context.Context, i *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	r.given = append(r.given, auth.GetUsername()+":"+auth.GetPassword())
	if r.fails != nil {
		return "", r.fails
	}
	if auth.GetUsername() != r.user {
		return "", errors.New("not for you")
	}
	return "id of " + i.Image, nil
}

func secret(kind corev1.SecretType, key, text string) *corev1.Secret {
	return &corev1.Secret{Type: kind, Data: map[string][]byte{key: []byte(text)}}
}

func TestEnsure(t *testing.T) {
	config := secret(corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		`{"auths":{"https://example.org/v2/":{"auth":"dXNlcjpzZWNyZXQ="},"*.example.org":{"username":"star","password":"x"},"index.docker.io":{"username":"hub"}}}`)
	old := secret(corev1.SecretTypeDockercfg, corev1.DockerConfigKey, `{"example.org/team":{"username":"team","password":"t"}}`)
	for _, c := range []struct {
		name, image string
		policy      corev1.PullPolicy
		registry    registry
		ref, reason string
		asked       string
		events      string
	}{
		{
			name: "present", image: "example.org/a:1", policy: corev1.PullIfNotPresent, registry: registry{present: map[string]bool{"example.org/a:1": true}},
			ref: "id of example.org/a:1", events: `Pulled Container image "example.org/a:1" already present on machine and can be accessed by the pod`,
		},
		{
			name: "not present and not to be pulled", image: "example.org/a:1", policy: corev1.PullNever, reason: image.NeverPull,
			events: `ErrImageNeverPull Container image "example.org/a:1" is not present with pull policy of Never`,
		},
		{name: "no name", image: "Example//", policy: corev1.PullAlways, reason: image.InvalidName, events: "InspectFailed"},
		{name: "without a tag", image: "nowhere.net/a", policy: corev1.PullAlways, ref: "id of nowhere.net/a:latest", asked: ":", events: "Pulled"},
		{name: "by whom it is for", image: "example.org/b:1", policy: corev1.PullAlways, registry: registry{user: "user"}, ref: "id of example.org/b:1", asked: "user:secret", events: "Pulled"},
		{name: "the longest match first", image: "example.org/team/b:1", policy: corev1.PullAlways, registry: registry{user: "user"}, ref: "id of example.org/team/b:1", asked: "team:t user:secret"},
		{name: "a host with a star", image: "eu.example.org/b:1", policy: corev1.PullAlways, registry: registry{user: "star"}, ref: "id of eu.example.org/b:1", asked: "star:x"},
		{name: "the hub by its old name", image: "busybox", policy: corev1.PullAlways, registry: registry{user: "hub"}, ref: "id of busybox:latest", asked: "hub:"},
		{name: "failed", image: "nowhere.net/a:1", policy: corev1.PullAlways, registry: registry{fails: errors.New("gone")}, reason: image.PullError, asked: ":", events: `Failed Failed to pull image "nowhere.net/a:1": gone`},
		{
			name: "no registry", image: "nowhere.net/a:1", policy: corev1.PullAlways, registry: registry{fails: errors.New("RegistryUnavailable: down")},
			reason: "RegistryUnavailable", asked: ":",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var events []string
			ref, err := image.New(&c.registry).Ensure(t.Context(), image.Want{
				Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, Image: c.image, Policy: c.policy, Secrets: []*corev1.Secret{config, old},
				Say: func(_, reason, message string) { events = append(events, reason+" "+message) },
			})
			var why *image.Error
			if errors.As(err, &why); ref != c.ref || (c.reason != "" && (why == nil || why.Reason != c.reason)) || c.reason == "" && err != nil {
				t.Errorf("got %q, %v", ref, err)
			}
			if asked := strings.Join(c.registry.given, " "); asked != c.asked {
				t.Errorf("%q asked, not %q", asked, c.asked)
			}
			if all := strings.Join(events, "\n"); !strings.Contains(all, c.events) {
				t.Errorf("the events are %q", all)
			}
		})
	}
}

func TestTooSoon(t *testing.T) {
	r := &registry{fails: errors.New("gone")}
	images := image.New(r)
	want := image.Want{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}, Image: "nowhere.net/a:1", Say: func(_, _, _ string) {}}
	var why *image.Error
	for range 2 {
		_, err := images.Ensure(t.Context(), want)
		if !errors.As(err, &why) {
			t.Fatal(err)
		}
	}
	if len(r.given) != 1 || why.Reason != image.PullBackOff || why.Message != `Back-off pulling image "nowhere.net/a:1": ErrImagePull: gone` {
		t.Errorf("asked %d times, %s: %s", len(r.given), why.Reason, why.Message)
	}
}
