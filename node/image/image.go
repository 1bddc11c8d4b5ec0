// Package image sees to it that a container's image is there.
//
// In come a container's image, its pull policy and the secrets of its pod; out
// come the runtime's reference to the image, or the words a container waits with,
// and events. What always holds: an image that could not be pulled for a pod is
// asked for again with growing pauses, 10 seconds to 5 minutes, and at most as many
// pulls as pulls are under way at once; more wait for their turn.
package image

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Reasons for which containers wait. Compat: they are kubelet's.
const (
	PullBackOff  = "ImagePullBackOff"
	InspectError = "ImageInspectError"
	PullError    = "ErrImagePull"
	NeverPull    = "ErrImageNeverPull"
	InvalidName  = "InvalidImageName"
)

// pulls is how many images are pulled at once.
const pulls = 5

// Error is why an image is not there.
type Error struct{ Reason, Message string }

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Service is what is asked of a runtime; cri-api's ImageManagerService has it.
type Service interface {
	ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error)
	PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error)
}

// Say records an event about what an image is for.
type Say func(kind, reason, message string)

// Images sees to images.
type Images struct {
	service Service
	backoff *flowcontrol.Backoff
	turns   chan struct{}

	mu     sync.Mutex // guards the field below
	failed map[string]*Error
}

// New returns images of a runtime.
func New(service Service) *Images {
	return &Images{service: service, backoff: flowcontrol.NewBackOff(10*time.Second, 300*time.Second), turns: make(chan struct{}, pulls), failed: map[string]*Error{}}
}

// Want is an image that is to be there.
type Want struct {
	Pod     *corev1.Pod
	Image   string
	Policy  corev1.PullPolicy
	Secrets []*corev1.Secret
	Sandbox *runtimeapi.PodSandboxConfig
	Say     Say
}

// Ensure returns the reference of an image that is there. The error is an *Error
// that says with which words a container waits.
func (i *Images) Ensure(ctx context.Context, w Want) (string, error) {
	name, err := tagged(w.Image)
	if err != nil {
		e := &Error{InvalidName, fmt.Sprintf("Failed to apply default image tag %q: %v", w.Image, err)}
		w.Say(corev1.EventTypeWarning, "InspectFailed", e.Message)
		return "", e
	}
	spec := &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: w.Image, Annotations: w.Pod.Annotations}
	if w.Policy != corev1.PullAlways {
		ref, err := i.present(ctx, spec)
		switch {
		case err != nil:
			e := &Error{InspectError, fmt.Sprintf("Failed to inspect image %q: %v", "", err)}
			w.Say(corev1.EventTypeWarning, "InspectFailed", e.Message)
			return "", e
		case ref != "":
			w.Say(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", w.Image))
			return ref, nil
		case w.Policy == corev1.PullNever:
			e := &Error{NeverPull, fmt.Sprintf("Container image %q is not present with pull policy of Never", w.Image)}
			w.Say(corev1.EventTypeWarning, NeverPull, e.Message)
			return "", e
		}
	}
	return i.pull(ctx, w, spec)
}

// present is the reference of an image, "" when it is not there.
func (i *Images) present(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	res, err := i.service.ImageStatus(ctx, spec, false)
	if err != nil {
		return "", err
	}
	return res.GetImage().GetId(), nil
}

// pull pulls an image, unless it is too soon.
func (i *Images) pull(ctx context.Context, w Want, spec *runtimeapi.ImageSpec) (string, error) {
	key := string(w.Pod.UID) + "_" + w.Image
	if i.backoff.IsInBackOffSinceUpdate(key, time.Now()) {
		e := &Error{PullBackOff, fmt.Sprintf("Back-off pulling image %q", w.Image)}
		w.Say(corev1.EventTypeNormal, "BackOff", e.Message)
		if before := i.recall(key); before != nil {
			e.Message += ": " + before.Reason + ": " + before.Message
		}
		return "", e
	}
	w.Say(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", w.Image))
	asked := time.Now()
	select {
	case i.turns <- struct{}{}:
	case <-ctx.Done():
		return "", &Error{PullError, ctx.Err().Error()}
	}
	begun := time.Now()
	ref, err := i.fetch(ctx, w, spec)
	<-i.turns
	if err != nil {
		w.Say(corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", w.Image, err))
		i.backoff.Next(key, time.Now())
		e := worded(w.Image, err)
		i.remember(key, e)
		return "", e
	}
	i.remember(key, nil)
	i.backoff.GC()
	size := uint64(0)
	if res, err := i.service.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: ref}, false); err == nil {
		size = res.GetImage().GetSize()
	}
	w.Say(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		w.Image, time.Since(begun).Truncate(time.Millisecond), time.Since(asked).Truncate(time.Millisecond), size))
	return ref, nil
}

// fetch pulls with one credential after the other, and with none when there are
// none.
func (i *Images) fetch(ctx context.Context, w Want, spec *runtimeapi.ImageSpec) (string, error) {
	auths := credentials(w.Image, w.Secrets)
	if len(auths) == 0 {
		return i.service.PullImage(ctx, spec, nil, w.Sandbox)
	}
	var last error
	for _, auth := range auths {
		ref, err := i.service.PullImage(ctx, spec, auth, w.Sandbox)
		if err == nil {
			return ref, nil
		}
		last = err
	}
	return "", last
}

// worded is an error of a pull as a container waits with it.
func worded(name string, err error) *Error {
	for _, known := range []struct {
		err  error
		text string
	}{{crierrors.ErrRegistryUnavailable, "the registry is unavailable"}, {crierrors.ErrSignatureValidationFailed, "the signature validation failed"}} {
		if rest, ok := strings.CutPrefix(err.Error(), known.err.Error()); ok {
			return &Error{known.err.Error(), fmt.Sprintf("image pull failed for %s because %s%s", name, known.text, rest)}
		}
	}
	return &Error{PullError, err.Error()}
}

func (i *Images) recall(key string) *Error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failed[key]
}

func (i *Images) remember(key string, e *Error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if e == nil {
		delete(i.failed, key)
		return
	}
	i.failed[key] = e
}

// Forget forgets what failed for a pod.
func (i *Images) Forget(uid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for key := range i.failed {
		if strings.HasPrefix(key, uid+"_") {
			delete(i.failed, key)
		}
	}
}

// tagged is an image's name, with a tag where it has neither tag nor digest.
func tagged(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", fmt.Errorf("couldn't parse image name %q: %w", image, err)
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}
